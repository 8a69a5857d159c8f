//! Reads the keys of an architecture, and collects those of the config.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::checkpoint::{FormatError, Tensor};
use crate::gguf::metadata::{self, Array, Metadata};
use crate::gguf::set::GgufSet;

/// The largest number of layers, those of multi-token prediction included.
const MAX_BLOCKS: usize = 1000;

/// The keys of a file, and what the config gets from them.
pub struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
    tensors: BTreeMap<&'a str, &'a Tensor>,
    /// Layers, those of multi-token prediction included.
    pub n_blocks: usize,
    /// Layers without those of multi-token prediction.
    pub n_layers: usize,
    config: Map<String, Value>,
    /// The keys of the file, by those of the config.
    stored: BTreeMap<String, String>,
}

/// A key that the config takes over.
#[derive(Clone, Copy)]
pub struct Copied {
    /// The key of the config.
    to: &'static str,
    /// The key of the file, without the architecture.
    from: &'static str,
    kind: Kind,
    absent: Absent,
}

#[derive(Clone, Copy)]
enum Kind {
    /// A whole number, or a list of equal ones.
    Number,
    Float,
}

/// What an absent key means.
#[derive(Clone, Copy)]
enum Absent {
    Refused,
    Number(usize),
    Float(f64),
}

/// A whole number that a file must have.
pub const fn number(to: &'static str, from: &'static str) -> Copied {
    Copied { to, from, kind: Kind::Number, absent: Absent::Refused }
}

/// A whole number, with what its absence means.
pub const fn number_or(to: &'static str, from: &'static str, absent: usize) -> Copied {
    Copied { to, from, kind: Kind::Number, absent: Absent::Number(absent) }
}

/// A number that a file must have.
const fn float(to: &'static str, from: &'static str) -> Copied {
    Copied { to, from, kind: Kind::Float, absent: Absent::Refused }
}

/// A number, with what its absence means.
const fn float_or(to: &'static str, from: &'static str, absent: f64) -> Copied {
    Copied { to, from, kind: Kind::Float, absent: Absent::Float(absent) }
}

/// The keys that all architectures have.
const COMMON: &[Copied] = &[
    number("hidden_size", "embedding_length"),
    number("max_position_embeddings", "context_length"),
    number("num_attention_heads", "attention.head_count"),
    number("num_experts_per_tok", "expert_used_count"),
    float_or("rope_theta", "rope.freq_base", 10000.0),
];

/// Writes what the configs of all families have.
pub(super) fn common(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    keys.copy(COMMON)?;
    keys.copy_epsilon("rms_norm_eps")?;
    let n_layers = keys.n_layers;
    keys.put_from("num_hidden_layers", "block_count", json!(n_layers));
    keys.put_from("num_nextn_predict_layers", NEXTN, json!(keys.n_blocks - n_layers));
    let vocab = keys.vocab()?;
    keys.put("vocab_size", json!(vocab));
    keys.put("tie_word_embeddings", json!(!keys.has("output.weight")));
    Ok(())
}

/// The key of the number of layers for multi-token prediction.
const NEXTN: &str = "nextn_predict_layers";

impl<'a> Keys<'a> {
    /// The keys of a model of this architecture.
    pub(super) fn new(set: &'a GgufSet, architecture: &'a str) -> Result<Keys<'a>, FormatError> {
        let tensors = set.tensors.iter().map(|tensor| (tensor.stored_name.as_str(), tensor));
        let mut keys = Keys {
            metadata: &set.metadata,
            architecture,
            tensors: tensors.collect(),
            n_blocks: 0,
            n_layers: 0,
            config: Map::new(),
            stored: BTreeMap::new(),
        };
        let n_blocks = keys.required("block_count")?;
        if !(1..=MAX_BLOCKS).contains(&n_blocks) {
            let rule = format!("be a whole number from 1 to {MAX_BLOCKS}");
            return Err(keys.refuse("block_count", &rule));
        }
        let n_nextn = keys.number(NEXTN)?.unwrap_or(0);
        if n_nextn >= n_blocks {
            let rule = format!("be below {}, which is {n_blocks}", keys.key("block_count"));
            return Err(keys.refuse(NEXTN, &rule));
        }
        keys.n_blocks = n_blocks;
        keys.n_layers = n_blocks - n_nextn;
        Ok(keys)
    }

    /// The keys of the config, and the keys of the file that they come from.
    pub(super) fn finish(self) -> (Map<String, Value>, BTreeMap<String, String>) {
        (self.config, self.stored)
    }

    /// The whole name of a key of the file.
    pub fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    /// The error for a value of the file; `rule` continues "it must".
    pub fn refuse(&self, suffix: &str, rule: &str) -> FormatError {
        let key = self.key(suffix);
        match self.metadata.get(&key) {
            Some(value) => self.metadata.refuse(&key, value, rule),
            None => self.metadata.missing(&key, rule),
        }
    }

    /// Whether the file has a key.
    pub fn holds(&self, suffix: &str) -> bool {
        self.metadata.get(&self.key(suffix)).is_some()
    }

    /// A whole number. Where the file has one for each layer, they must be equal.
    pub fn number(&self, suffix: &str) -> Result<Option<usize>, FormatError> {
        let key = self.key(suffix);
        if !matches!(self.metadata.get(&key), Some(metadata::Value::Array(_))) {
            return self.metadata.number(&key);
        }
        let all = self.numbers(suffix)?.unwrap_or_default();
        let first = all.first().copied();
        if all.iter().all(|number| Some(*number) == first) {
            Ok(first)
        } else {
            Err(self.refuse(suffix, "hold equal numbers for all layers"))
        }
    }

    /// One number for each layer; `None` if the file has no list.
    pub fn numbers(&self, suffix: &str) -> Result<Option<Vec<usize>>, FormatError> {
        let key = self.key(suffix);
        let Some(metadata::Value::Array(_)) = self.metadata.get(&key) else { return Ok(None) };
        let all = self.metadata.integers(&key)?.unwrap_or_default();
        let all: Option<Vec<usize>> = all.iter().map(|n| usize::try_from(*n).ok()).collect();
        let all = all.ok_or_else(|| self.refuse(suffix, "hold whole numbers of at least 0"))?;
        Ok(Some(self.of_layers(suffix, all)?))
    }

    /// One boolean for each layer; `None` if the file has no list.
    pub fn bools(&self, suffix: &str) -> Result<Option<Vec<bool>>, FormatError> {
        let all = match self.metadata.get(&self.key(suffix)) {
            Some(metadata::Value::Array(Array::Bools(all))) => all.clone(),
            Some(metadata::Value::Array(Array::Integers(all))) => {
                all.iter().map(|number| *number != 0).collect()
            }
            Some(metadata::Value::Array(_)) => {
                return Err(self.refuse(suffix, "be a list of booleans"));
            }
            _ => return Ok(None),
        };
        Ok(Some(self.of_layers(suffix, all)?))
    }

    /// The entries of the layers in a list that has one for every layer, with those of multi-token
    /// prediction or without.
    fn of_layers<T>(&self, suffix: &str, mut all: Vec<T>) -> Result<Vec<T>, FormatError> {
        if ![self.n_blocks, self.n_layers].contains(&all.len()) {
            let n = self.n_blocks;
            let rule = format!("have {n} entries, as many as {}", self.key("block_count"));
            return Err(self.refuse(suffix, &rule));
        }
        all.truncate(self.n_layers);
        Ok(all)
    }

    /// A whole number that layers without attention do not have: files with one for each layer have 0 for
    /// these.
    pub fn number_of_attention(&self, suffix: &str) -> Result<Option<usize>, FormatError> {
        let Some(all) = self.numbers(suffix)? else { return self.number(suffix) };
        let mut attending = all.into_iter().filter(|number| *number > 0);
        let first = attending.next();
        if attending.all(|number| Some(number) == first) {
            Ok(first)
        } else {
            Err(self.refuse(suffix, "hold equal numbers for all layers with attention"))
        }
    }

    /// A whole number that the file must have.
    pub fn required(&self, suffix: &str) -> Result<usize, FormatError> {
        let number = self.number(suffix)?;
        number.ok_or_else(|| self.refuse(suffix, "be a whole number"))
    }

    /// A finite number.
    pub fn float(&self, suffix: &str) -> Result<Option<f64>, FormatError> {
        Ok(self.metadata.float(&self.key(suffix))?.map(shortest))
    }

    /// A list of numbers, or one number for all.
    pub fn floats(&self, suffix: &str) -> Result<Option<Vec<f64>>, FormatError> {
        if let Ok(Some(number)) = self.float(suffix) {
            return Ok(Some(vec![number]));
        }
        let all = self.metadata.floats(&self.key(suffix))?;
        Ok(all.map(|all| all.iter().copied().map(shortest).collect()))
    }

    /// A boolean.
    pub fn bool(&self, suffix: &str) -> Result<Option<bool>, FormatError> {
        self.metadata.bool(&self.key(suffix))
    }

    /// A text.
    pub fn text(&self, suffix: &str) -> Result<Option<&'a str>, FormatError> {
        self.metadata.text(&self.key(suffix))
    }

    /// A list of whole numbers of any length.
    pub fn list(&self, suffix: &str) -> Result<Option<&'a [i64]>, FormatError> {
        self.metadata.integers(&self.key(suffix))
    }

    /// Writes a key of the config.
    pub fn put(&mut self, key: &str, value: Value) {
        self.config.insert(key.to_owned(), value);
    }

    /// Says which key of the file a key of the config comes from, for messages.
    pub fn name(&mut self, key: &str, suffix: &str) {
        self.stored.insert(key.to_owned(), self.key(suffix));
    }

    /// Writes a key of the config whose value is that of a key of the file.
    pub fn put_from(&mut self, key: &str, suffix: &str, value: Value) {
        self.name(key, suffix);
        self.put(key, value);
    }

    /// The value of the config's key so far.
    pub fn written(&self, key: &str) -> Option<&Value> {
        self.config.get(key)
    }

    /// Writes keys of the config that have the values of keys of the file.
    pub fn copy(&mut self, all: &[Copied]) -> Result<(), FormatError> {
        for Copied { to, from, kind, absent } in all {
            let value = match kind {
                Kind::Number => self.number(from)?.map(|number| json!(number)),
                Kind::Float => self.float(from)?.map(|number| json!(number)),
            };
            let value = match (value, absent) {
                (Some(value), _) => value,
                (None, Absent::Number(number)) => json!(number),
                (None, Absent::Float(number)) => json!(number),
                (None, Absent::Refused) => return Err(self.refuse(from, "be a number")),
            };
            self.put_from(to, from, value);
        }
        Ok(())
    }

    /// Writes the epsilon of norms. Files of configs that have one for all norms may have no key of RMS
    /// norms.
    ///
    /// # Errors
    /// If the file has neither key, or no number there.
    pub fn copy_epsilon(&mut self, to: &'static str) -> Result<(), FormatError> {
        let (of_rms, of_all) = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon");
        let is_plain = self.float(of_rms)?.is_none() && self.float(of_all)?.is_some();
        self.copy(&[float(to, if is_plain { of_all } else { of_rms })])
    }

    /// Whether the file has a tensor.
    pub fn has(&self, tensor: &str) -> bool {
        self.tensors.contains_key(tensor)
    }

    /// Whether a layer has a tensor that is called so.
    pub fn any_has(&self, part: &str) -> bool {
        (0..self.n_layers).any(|layer| self.has(&format!("blk.{layer}.{part}")))
    }

    /// The layers that have a tensor that is called so.
    pub fn layers_with(&self, part: &str) -> BTreeSet<usize> {
        (0..self.n_layers).filter(|layer| self.has(&format!("blk.{layer}.{part}"))).collect()
    }

    /// The columns of a matrix, or of matrices, in the first layer that has it.
    pub fn cols_of_first(&self, part: &str) -> Option<usize> {
        let layer = self.layers_with(part).first().copied()?;
        self.tensors.get(format!("blk.{layer}.{part}").as_str())?.shape.last().copied()
    }

    /// The number of tokens. llama.cpp computes with the rows that are there, whatever the key `vocab_size` says.
    pub fn vocab(&self) -> Result<usize, FormatError> {
        self.rows_of("token_embd.weight")
    }

    /// The rows of a matrix.
    pub fn rows_of(&self, tensor: &str) -> Result<usize, FormatError> {
        match self.tensors.get(tensor).map(|tensor| &tensor.shape[..]) {
            Some([rows, _]) => Ok(*rows),
            Some(shape) => {
                let what = format!("tensor {tensor} has shape {shape:?}, not rows and columns");
                Err(FormatError::malformed(self.metadata.path(), what))
            }
            None => Err(FormatError::TensorMissing {
                path: self.metadata.path().to_path_buf(),
                name: tensor.to_owned(),
            }),
        }
    }
}

/// The shortest decimal number that has the same value in single precision, if the number is one
/// of single precision: 0.1 rather than 0.10000000149.
fn shortest(number: f64) -> f64 {
    let single = number as f32;
    if f64::from(single) != number {
        return number;
    }
    single.to_string().parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_single_precision_become_what_was_meant() {
        assert_eq!(shortest(f64::from(0.1f32)), 0.1);
        assert_eq!(shortest(f64::from(1e-6f32)), 1e-6);
        assert_eq!(shortest(0.1), 0.1);
        assert_eq!(shortest(10000.0), 10000.0);
    }
}
