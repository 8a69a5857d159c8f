//! A model's `config.json`. It is untrusted: the errors of all getters name the file, the key, the
//! value and the accepted values.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::FormatError;

/// A config. Keys are looked up in `text_config` first, then in the root; `null` counts as absent.
/// `llm_config` is another name of `text_config`, where there is none.
/// After a family has resolved the config ([`Config::resolved`]), it has the keys of that family
/// and no others.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    path: PathBuf,
    root: Value,
    resolved: Option<ResolvedKeys>,
    /// What the file calls keys that were translated, by their names here.
    stored_keys: BTreeMap<String, String>,
}

/// The keys of a config that one family reads. Each has the name that the family uses, and its
/// default value if the config does not have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResolvedKeys {
    /// Values by key; `null` if the family can do without the key.
    pub values: BTreeMap<String, Value>,
    /// The keys of rotary embeddings.
    pub rope: BTreeMap<String, Value>,
    /// The keys that the config does not have.
    pub defaulted: BTreeSet<String>,
}

/// The name of the language model's object in the config of a model that also sees or hears.
const TEXT: &str = "text_config";

/// The name of the same in configs of InternVL.
const OLDER_TEXT: &str = "llm_config";

/// Names of the objects that hold the keys of rotary embeddings, the newest first.
const ROPE_OBJECTS: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// The largest accepted values of keys; the limit of other keys is [`MAX_ANY`].
const CAPS: &[(&str, usize)] = &[
    ("num_hidden_layers", 1000),
    ("hidden_size", 1 << 17),
    ("vocab_size", 1 << 24),
    ("num_attention_heads", 4096),
    ("num_key_value_heads", 4096),
    ("num_global_key_value_heads", 4096),
    ("global_head_dim", 1 << 14),
    ("head_dim", 1 << 14),
    ("linear_num_key_heads", 4096),
    ("linear_num_value_heads", 4096),
    // Four times the value of known models; kernels hold several rows of a state at once.
    ("linear_key_head_dim", 1 << 9),
    ("linear_value_head_dim", 1 << 14),
    ("linear_conv_kernel_dim", 64),
    ("num_experts", 65_535),
    ("num_local_experts", 65_535),
    ("n_routed_experts", 65_535),
    ("num_experts_per_tok", 1024),
    ("top_k_experts", 1024),
    ("max_position_embeddings", 1 << 30),
];

const MAX_ANY: usize = 1 << 20;

const MAX_FLOAT: f64 = 1e12;

impl Config {
    /// Parses the text of a config; errors name `path`.
    ///
    /// # Errors
    /// If the text is not a JSON object.
    pub fn from_slice(path: &Path, bytes: &[u8]) -> Result<Config, FormatError> {
        let root = python_json(bytes).map_err(FormatError::json(path))?;
        Self::from_value(path, root)
    }

    /// Creates a config from parsed JSON; errors name `path`.
    ///
    /// # Errors
    /// If the value is not a JSON object.
    pub fn from_value(path: &Path, root: Value) -> Result<Config, FormatError> {
        let Value::Object(mut keys) = root else {
            return Err(FormatError::malformed(path, "the config is not a JSON object"));
        };
        if !keys.contains_key(TEXT)
            && keys.get(OLDER_TEXT).is_some_and(Value::is_object)
            && let Some(text) = keys.remove(OLDER_TEXT)
        {
            keys.insert(TEXT.to_owned(), text);
        }
        let root = Value::Object(keys);
        let stored_keys = BTreeMap::new();
        Ok(Config { path: path.to_path_buf(), root, resolved: None, stored_keys })
    }

    /// The config in an object of this one, such as that of a vision tower; `None` where there is no
    /// such object. Errors show its keys below its own.
    pub fn part(&self, key: &str) -> Option<Config> {
        let declared = self.resolved.as_ref().and_then(|resolved| resolved.values.get(key));
        let root = declared.or(self.root.get(key)).filter(|part| part.is_object())?;
        let keys = root.as_object().into_iter().flat_map(Map::keys);
        let stored_keys = keys.map(|name| (name.clone(), format!("{key}.{name}"))).collect();
        Some(Config { path: self.path.clone(), root: root.clone(), resolved: None, stored_keys })
    }

    /// Returns this config with the names that its file has for keys, by their names here. Errors
    /// show these.
    #[must_use]
    pub(crate) fn with_stored_keys(self, stored_keys: BTreeMap<String, String>) -> Config {
        Config { stored_keys, ..self }
    }

    /// Returns this config with the keys that a family has resolved.
    #[must_use]
    pub fn resolved(&self, keys: ResolvedKeys) -> Config {
        Config { resolved: Some(keys), ..self.clone() }
    }

    /// Returns this config with other keys of rotary embeddings, such as those of one type of
    /// layers.
    #[must_use]
    pub fn with_rope(&self, rope: BTreeMap<String, Value>) -> Config {
        let keys = self.resolved.clone().unwrap_or_default();
        self.resolved(ResolvedKeys { rope, ..keys })
    }

    /// The path that errors name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole config.
    pub fn value(&self) -> &Value {
        &self.root
    }

    /// The value of a key.
    ///
    /// # Panics
    /// With debug assertions, if the config is resolved and its family does not declare the key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Some(resolved) = &self.resolved else {
            return self.scopes().find_map(|scope| present(scope, key));
        };
        let value = resolved.values.get(key);
        debug_assert!(value.is_some(), "{key} is not among the keys that the family declares");
        value.filter(|value| !value.is_null())
    }

    /// Whether the family reads a key; any key where no family has resolved the config.
    pub fn declares(&self, key: &str) -> bool {
        self.resolved.as_ref().is_none_or(|resolved| resolved.values.contains_key(key))
    }

    /// The value of a key of rotary embeddings. It is in `rope_parameters` or in `rope_scaling`;
    /// older configs have it outside these objects.
    pub fn get_rope(&self, key: &str) -> Option<&Value> {
        if let Some(resolved) = &self.resolved {
            return resolved.rope.get(key).filter(|value| !value.is_null());
        }
        let nested =
            |scope| ROPE_OBJECTS.iter().find_map(move |name| present(present(scope, name)?, key));
        self.scopes().find_map(nested).or_else(|| self.get(key))
    }

    fn scopes(&self) -> impl Iterator<Item = &Value> {
        let text = self.root.get(TEXT).filter(|text| text.is_object());
        text.into_iter().chain([&self.root])
    }

    /// A whole number from 1 to the limit of the key.
    ///
    /// # Errors
    /// If it is absent or not such a number.
    pub fn usize(&self, key: &str) -> Result<usize, FormatError> {
        self.usize_in(key, 1..=cap(key))
    }

    /// A whole number from 1 to the limit of the key, or a default if it is absent. A default of 0
    /// allows 0.
    ///
    /// # Errors
    /// If it is present and out of range.
    pub fn usize_or(&self, key: &str, default: usize) -> Result<usize, FormatError> {
        match self.get(key) {
            None => Ok(default),
            Some(_) => self.usize_in(key, default.min(1)..=cap(key)),
        }
    }

    /// A whole number in a range.
    ///
    /// # Errors
    /// If it is absent or not such a number.
    pub fn usize_in(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize, FormatError> {
        let rule = format!("be a whole number from {} to {}", range.start(), range.end());
        let value = self.require(key, &rule)?;
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        number.filter(|number| range.contains(number)).ok_or_else(|| self.refuse(key, &rule))
    }

    /// A finite number, at least 0.
    ///
    /// # Errors
    /// If it is absent or not such a number.
    pub fn f32(&self, key: &str) -> Result<f32, FormatError> {
        let value = self.require(key, FLOAT_RULE)?;
        float(value).ok_or_else(|| self.refuse(key, FLOAT_RULE))
    }

    /// A number of the rotary embeddings, looked up as by [`Config::get_rope`].
    ///
    /// # Errors
    /// If it is present and not a finite number of at least 0.
    pub fn rope_f32(&self, key: &str) -> Result<Option<f32>, FormatError> {
        let Some(value) = self.get_rope(key) else { return Ok(None) };
        float(value).map(Some).ok_or_else(|| self.refuse(key, FLOAT_RULE))
    }

    /// A string of the rotary embeddings, looked up as by [`Config::get_rope`]. `rope_type` may
    /// also have its old name `type`.
    ///
    /// # Errors
    /// If it is present and not a string.
    pub fn rope_str(&self, key: &str) -> Result<Option<&str>, FormatError> {
        if self.resolved.is_some() {
            let Some(value) = self.get_rope(key) else { return Ok(None) };
            return value.as_str().map(Some).ok_or_else(|| self.refuse(key, "be a string"));
        }
        let old = (key == "rope_type").then_some("type");
        let nested = |key: &str| {
            let in_scope =
                |scope| ROPE_OBJECTS.iter().find_map(|name| present(present(scope, name)?, key));
            self.scopes().find_map(in_scope)
        };
        let value = nested(key).or_else(|| nested(old?)).or_else(|| self.get(key));
        let Some(value) = value else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.refuse(key, "be a string"))
    }

    /// A boolean.
    ///
    /// # Errors
    /// If it is absent or not a boolean.
    pub fn bool(&self, key: &str) -> Result<bool, FormatError> {
        let value = self.require(key, "be true or false")?;
        value.as_bool().ok_or_else(|| self.refuse(key, "be true or false"))
    }

    /// A boolean, or a default if it is absent.
    ///
    /// # Errors
    /// If it is present and not a boolean.
    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool, FormatError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.refuse(key, "be true or false"))
    }

    /// A string.
    ///
    /// # Errors
    /// If it is absent or not a string.
    pub fn str(&self, key: &str) -> Result<&str, FormatError> {
        let value = self.require(key, "be a string")?;
        value.as_str().ok_or_else(|| self.refuse(key, "be a string"))
    }

    /// A list of strings; `None` if it is absent.
    ///
    /// # Errors
    /// If it is present and not a list of strings.
    pub fn str_list(&self, key: &str) -> Result<Option<Vec<&str>>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        list.map(Some).ok_or_else(|| self.refuse(key, "be a list of strings"))
    }

    /// A list of whole numbers; `None` if it is absent.
    ///
    /// # Errors
    /// If it is present and not a list of whole numbers.
    pub fn usize_list(&self, key: &str) -> Result<Option<Vec<usize>>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        let list = value.as_array().and_then(|list| list.iter().map(number).collect());
        list.map(Some).ok_or_else(|| self.refuse(key, "be a list of whole numbers"))
    }

    /// The error for a value that breaks a rule; `rule` continues "it must".
    pub fn refuse(&self, key: &str, rule: &str) -> FormatError {
        let value = match &self.resolved {
            None => self.get_rope(key),
            Some(resolved) => {
                let value = resolved.values.get(key).or_else(|| resolved.rope.get(key));
                value.filter(|value| !value.is_null())
            }
        };
        let is_default =
            self.resolved.as_ref().is_some_and(|resolved| resolved.defaulted.contains(key));
        match value {
            None => self.missing(key, rule),
            Some(value) if is_default => {
                self.refuse_value(&format!("{key} is absent and by default"), value, rule)
            }
            Some(value) => self.refuse_value(key, value, rule),
        }
    }

    /// The error for a value, which may be `null`, that breaks a rule.
    pub fn refuse_value(&self, key: &str, value: &Value, rule: &str) -> FormatError {
        FormatError::ConfigValue {
            path: self.path.clone(),
            value: shortened(value),
            key: self.in_stored_terms(key),
            rule: self.in_stored_terms(rule),
        }
    }

    fn require(&self, key: &str, rule: &str) -> Result<&Value, FormatError> {
        self.get(key).ok_or_else(|| self.missing(key, rule))
    }

    fn missing(&self, key: &str, rule: &str) -> FormatError {
        FormatError::ConfigMissing {
            path: self.path.clone(),
            key: self.in_stored_terms(key),
            rule: self.in_stored_terms(rule),
        }
    }

    /// A text with the names that the file has for the keys in it.
    fn in_stored_terms(&self, text: &str) -> String {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut out = String::new();
        for piece in text.split_inclusive(|c| !is_word(c)) {
            let word = piece.trim_end_matches(|c| !is_word(c));
            out.push_str(self.stored_keys.get(word).map_or(word, String::as_str));
            out.push_str(&piece[word.len()..]);
        }
        out
    }
}

/// The object of the language model, in the config of a model that also sees or hears.
pub fn language_model(config: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let object = |key| config.get(key).and_then(Value::as_object);
    if config.contains_key(TEXT) { object(TEXT) } else { object(OLDER_TEXT) }
}

/// Parses JSON as Python's `json` reads it. A byte order mark may come first, and `NaN`, `Infinity`
/// and `-Infinity` are values. They become strings of these words, so that the getter of such a key
/// refuses it by name.
///
/// # Errors
/// If the text is not JSON in this sense.
pub fn python_json(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    serde_json::from_slice(bytes)
        .or_else(|error| serde_json::from_slice(&quoted_words(bytes)).map_err(|_| error))
}

/// The text with `NaN` and the infinities, which JSON does not have, in quotes.
fn quoted_words(bytes: &[u8]) -> Vec<u8> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let mut out = Vec::with_capacity(bytes.len() + 16);
    let (mut at, mut in_string) = (0, false);
    while let Some(&byte) = bytes.get(at) {
        let word = WORDS.iter().find(|word| !in_string && bytes[at..].starts_with(word));
        if let Some(word) = word {
            out.push(b'"');
            out.extend_from_slice(word);
            out.push(b'"');
            at += word.len();
            continue;
        }
        let len = if in_string && byte == b'\\' { 2 } else { 1 };
        in_string ^= byte == b'"';
        out.extend_from_slice(&bytes[at..bytes.len().min(at + len)]);
        at += len;
    }
    out
}

const FLOAT_RULE: &str = "be a finite number from 0 to 1e12";

fn float(value: &Value) -> Option<f32> {
    let number = value.as_f64().filter(|number| (0.0..=MAX_FLOAT).contains(number))?;
    Some(number as f32)
}

fn present<'a>(scope: &'a Value, key: &str) -> Option<&'a Value> {
    scope.get(key).filter(|value| !value.is_null())
}

fn cap(key: &str) -> usize {
    CAPS.iter().find(|(name, _)| *name == key).map_or(MAX_ANY, |(_, cap)| *cap)
}

/// The text of a value, shortened to fit a line.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn config(root: Value) -> Config {
        Config::from_value(Path::new("c/config.json"), root).expect("an object")
    }

    #[track_caller]
    fn check_refused(root: Value, key: &str, message: &str) {
        let got = config(root).usize(key).expect_err("refused");
        assert_eq!(got.to_string(), message);
    }

    #[test]
    fn prefers_the_text_config() {
        let got = config(json!({"hidden_size": 1, "text_config": {"hidden_size": 2}}));
        assert_eq!(got.usize("hidden_size").unwrap(), 2);
    }

    #[test]
    fn takes_the_config_of_a_language_model_by_either_name() {
        let got = config(json!({"hidden_size": 1, "llm_config": {"hidden_size": 2}}));
        assert_eq!(got.usize("hidden_size").unwrap(), 2);
        let both = json!({"llm_config": {"hidden_size": 2}, "text_config": {"hidden_size": 3}});
        assert_eq!(config(both).usize("hidden_size").unwrap(), 3);
        let none = config(json!({"hidden_size": 1, "llm_config": "elsewhere"}));
        assert_eq!(none.usize("hidden_size").unwrap(), 1);
    }

    #[test]
    fn falls_back_to_the_root() {
        let got = config(json!({"hidden_size": 1, "text_config": {"hidden_size": null}}));
        assert_eq!(got.usize("hidden_size").unwrap(), 1);
    }

    #[test]
    fn names_file_key_value_and_range() {
        let rule = "it must be a whole number from 1 to 1000";
        let prefix = "c/config.json: num_hidden_layers is";
        let key = "num_hidden_layers";
        check_refused(json!({key: 0}), key, &format!("{prefix} 0; {rule}"));
        check_refused(json!({key: -3}), key, &format!("{prefix} -3; {rule}"));
        check_refused(json!({key: 1e18}), key, &format!("{prefix} 1e+18; {rule}"));
        check_refused(json!({key: 1001}), key, &format!("{prefix} 1001; {rule}"));
        check_refused(json!({key: "4"}), key, &format!("{prefix} \"4\"; {rule}"));
        check_refused(json!({}), key, &format!("{prefix} missing; {rule}"));
    }

    #[test]
    fn shows_the_names_that_the_file_has_for_keys() {
        let names = [("num_hidden_layers", "x.block_count"), ("hidden_size", "x.embedding_length")];
        let names = names.map(|(key, stored)| (key.to_owned(), stored.to_owned()));
        let config = config(json!({"num_hidden_layers": 0})).with_stored_keys(names.into());
        assert_eq!(
            config.usize("num_hidden_layers").unwrap_err().to_string(),
            "c/config.json: x.block_count is 0; it must be a whole number from 1 to 1000"
        );
        let got = config.refuse("num_hidden_layers", "divide hidden_size, or hidden_sizes");
        assert!(got.to_string().ends_with("divide x.embedding_length, or hidden_sizes"), "{got}");
        let missing = config.usize("hidden_size").unwrap_err().to_string();
        assert!(missing.starts_with("c/config.json: x.embedding_length is missing"), "{missing}");
    }

    #[test]
    fn finds_rotary_keys_wherever_configs_have_put_them() {
        let places = [
            json!({"rope_theta": 5.0}),
            json!({"rope_parameters": {"rope_theta": 5.0}}),
            json!({"rope_scaling": {"rope_theta": 5.0}}),
            json!({"text_config": {"rope_parameters": {"rope_theta": 5.0}}}),
            json!({"rope_theta": 7.0, "text_config": {"rope_parameters": {"rope_theta": 5.0}}}),
        ];
        for root in places {
            assert_eq!(config(root.clone()).rope_f32("rope_theta").unwrap(), Some(5.0), "{root}");
        }
    }

    #[test]
    fn reads_json_as_python_writes_it() {
        let text = "\u{feff}{\"a\": [NaN, -Infinity], \"NaN \\\" Infinity\": Infinity, \"n\": 4}";
        let got = Config::from_slice(Path::new("c/config.json"), text.as_bytes()).unwrap();
        let want = json!({"a": ["NaN", "-Infinity"], "NaN \" Infinity": "Infinity", "n": 4});
        assert_eq!(got.value(), &want);
        let error = got.f32("NaN \" Infinity").expect_err("refused").to_string();
        assert!(error.contains("is \"Infinity\"; it must be a finite number"), "{error}");
        for text in ["{\"a\": Infinit}", "{\"a\": NaN", "{NaN\"", "\"\\"] {
            assert!(Config::from_slice(Path::new("x"), text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_resolved_config_has_the_keys_of_its_family_only() {
        let raw = config(json!({"hidden_size": 7, "other": 1, "text_config": {"other": 2}}));
        let values = [("hidden_size", json!(7)), ("n_group", json!(8)), ("head_dim", json!(null))];
        let got = raw.resolved(ResolvedKeys {
            values: values.map(|(key, value)| (key.to_owned(), value)).into(),
            defaulted: ["n_group".to_owned()].into(),
            ..ResolvedKeys::default()
        });
        assert_eq!(got.usize("hidden_size").unwrap(), 7);
        assert_eq!(got.get("head_dim"), None);
        assert_eq!(
            got.refuse("n_group", "be 1").to_string(),
            "c/config.json: n_group is absent and by default is 8; it must be 1"
        );
    }

    #[test]
    fn floats_are_finite_and_not_negative() {
        for value in [json!(-1.0), json!(1e300), json!("1"), json!([1.0])] {
            assert!(config(json!({"rms_norm_eps": value})).f32("rms_norm_eps").is_err());
        }
        assert_eq!(config(json!({"rms_norm_eps": 1})).f32("rms_norm_eps").unwrap(), 1.0);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(config) = Config::from_slice(Path::new("x"), &bytes) {
                let _ = config.usize("hidden_size");
            }
        }

        #[test]
        fn getters_never_panic(number in any::<f64>(), text in ".*") {
            for value in [json!(number), json!(text), json!([text]), json!({"x": text})] {
                let config = config(json!({"k": value, "text_config": text}));
                let _ = (config.usize("k"), config.f32("k"), config.bool_or("k", true));
                let _ = (config.str("k"), config.str_list("k"), config.usize_list("k"));
                let _ = (config.rope_f32("k"), config.rope_str("k"));
            }
        }
    }
}
