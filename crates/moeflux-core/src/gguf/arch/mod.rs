//! Architectures of GGUF files in the terms of the families that run them: their keys as those of
//! a `config.json`, their tensors under canonical names.
//!
//! An [`Architecture`] is what a family hands over: tables of names, and a function that reads its keys
//! with the help of these modules. The files hold what llama.cpp's converter makes of a checkpoint.
//! What it changes is undone where that is exact and possible on quantised rows; else a key of the
//! config says how the weights are stored, and the family computes with them as they are.

pub(crate) mod architecture;
pub mod delta;
pub mod grouped;
pub mod keys;
pub mod kimi_delta;
pub mod latent;
pub mod mixed_streams;
pub mod names;
pub mod rope;
pub mod routing;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::set::GgufSet;
use crate::checkpoint::{DenseModel, FileReader, FormatError};

pub use self::architecture::{Architecture, IsMeant, WriteConfig};
use self::keys::Keys;
pub(crate) use self::names::NamedTensor;

/// The key of the architecture's name.
const ARCHITECTURE_KEY: &str = "general.architecture";

/// A model in the terms of the family that runs it.
pub(crate) struct Translated {
    /// The keys that the family reads in its `config.json`.
    pub(crate) config: Value,
    /// The keys of the file that keys of the config come from.
    pub(crate) stored_keys: BTreeMap<String, String>,
    /// The tensors.
    pub(crate) tensors: Vec<NamedTensor>,
    /// Number of tensors that no computation needs.
    pub(crate) n_skipped: usize,
    /// The names of tensors in the file.
    pub(crate) stored_names: StoredNames,
}

/// Translates canonical names of tensors into those of files.
#[derive(Clone, Copy, Debug)]
pub struct StoredNames {
    architecture: &'static Architecture,
    n_layers: usize,
}

impl StoredNames {
    /// The names in files of an architecture with this many layers, those of multi-token prediction
    /// not counted.
    pub fn of(architecture: &'static Architecture, n_layers: usize) -> StoredNames {
        StoredNames { architecture, n_layers }
    }

    /// The name that the file would have for a tensor; `None` if it has no such tensor.
    pub fn stored(&self, canonical: &str) -> Option<String> {
        self.architecture.names.stored(canonical, self.n_layers)
    }
}

/// Translates the keys and the names of a model. `reader` reads its files.
///
/// # Errors
/// If the architecture is not known, a key is missing or has a value that it cannot have, or a
/// tensor has data that is not computed with.
pub(crate) fn translate(
    set: &GgufSet,
    reader: &FileReader,
    architectures: &[&'static Architecture],
) -> Result<Translated, FormatError> {
    let metadata = &set.metadata;
    let rule = "name the model's architecture";
    let name =
        metadata.text(ARCHITECTURE_KEY)?.ok_or_else(|| metadata.missing(ARCHITECTURE_KEY, rule))?;
    let n_experts = metadata.number(&format!("{name}.expert_count"))?.unwrap_or(0);
    let known: Vec<&Architecture> =
        architectures.iter().copied().filter(|known| known.is_called(name)).collect();
    let may_be_dense = known.iter().any(|known| known.may_be_dense);
    if let Some(source) = DenseModel::of_architecture(name, n_experts, may_be_dense) {
        return Err(FormatError::Dense { path: set.path().to_path_buf(), source });
    }
    if known.is_empty() {
        let mut known: Vec<&str> = architectures.iter().map(|known| known.name).collect();
        known.dedup();
        return Err(FormatError::UnknownArchitecture {
            path: set.path().to_path_buf(),
            name: name.to_owned(),
            known: known.join(", "),
        });
    }
    check_tensors(set)?;
    let mut keys = Keys::new(set, name)?;
    let architecture = meant(&known, &keys)?;
    keys.put("model_type", architecture.model_type.into());
    keys::common(&mut keys)?;
    (architecture.config)(&mut keys)?;
    rope::divisors(&mut keys, set, reader)?;
    let n_layers = keys.n_layers;
    let (config, stored_keys): (Map<String, Value>, _) = keys.finish();
    let named = architecture.names.apply(set, n_layers, &config)?;
    Ok(Translated {
        config: Value::Object(config),
        stored_keys,
        tensors: named.tensors,
        n_skipped: named.n_skipped,
        stored_names: StoredNames { architecture, n_layers },
    })
}

/// The one of several architectures of one name that a file is of. There is at least one.
fn meant(
    known: &[&'static Architecture],
    keys: &Keys<'_>,
) -> Result<&'static Architecture, FormatError> {
    for architecture in known {
        let Some(is_meant) = architecture.is_meant else { continue };
        if is_meant(keys)? {
            return Ok(architecture);
        }
    }
    let rest = known.iter().find(|known| known.is_meant.is_none());
    Ok(rest.unwrap_or(&known[0]))
}

/// Refuses files without the layers of a model.
fn check_tensors(set: &GgufSet) -> Result<(), FormatError> {
    let blocks: BTreeSet<&str> = set
        .tensors
        .iter()
        .filter_map(|tensor| tensor.stored_name.strip_prefix("blk."))
        .filter_map(|rest| rest.split('.').next())
        .collect();
    if blocks.contains("0") {
        return Ok(());
    }
    let what = match blocks.first() {
        Some(first) => format!(
            "no tensor of blk.0, only from blk.{first} on: layers for multi-token prediction are \
             no model; name the model's file"
        ),
        None => "no tensor of blk.0: there are no layers".to_owned(),
    };
    Err(FormatError::malformed(set.path(), what))
}
