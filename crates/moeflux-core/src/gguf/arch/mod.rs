//! Architectures of GGUF files in the terms of the families that run them: their keys as those of
//! a `config.json`, their tensors under canonical names.
//!
//! An architecture is one line of [`ARCHITECTURES`]: tables of names, and a function that reads its
//! keys. The files hold what llama.cpp's converter makes of a checkpoint. What it changes is undone
//! where that is exact and possible on quantised rows; else a key of the config says how the
//! weights are stored, and the family computes with them as they are.

mod delta;
mod gemma;
mod grouped;
mod keys;
mod latent;
mod names;
mod rope;
mod routing;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::set::GgufSet;
use crate::checkpoint::{DenseModel, FileReader, FormatError};

use self::keys::Keys;
pub(crate) use self::names::NamedTensor;
use self::names::{Names, Pair};

/// The key of the architecture's name.
const ARCHITECTURE_KEY: &str = "general.architecture";

/// How files of an architecture are read.
#[derive(Debug)]
struct Architecture {
    /// The value of `general.architecture`.
    name: &'static str,
    /// The `model_type` of the family that runs it.
    model_type: &'static str,
    config: WriteConfig,
    names: Names,
}

/// Writes the keys of the config that not all architectures have.
type WriteConfig = fn(&mut Keys<'_>) -> Result<(), FormatError>;

/// The names of DeepSeek's attention and experts.
const LATENT: &[&[Pair]] = &[names::LATENT, names::EXPERTS, names::SHARED_EXPERTS];

/// The names of DeepSeek's attention, experts, and indexers, which choose positions.
const INDEXED: &[&[Pair]] = &[names::LATENT, names::INDEXER, names::EXPERTS, names::SHARED_EXPERTS];

/// The names of GLM-4.5.
const GLM: &[&[Pair]] = &[names::GROUPED, names::POST_NORM, names::EXPERTS, names::SHARED_EXPERTS];

/// The names of Gemma 4.
const GEMMA: &[&[Pair]] = &[names::GROUPED, names::POST_NORM, names::GEMMA];

/// The names of gpt-oss.
const GPT_OSS: &[&[Pair]] = &[names::GROUPED, names::POST_NORM, names::GPT_OSS_EXPERTS];

/// The names of Granite.
const GRANITE: &[&[Pair]] = &[names::GROUPED, names::GRANITE_ROUTER, names::SPARSE_EXPERTS];

/// The names of Mixtral and MiniMax-M2.
const SPARSE: &[&[Pair]] = &[names::GROUPED, names::SPARSE_EXPERTS];

/// The names of Qwen3 and OLMoE.
const QWEN: &[&[Pair]] = &[names::GROUPED, names::EXPERTS];

/// The names of Qwen's architectures with delta nets.
const QWEN_HYBRID: &[&[Pair]] =
    &[names::GROUPED, names::POST_NORM, names::EXPERTS, names::SHARED_EXPERT];

const fn architecture(
    name: &'static str,
    model_type: &'static str,
    config: WriteConfig,
    names: Names,
) -> Architecture {
    Architecture { name, model_type, config, names }
}

/// Every architecture that is read.
static ARCHITECTURES: &[Architecture] = &[
    architecture("deepseek2", "deepseek_v3", latent::deepseek2, Names::new(LATENT)),
    architecture("deepseek32", "deepseek_v32", latent::deepseek32, Names::new(INDEXED)),
    architecture("gemma4", "gemma4_text", gemma::gemma4, Names::new(GEMMA)),
    architecture("glm-dsa", "glm_moe_dsa", latent::glm_dsa, Names::new(INDEXED)),
    architecture("glm4moe", "glm4_moe", grouped::glm4moe, Names::new(GLM)),
    architecture("gpt-oss", "gpt_oss", grouped::gpt_oss, Names::new(GPT_OSS)),
    architecture("granitemoe", "granitemoe", grouped::granitemoe, Names::new(GRANITE)),
    architecture("llama", "mixtral", grouped::mixtral, Names::numbered(SPARSE)),
    architecture("minimax-m2", "minimax_m2", grouped::minimax_m2, Names::numbered(SPARSE)),
    architecture("olmoe", "olmoe", grouped::olmoe, Names::new(QWEN)),
    architecture("qwen35moe", "qwen3_5_moe_text", delta::qwen35moe, Names::qwen(QWEN_HYBRID)),
    architecture("qwen3moe", "qwen3_moe", grouped::qwen3moe, Names::new(QWEN)),
    architecture("qwen3next", "qwen3_next", delta::qwen3next, Names::qwen(QWEN_HYBRID)),
];

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

/// The name in files of a family's architecture; `model_types` are those of its configs.
pub fn architecture_of(model_types: &[&str]) -> Option<&'static str> {
    // Its converter writes it as DeepSeek's.
    let model_types = if model_types == ["glm4_moe_lite"] { &["deepseek_v3"] } else { model_types };
    let is_of = |known: &&Architecture| model_types.contains(&known.model_type);
    ARCHITECTURES.iter().find(is_of).map(|known| known.name)
}

impl StoredNames {
    /// The names in files of an architecture with this many layers, those of multi-token prediction
    /// not counted; `None` if the architecture is not known.
    pub fn of(architecture: &str, n_layers: usize) -> Option<StoredNames> {
        let architecture = ARCHITECTURES.iter().find(|known| known.name == architecture)?;
        Some(StoredNames { architecture, n_layers })
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
pub(crate) fn translate(set: &GgufSet, reader: &FileReader) -> Result<Translated, FormatError> {
    let metadata = &set.metadata;
    let rule = "name the model's architecture";
    let name =
        metadata.text(ARCHITECTURE_KEY)?.ok_or_else(|| metadata.missing(ARCHITECTURE_KEY, rule))?;
    let n_experts = metadata.number(&format!("{name}.expert_count"))?.unwrap_or(0);
    if let Some(source) = DenseModel::of_architecture(name, n_experts) {
        return Err(FormatError::Dense { path: set.path().to_path_buf(), source });
    }
    let architecture = ARCHITECTURES.iter().find(|known| known.name == name).ok_or_else(|| {
        let known: Vec<&str> = ARCHITECTURES.iter().map(|known| known.name).collect();
        FormatError::UnknownArchitecture {
            path: set.path().to_path_buf(),
            name: name.to_owned(),
            known: known.join(", "),
        }
    })?;
    check_tensors(set)?;
    let mut keys = Keys::new(set, architecture.name)?;
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
