//! The keys that a family reads in its config, and what it takes where a
//! key is absent: `keys.json` in its folder, which `tools/golden/check_keys.py` compares with
//! the config classes of transformers.
//!
//! An entry of `keys` is the default of a key, whose `null` is refused; or
//! `null`, for a key that may be absent or `null`; or an object:
//! `{"default": D, "null": N}` where a `null` means `N`; `{"fixed": F}` where
//! the reference does not read the key and computes with `F`; `{"only": O}`
//! where nothing but `O` is computed and other values are refused.
//!
//! Keys that transformers does not have say how the weights of GGUF files are stored:
//! `linear_value_head_order`, `rope_interleave` of Mixtral, Granite and Ling, the rotary type `divided`, and
//! the constants of hashed n-grams.

use std::collections::BTreeMap;

use moeflux_core::checkpoint::{Config, FormatError, ResolvedKeys};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// What one family reads.
#[derive(Debug, Deserialize)]
pub(super) struct FamilyKeys {
    /// Values of the root's `model_type` with which the keys are in `text_config`.
    #[serde(default)]
    nested: Vec<String>,
    /// Second names of keys, with the first ones.
    #[serde(default)]
    aliases: BTreeMap<String, String>,
    /// Names that others give to keys and the reference does not read: they
    /// must not say anything else.
    #[serde(default)]
    agreeing: BTreeMap<String, String>,
    keys: BTreeMap<String, Value>,
    rope: RopeKeys,
}

#[derive(Debug, Deserialize)]
struct RopeKeys {
    /// `rope_theta` where it is absent.
    theta: f64,
    partial: Partial,
    /// A key that gives the rotated columns of a head, where
    /// `partial_rotary_factor` is absent.
    dim_key: Option<String>,
    /// `rope_parameters` where it is absent.
    #[serde(default)]
    parameters: Map<String, Value>,
    /// Whether `rope_parameters` has an object for each type of layers, as it then is here.
    #[serde(default)]
    by_layer_type: bool,
    /// The key of `rope_theta` in layers with compressed entries, where these have rotary keys of their own.
    compressed_theta: Option<String>,
}

/// Which part of a head is rotated.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum Partial {
    /// `partial_rotary_factor`, or this where it is absent.
    Factor(f64),
    /// All of it. `partial_rotary_factor` counts only where positions are
    /// stretched, and then the reference fails with any other value than 1.
    Whole(WholeUnlessStretched),
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum WholeUnlessStretched {
    #[serde(rename = "unless default")]
    UnlessDefault,
}

impl FamilyKeys {
    /// The keys in a family's `keys.json`.
    ///
    /// # Panics
    /// Where the text is no such table: it is part of the program.
    pub(super) fn parse(text: &str) -> FamilyKeys {
        serde_json::from_str(text).expect("keys.json of a family")
    }

    /// The config in the terms of the family with these `model_type`s.
    ///
    /// # Errors
    /// Where a key has a `null` or another value that the family does not take,
    /// or two names of one key disagree.
    pub(super) fn resolve(
        &self,
        config: &Config,
        model_types: &[&str],
    ) -> Result<Config, FormatError> {
        let scope = self.scope(config, model_types);
        let reader = Reader { config, scope, keys: self };
        let mut resolved = ResolvedKeys::default();
        for (key, entry) in &self.keys {
            let stored = reader.stored(key)?;
            if stored.is_none() {
                resolved.defaulted.insert(key.clone());
            }
            resolved.values.insert(key.clone(), reader.value(key, entry, stored)?);
        }
        for (name, key) in &self.agreeing {
            let (other, value) = (scope.get(name), resolved.values.get(key));
            if let Some(other) = other.filter(|other| !other.is_null() && Some(*other) != value) {
                let rule = format!("equal {key}, which is {}", value.unwrap_or(&Value::Null));
                return Err(config.refuse_value(name, other, &rule));
            }
        }
        resolved.rope = reader.rope(&resolved.values)?;
        Ok(config.resolved(resolved))
    }

    /// The object that holds a model's keys: `text_config` where the root is that of a model with
    /// more parts, else the whole. Like the reference, it does not mix the two.
    fn scope<'a>(&self, config: &'a Config, model_types: &[&str]) -> &'a Value {
        let root = config.value();
        // Another root's language model is of this family by the `model_type` in `text_config`.
        let is_nested = root.get("model_type").and_then(Value::as_str).is_none_or(|outer| {
            self.nested.iter().any(|name| name == outer) || !model_types.contains(&outer)
        });
        root.get("text_config").filter(|text| is_nested && text.is_object()).unwrap_or(root)
    }
}

/// One config, read by one family.
struct Reader<'a> {
    config: &'a Config,
    scope: &'a Value,
    keys: &'a FamilyKeys,
}

impl<'a> Reader<'a> {
    /// What the config has under any name of a key.
    fn stored(&self, key: &str) -> Result<Option<&'a Value>, FormatError> {
        if key == "tie_word_embeddings"
            && let Some(value) = self.config.value().get(key).filter(|value| !value.is_null())
        {
            // The root decides for a nested config too.
            return Ok(Some(value));
        }
        let mut found = self.scope.get(key);
        for (alias, _) in self.keys.aliases.iter().filter(|(_, of)| *of == key) {
            let Some(other) = self.scope.get(alias).filter(|value| !value.is_null()) else {
                continue;
            };
            match found {
                Some(value) if value != other => {
                    let rule = format!("equal {alias}, which is {other}");
                    return Err(self.config.refuse_value(key, value, &rule));
                }
                _ => found = Some(other),
            }
        }
        Ok(found)
    }

    /// A key's value by the rules of its entry.
    fn value(
        &self,
        key: &str,
        entry: &Value,
        stored: Option<&Value>,
    ) -> Result<Value, FormatError> {
        let part = |part: &str| entry.as_object().and_then(|entry| entry.get(part));
        if let Some(fixed) = part("fixed") {
            return Ok(fixed.clone());
        }
        if let Some(only) = part("only") {
            let rule = if only.is_null() { "be absent".into() } else { format!("be {only}") };
            let other = stored.filter(|value| !value.is_null() && *value != only);
            return other.map_or(Ok(only.clone()), |other| {
                Err(self.config.refuse_value(key, other, &rule))
            });
        }
        let default = part("default").unwrap_or(entry);
        match stored {
            None => Ok(default.clone()),
            Some(Value::Null) => match part("null") {
                Some(meant) => Ok(meant.clone()),
                None if entry.is_null() => Ok(Value::Null),
                None => {
                    let rule = format!("have a value, or be absent for {default}");
                    Err(self.config.refuse_value(key, &Value::Null, &rule))
                }
            },
            Some(value) => Ok(value.clone()),
        }
    }

    /// The keys of rotary embeddings, as transformers'
    /// `convert_rope_params_to_dict` puts them together: a `rope_scaling` that
    /// is not empty stands in place of `rope_parameters`; `rope_theta` and
    /// `partial_rotary_factor` of the enclosing object count where it lacks them.
    fn rope(
        &self,
        values: &BTreeMap<String, Value>,
    ) -> Result<BTreeMap<String, Value>, FormatError> {
        let root = self.config.value();
        if let Some(outer) = root.get("rope_scaling").filter(|value| !value.is_null())
            && self.scope.get("rope_scaling") != Some(outer)
        {
            // Only text_config's counts, and then this would be dropped without a word.
            return Err(self.config.refuse_value("rope_scaling", outer, "be in text_config"));
        }
        if self.keys.rope.by_layer_type {
            return self.rope_by_layer_type();
        }
        if let Some(theta) = &self.keys.rope.compressed_theta {
            return self.rope_by_compression(theta, values);
        }
        let parameters = self.rope_parameters()?;
        let parameters = parameters.unwrap_or(&self.keys.rope.parameters);
        if let Some((key, value)) = parameters.iter().find(|(_, value)| value.is_object()) {
            return Err(self.config.refuse_value(key, value, "be a plain value"));
        }
        let mut rope: BTreeMap<String, Value> =
            parameters.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let beside = |key: &str| self.scope.get(key).cloned();
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).cloned();
        let kind = kind.unwrap_or_else(|| json!("default"));
        let theta = beside("rope_theta").unwrap_or_else(|| json!(self.keys.rope.theta));
        rope.entry("rope_theta".into()).or_insert(theta);
        let partial = self.partial(&rope, &kind, values)?;
        rope.insert("partial_rotary_factor".into(), partial);
        if kind == "yarn" || kind == "llama3" {
            let key = "original_max_position_embeddings";
            if let Some(original) = beside(key) {
                rope.insert(key.into(), original);
            }
            let all = values.get("max_position_embeddings").cloned().unwrap_or_default();
            rope.entry(key.into()).or_insert(all);
        }
        rope.insert("rope_type".into(), kind);
        Ok(rope)
    }

    /// A `rope_scaling` that is not empty, or `rope_parameters`.
    fn rope_parameters(&self) -> Result<Option<&'a Map<String, Value>>, FormatError> {
        match self.object("rope_scaling")?.filter(|scaling| !scaling.is_empty()) {
            Some(scaling) => Ok(Some(scaling)),
            None => self.object("rope_parameters"),
        }
    }

    /// The keys of each type of layers, as an object under the type's name.
    fn rope_by_layer_type(&self) -> Result<BTreeMap<String, Value>, FormatError> {
        if let Some(scaling) = self.scope.get("rope_scaling").filter(|value| !value.is_null()) {
            return Err(self.config.refuse_value("rope_scaling", scaling, "be absent"));
        }
        let given = self.object("rope_parameters")?.unwrap_or(&self.keys.rope.parameters);
        let mut rope = BTreeMap::new();
        for layer_type in self.keys.rope.parameters.keys() {
            let Some(Value::Object(keys)) = given.get(layer_type) else {
                let rule = format!("have an object of rotary keys for {layer_type}");
                let given = Value::Object(given.clone());
                return Err(self.config.refuse_value("rope_parameters", &given, &rule));
            };
            let mut keys = keys.clone();
            keys.entry("rope_theta").or_insert(json!(self.keys.rope.theta));
            rope.insert(layer_type.clone(), Value::Object(keys));
        }
        Ok(rope)
    }

    /// The keys of layers that see positions alone, as `main`, and of those with compressed entries, as
    /// `compress`. Configs have both, or the keys of the latter alone, which then stretch positions and
    /// take their base from `theta`. YaRN multiplies nothing there unless the config says so.
    fn rope_by_compression(
        &self,
        theta: &str,
        values: &BTreeMap<String, Value>,
    ) -> Result<BTreeMap<String, Value>, FormatError> {
        const NAMES: [&str; 2] = ["main", "compress"];
        if let Some(parameters) = self.object("rope_parameters")?
            && NAMES.iter().all(|name| parameters.get(*name).is_some_and(Value::is_object))
        {
            let part = |name: &str| (name.to_owned(), parameters[name].clone());
            return Ok(NAMES.map(part).into());
        }
        let mut stretched = self.rope_parameters()?.cloned().unwrap_or_default();
        NAMES.iter().for_each(|name| drop(stretched.remove(*name)));
        let kind = stretched.get("rope_type").or_else(|| stretched.get("type")).cloned();
        let kind = kind.unwrap_or_else(|| json!("default"));
        let partial = self.partial(&BTreeMap::new(), &kind, values)?;
        if kind == "yarn" {
            stretched.entry("attention_factor").or_insert(json!(1.0));
        }
        let base = self.scope.get("rope_theta").cloned();
        let base = base.unwrap_or_else(|| json!(self.keys.rope.theta));
        stretched.insert("rope_type".into(), kind);
        stretched.insert("rope_theta".into(), values.get(theta).cloned().unwrap_or_default());
        stretched.insert("partial_rotary_factor".into(), partial.clone());
        let plain =
            json!({"rope_type": "default", "rope_theta": base, "partial_rotary_factor": partial});
        let [main, compress] = NAMES.map(str::to_owned);
        Ok([(main, plain), (compress, Value::Object(stretched))].into())
    }

    /// `partial_rotary_factor`; a `null` in the object that holds the rotary keys means 1.
    fn partial(
        &self,
        rope: &BTreeMap<String, Value>,
        kind: &Value,
        values: &BTreeMap<String, Value>,
    ) -> Result<Value, FormatError> {
        let key = "partial_rotary_factor";
        let given = match rope.get(key) {
            Some(Value::Null) => {
                return Err(self.config.refuse_value(key, &Value::Null, "be a number"));
            }
            Some(value) => Some(value.clone()),
            None => self
                .scope
                .get(key)
                .map(|value| if value.is_null() { json!(1.0) } else { value.clone() }),
        };
        match self.keys.rope.partial {
            Partial::Whole(WholeUnlessStretched::UnlessDefault) => match given {
                Some(value) if kind != "default" && value.as_f64() != Some(1.0) => {
                    let rule = format!("be 1 with rope_type {kind}");
                    Err(self.config.refuse_value(key, &value, &rule))
                }
                _ => Ok(json!(1.0)),
            },
            Partial::Factor(default) => match given {
                Some(value) => Ok(value),
                None => Ok(json!(self.factor_of_dim(values)?.unwrap_or(default))),
            },
        }
    }

    /// The part of a head that the family's own key for rotated columns gives.
    fn factor_of_dim(&self, values: &BTreeMap<String, Value>) -> Result<Option<f64>, FormatError> {
        let Some(key) = &self.keys.rope.dim_key else { return Ok(None) };
        let Some(value) = self.scope.get(key).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let head_dim = values.get("head_dim").and_then(Value::as_f64);
        let even = value.as_u64().filter(|dim| *dim > 0 && dim.is_multiple_of(2));
        let factor = even.zip(head_dim).map(|(dim, head_dim)| dim as f64 / head_dim);
        let refuse = || self.config.refuse_value(key, value, "be an even number up to head_dim");
        factor.filter(|factor| *factor <= 1.0).map(Some).ok_or_else(refuse)
    }

    fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, FormatError> {
        match self.scope.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(value) => Err(self.config.refuse_value(key, value, "be an object")),
        }
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
