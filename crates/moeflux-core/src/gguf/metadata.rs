//! The keys of a GGUF file, with typed access. All values are untrusted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::checkpoint::FormatError;

/// A value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer of any width and sign.
    Integer(i128),
    /// `f32` or `f64`.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// UTF-8 text.
    Text(String),
    /// Values of one type.
    Array(Array),
}

/// Values of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Integers of any width and sign.
    Integers(Vec<i64>),
    /// `f32` or `f64`.
    Floats(Vec<f64>),
    /// Booleans.
    Bools(Vec<bool>),
    /// UTF-8 texts.
    Texts(Vec<String>),
}

/// All keys of a GGUF file, or of the first part of a split set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Array {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Array::Integers(all) => all.len(),
            Array::Floats(all) => all.len(),
            Array::Bools(all) => all.len(),
            Array::Texts(all) => all.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Metadata {
    /// The keys of the file at `path`, which errors name.
    pub fn new(path: &Path, values: BTreeMap<String, Value>) -> Metadata {
        Metadata { path: path.to_path_buf(), values }
    }

    /// The file that holds the keys.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All keys and values, by key.
    pub fn values(&self) -> &BTreeMap<String, Value> {
        &self.values
    }

    /// The value of a key, of whatever type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A text; `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn text(&self, key: &str) -> Result<Option<&str>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.refuse(key, other, "be a text")),
        }
    }

    /// A whole number of at least 0; `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type, is negative or too large.
    pub fn number(&self, key: &str) -> Result<Option<usize>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = match value {
            Value::Integer(number) => usize::try_from(*number).ok(),
            _ => None,
        };
        let rule = "be a whole number of at least 0";
        number.map(Some).ok_or_else(|| self.refuse(key, value, rule))
    }

    /// A finite number; `None` if the key is absent. Integers count as well.
    ///
    /// # Errors
    /// If the value has another type or is not finite.
    pub fn float(&self, key: &str) -> Result<Option<f64>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = match value {
            Value::Float(number) => Some(*number),
            Value::Integer(number) => Some(*number as f64),
            _ => None,
        };
        let number = number.filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.refuse(key, value, "be a finite number"))
    }

    /// A boolean; `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(self.refuse(key, other, "be a boolean")),
        }
    }

    /// A list of texts; `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Texts(all))) => Ok(Some(all)),
            Some(Value::Array(all)) if all.is_empty() => Ok(Some(&[])),
            Some(other) => Err(self.refuse(key, other, "be a list of texts")),
        }
    }

    /// A list of whole numbers; `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn integers(&self, key: &str) -> Result<Option<&[i64]>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Integers(all))) => Ok(Some(all)),
            Some(Value::Array(all)) if all.is_empty() => Ok(Some(&[])),
            Some(other) => Err(self.refuse(key, other, "be a list of whole numbers")),
        }
    }

    /// A list of floats; `None` if the key is absent.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn floats(&self, key: &str) -> Result<Option<&[f64]>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Floats(all))) => Ok(Some(all)),
            Some(Value::Array(all)) if all.is_empty() => Ok(Some(&[])),
            Some(other) => Err(self.refuse(key, other, "be a list of numbers")),
        }
    }

    /// The error for a key that is absent and needed.
    pub fn missing(&self, key: &str, rule: &str) -> FormatError {
        let (path, key, rule) = (self.path.clone(), key.to_owned(), rule.to_owned());
        FormatError::ConfigMissing { path, key, rule }
    }

    /// The error for a value that cannot be right; `rule` says what it must be.
    pub fn refuse(&self, key: &str, value: &Value, rule: &str) -> FormatError {
        FormatError::ConfigValue {
            path: self.path.clone(),
            key: key.to_owned(),
            value: value.shown(),
            rule: rule.to_owned(),
        }
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Value {
        Value::Integer(number as i128)
    }
}

impl Value {
    /// The value in a message, shortened.
    pub fn shown(&self) -> String {
        const MOST: usize = 60;
        match self {
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Bool(value) => value.to_string(),
            Value::Text(text) if text.chars().count() > MOST => {
                format!("{:?}…", text.chars().take(MOST).collect::<String>())
            }
            Value::Text(text) => format!("{text:?}"),
            Value::Array(all) => format!("a list of {}", all.len()),
        }
    }
}
