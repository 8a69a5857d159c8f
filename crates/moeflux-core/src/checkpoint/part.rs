//! A part of a model that has a GGUF file of its own, as a checkpoint: its tensors under other names, and
//! as other files have them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::derived::{DerivedTensors, Recipe, Turned};
use super::names::SkipRule;
use super::opened::{ExpertFiles, FileNames, Gguf, by_name, reader_of};
use super::quantization::QuantRules;
use super::{Checkpoint, CheckpointKind, Config, Dtype, Extent, FormatError, Tensor};
use crate::gguf::{NamedTensor, PartFile};
use crate::quant::Float;

/// A tensor of a part, and those of the file that it is made of.
#[derive(Clone, Debug)]
pub struct PartTensor {
    /// Its canonical name.
    pub name: String,
    /// Tensors of the file, whose bytes follow one another. There is at least one.
    pub from: Vec<Tensor>,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Which bytes change places.
    pub turned: Option<Turned>,
    /// Whether blocks become floats.
    pub is_decoded: bool,
}

/// What a part says of itself in the words of a `config.json`.
#[derive(Clone, Debug)]
pub struct PartConfig {
    /// The config.
    pub values: Value,
    /// What the file calls its keys.
    pub stored_keys: BTreeMap<String, String>,
    /// What the file calls a tensor, by its canonical name.
    pub stored_name: fn(&str) -> Option<String>,
}

impl PartTensor {
    /// A tensor as the file has it, under another name.
    pub fn renamed(name: String, tensor: &Tensor) -> PartTensor {
        let (from, shape) = (vec![tensor.clone()], tensor.shape.clone());
        PartTensor { name, from, shape, turned: None, is_decoded: false }
    }

    /// Tensors of one type that lie one behind the other.
    pub fn joined(name: String, from: Vec<Tensor>, shape: Vec<usize>) -> PartTensor {
        PartTensor { name, from, shape, turned: None, is_decoded: false }
    }

    /// The same with its blocks, where it has some, as floats.
    #[must_use]
    pub fn decoded(self) -> PartTensor {
        PartTensor { is_decoded: true, ..self }
    }

    /// The same with bytes in other places.
    #[must_use]
    pub fn turned(self, turned: Turned) -> PartTensor {
        PartTensor { turned: Some(turned), ..self }
    }

    /// The tensor, whose bytes are computed where the file does not have them so.
    fn computed(self, derived: &DerivedTensors) -> Result<NamedTensor, String> {
        let first = self.from[0].clone();
        let PartTensor { name, from, shape, turned, is_decoded } = self;
        let inputs: Vec<Extent> = from.iter().map(|tensor| tensor.extent).collect();
        let n_bytes = inputs.iter().try_fold(0usize, |n, extent| n.checked_add(extent.len));
        let n_bytes = n_bytes.ok_or_else(|| format!("{}: too many bytes", first.stored_name))?;
        if let Some(odd) = from.iter().find(|tensor| tensor.dtype != first.dtype) {
            let [one, other] = [&first, odd]
                .map(|tensor| format!("{} of {}", tensor.stored_name, tensor.dtype.name()));
            return Err(format!("{one} and {other}, which are one tensor and have two types"));
        }
        let added = |len, recipe| derived.add(&name, len, inputs.clone(), recipe);
        let (dtype, extent) = match (&first.dtype, turned) {
            (Dtype::Ggml(blocks), None) if is_decoded && inputs.len() == 1 => {
                let cols = first.shape.last().copied().unwrap_or(1);
                let len = first.shape.iter().product::<usize>() * Float::F32.bytes();
                let recipe = Recipe::Decoded { blocks: *blocks, cols };
                (Dtype::Float(Float::F32), added(len, recipe))
            }
            (_, None) if inputs.len() == 1 => (first.dtype.clone(), first.extent),
            (dtype, turned) => {
                let nothing = Turned { n: 0, rows: 1, cols: 1, run: 1 };
                let turned = turned.unwrap_or(nothing);
                if turned.n_bytes().is_none_or(|n| n > n_bytes) {
                    let Tensor { stored_name, shape, .. } = &first;
                    return Err(format!("{stored_name}: shape {shape:?} is too small"));
                }
                (dtype.clone(), added(n_bytes, Recipe::Turned(turned)))
            }
        };
        let stored_name = first.stored_name;
        Ok(NamedTensor { name, tensor: Tensor { stored_name, dtype, shape, extent } })
    }
}

/// The checkpoint of a part.
///
/// # Errors
/// If two tensors have one name, or tensors of several types become one.
pub fn open_part(
    part: PartFile,
    config: PartConfig,
    tensors: Vec<PartTensor>,
) -> Result<Checkpoint, FormatError> {
    let PartFile { file, metadata, .. } = part;
    let (root, files) = (file.path.clone(), vec![file]);
    let derived = Arc::new(DerivedTensors::new(&files));
    let named = tensors.into_iter().map(|tensor| {
        tensor.computed(&derived).map_err(|what| FormatError::malformed(&root, what))
    });
    let named = named.collect::<Result<Vec<_>, _>>()?;
    let PartConfig { values, stored_keys, stored_name } = config;
    Ok(Checkpoint {
        kind: CheckpointKind::Gguf,
        config: Config::from_value(&root, values)?.with_stored_keys(stored_keys),
        reader: reader_of(&files, &root, &derived),
        derived,
        tensors: by_name(named, &files)?,
        n_skipped: 0,
        other_parts: Vec::new(),
        warnings: Vec::new(),
        skip: SkipRule::default(),
        joined_experts: Vec::new(),
        companion_dirs: Vec::new(),
        container: None,
        rules: QuantRules::default(),
        expert_files: ExpertFiles::Tensors,
        gguf: Some(Gguf { metadata, names: FileNames::Part(stored_name) }),
        root,
        files,
    })
}
