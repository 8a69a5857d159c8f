//! A model's `config.json`, read with suspicion: every getter names the file,
//! the key, the value and what is accepted.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::FormatError;

/// A config. Keys are looked up in `text_config` first, then in the root; a
/// `null` counts as absent.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    path: PathBuf,
    root: Value,
}

/// Objects that hold the keys of rotary embeddings, newest first.
const ROPE_OBJECTS: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// The largest believable value of a key; other keys may reach
/// [`MAX_ANY`].
const CAPS: &[(&str, usize)] = &[
    ("num_hidden_layers", 1000),
    ("hidden_size", 1 << 17),
    ("vocab_size", 1 << 24),
    ("num_attention_heads", 4096),
    ("num_key_value_heads", 4096),
    ("head_dim", 1 << 14),
    ("linear_num_key_heads", 4096),
    ("linear_num_value_heads", 4096),
    // Four times what models have; kernels keep a state's rows beside each other.
    ("linear_key_head_dim", 1 << 9),
    ("linear_value_head_dim", 1 << 14),
    ("linear_conv_kernel_dim", 64),
    ("num_experts", 65_535),
    ("num_local_experts", 65_535),
    ("n_routed_experts", 65_535),
    ("num_experts_per_tok", 1024),
    ("max_position_embeddings", 1 << 30),
];

const MAX_ANY: usize = 1 << 20;

const MAX_FLOAT: f64 = 1e12;

impl Config {
    /// Parses the text of a config; `path` is what errors name.
    ///
    /// # Errors
    /// Where it is not a JSON object.
    pub fn from_slice(path: &Path, bytes: &[u8]) -> Result<Config, FormatError> {
        let root = serde_json::from_slice(bytes).map_err(FormatError::json(path))?;
        Self::from_value(path, root)
    }

    /// Takes a config that is parsed already.
    ///
    /// # Errors
    /// Where it is not a JSON object.
    pub fn from_value(path: &Path, root: Value) -> Result<Config, FormatError> {
        if !root.is_object() {
            return Err(FormatError::malformed(path, "the config is not a JSON object"));
        }
        Ok(Config { path: path.to_path_buf(), root })
    }

    /// The file that errors name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All of it.
    pub fn value(&self) -> &Value {
        &self.root
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.scopes().find_map(|it| present(it, key))
    }

    /// The value of a key of rotary embeddings: in `rope_parameters`, in
    /// `rope_scaling`, or beside them as older configs have it.
    pub fn get_rope(&self, key: &str) -> Option<&Value> {
        let nested =
            |scope| ROPE_OBJECTS.iter().find_map(move |it| present(present(scope, it)?, key));
        self.scopes().find_map(nested).or_else(|| self.get(key))
    }

    fn scopes(&self) -> impl Iterator<Item = &Value> {
        let text = self.root.get("text_config").filter(|it| it.is_object());
        text.into_iter().chain([&self.root])
    }

    /// A whole number, at least 1 and believable.
    ///
    /// # Errors
    /// Where it is absent or anything else.
    pub fn usize(&self, key: &str) -> Result<usize, FormatError> {
        self.usize_in(key, 1..=cap(key))
    }

    /// As [`Config::usize`], with a default; a default of 0 allows 0.
    ///
    /// # Errors
    /// Where it is present and out of range.
    pub fn usize_or(&self, key: &str, default: usize) -> Result<usize, FormatError> {
        match self.get(key) {
            None => Ok(default),
            Some(_) => self.usize_in(key, default.min(1)..=cap(key)),
        }
    }

    /// A whole number of a range.
    ///
    /// # Errors
    /// Where it is absent or anything else.
    pub fn usize_in(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize, FormatError> {
        let rule = format!("be a whole number from {} to {}", range.start(), range.end());
        let value = self.require(key, &rule)?;
        let number = value.as_u64().and_then(|it| usize::try_from(it).ok());
        number.filter(|it| range.contains(it)).ok_or_else(|| self.refuse(key, &rule))
    }

    /// A finite number from 0.
    ///
    /// # Errors
    /// Where it is absent or anything else.
    pub fn f32(&self, key: &str) -> Result<f32, FormatError> {
        let value = self.require(key, FLOAT_RULE)?;
        float(value).ok_or_else(|| self.refuse(key, FLOAT_RULE))
    }

    /// As [`Config::f32`], with a default.
    ///
    /// # Errors
    /// Where it is present and anything else.
    pub fn f32_or(&self, key: &str, default: f32) -> Result<f32, FormatError> {
        self.get(key).map_or(Ok(default), |_| self.f32(key))
    }

    /// A number of the rotary embeddings, looked up as [`Config::get_rope`].
    ///
    /// # Errors
    /// Where it is present and not a finite number from 0.
    pub fn rope_f32(&self, key: &str) -> Result<Option<f32>, FormatError> {
        let Some(value) = self.get_rope(key) else { return Ok(None) };
        float(value).map(Some).ok_or_else(|| self.refuse(key, FLOAT_RULE))
    }

    /// A word of the rotary embeddings, looked up as [`Config::get_rope`];
    /// `rope_type` is also found under its old name `type`.
    ///
    /// # Errors
    /// Where it is present and not a string.
    pub fn rope_str(&self, key: &str) -> Result<Option<&str>, FormatError> {
        let old = (key == "rope_type").then_some("type");
        let nested = |key: &str| {
            let in_scope =
                |scope| ROPE_OBJECTS.iter().find_map(|it| present(present(scope, it)?, key));
            self.scopes().find_map(in_scope)
        };
        let value = nested(key).or_else(|| nested(old?)).or_else(|| self.get(key));
        let Some(value) = value else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.refuse(key, "be a string"))
    }

    /// A truth value.
    ///
    /// # Errors
    /// Where it is present and anything else.
    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool, FormatError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.refuse(key, "be true or false"))
    }

    /// Accepts the absence of a key, or `false`: for what a family does not
    /// implement.
    ///
    /// # Errors
    /// Where the key has another value.
    pub fn require_false(&self, key: &str) -> Result<(), FormatError> {
        if self.bool_or(key, false)? { Err(self.refuse(key, "be false")) } else { Ok(()) }
    }

    /// A string.
    ///
    /// # Errors
    /// Where it is absent or anything else.
    pub fn str(&self, key: &str) -> Result<&str, FormatError> {
        let value = self.require(key, "be a string")?;
        value.as_str().ok_or_else(|| self.refuse(key, "be a string"))
    }

    /// A list of strings, where there is one.
    ///
    /// # Errors
    /// Where it is anything else.
    pub fn str_list(&self, key: &str) -> Result<Option<Vec<&str>>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().and_then(|it| it.iter().map(Value::as_str).collect());
        list.map(Some).ok_or_else(|| self.refuse(key, "be a list of strings"))
    }

    /// A list of whole numbers, where there is one.
    ///
    /// # Errors
    /// Where it is anything else.
    pub fn usize_list(&self, key: &str) -> Result<Option<Vec<usize>>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = |it: &Value| it.as_u64().and_then(|it| usize::try_from(it).ok());
        let list = value.as_array().and_then(|it| it.iter().map(number).collect());
        list.map(Some).ok_or_else(|| self.refuse(key, "be a list of whole numbers"))
    }

    /// Accepts one value of a key, or its absence, and nothing else: for what
    /// a family does not implement. Looks among the rotary keys too.
    ///
    /// # Errors
    /// Where the key has another value.
    pub fn require_default(&self, key: &str, value: &str) -> Result<(), FormatError> {
        match self.rope_str(key)? {
            Some(have) if have != value => Err(self.refuse(key, &format!("be {value:?}"))),
            _ => Ok(()),
        }
    }

    /// The error for a value that breaks a rule; `rule` completes "it must".
    pub fn refuse(&self, key: &str, rule: &str) -> FormatError {
        let (path, key, rule) = (self.path.clone(), key.to_owned(), rule.to_owned());
        match self.get_rope(&key) {
            None => FormatError::ConfigMissing { path, key, rule },
            Some(value) => FormatError::ConfigValue { path, value: shortened(value), key, rule },
        }
    }

    fn require(&self, key: &str, rule: &str) -> Result<&Value, FormatError> {
        self.get(key).ok_or_else(|| FormatError::ConfigMissing {
            path: self.path.clone(),
            key: key.to_owned(),
            rule: rule.to_owned(),
        })
    }
}

const FLOAT_RULE: &str = "be a finite number from 0 to 1e12";

fn float(value: &Value) -> Option<f32> {
    let number = value.as_f64().filter(|it| (0.0..=MAX_FLOAT).contains(it))?;
    Some(number as f32)
}

fn present<'a>(scope: &'a Value, key: &str) -> Option<&'a Value> {
    scope.get(key).filter(|it| !it.is_null())
}

fn cap(key: &str) -> usize {
    CAPS.iter().find(|(it, _)| *it == key).map_or(MAX_ANY, |(_, cap)| *cap)
}

/// A value's text, cut to what a line can take.
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
    fn refuses_what_is_not_the_default() {
        let got = config(json!({"rope_scaling": {"type": "yarn"}, "hidden_act": "silu"}));
        assert!(got.require_default("rope_type", "default").is_err());
        assert!(got.require_default("hidden_act", "silu").is_ok());
        assert!(got.require_default("absent", "x").is_ok());
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
                let _ = (config.rope_f32("k"), config.require_default("k", "x"));
            }
        }
    }
}
