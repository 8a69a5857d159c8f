//! The tensors of a golden checkpoint, as floats.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::Source;

/// Tensors by their canonical names.
pub(crate) type Tensors = BTreeMap<String, Floats>;

/// A tensor.
#[derive(Clone)]
pub(crate) struct Floats {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

const PREFIXES: [&str; 4] =
    ["model.language_model.", "language_model.model.", "language_model.", "model."];

/// What a text does not need.
const ASIDE: [&str; 7] =
    ["visual.", "vision_tower.", "mm_projector.", "mtp", "mlp1.", "vision_model.", "model.visual."];

/// A table of experts of tokens: other integers of 64 bits follow from the config.
pub(super) const TABLE: &str = ".tid2eid";

pub(super) fn read(folder: &Path) -> Source {
    let config = fs::read(folder.join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let n_layers = text(&config)["num_hidden_layers"].as_u64().unwrap();
    let mut tensors = Tensors::new();
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let name = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(&name);
        let layer = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next());
        let is_past = layer.is_some_and(|layer| layer.parse::<u64>().unwrap() >= n_layers);
        let is_aside = ASIDE.iter().any(|part| name.starts_with(part));
        let is_needed = view.dtype() != Dtype::I64 || name.ends_with(TABLE);
        if !is_past && !is_aside && is_needed {
            tensors.insert(name.to_owned(), floats(&view));
        }
    }
    Source { config, tensors }
}

/// The config of the language model.
pub(super) fn text(config: &Value) -> &Value {
    config.get("text_config").unwrap_or(config)
}

fn floats(view: &TensorView<'_>) -> Floats {
    let bytes = view.data();
    let values = match view.dtype() {
        Dtype::F32 => {
            bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
        }
        Dtype::BF16 => {
            let wide = |half: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16);
            bytes.as_chunks::<2>().0.iter().map(wide).collect()
        }
        Dtype::I64 => {
            bytes.as_chunks::<8>().0.iter().map(|word| i64::from_le_bytes(*word) as f32).collect()
        }
        other => panic!("{other:?}"),
    };
    Floats { shape: view.shape().to_vec(), values }
}

impl Source {
    /// Leaves the embeddings of n-grams to the first of the layers that have them; whether there were
    /// more.
    pub(super) fn with_one_table(&mut self) -> bool {
        let text = match self.config.get_mut("text_config") {
            Some(text) => text,
            None => return false,
        };
        let Some(layers) = text.get_mut("ple_layer_ids").and_then(Value::as_array_mut) else {
            return false;
        };
        layers.truncate(1);
        let kept = format!("layers.{}.ple.", layers[0].as_u64().unwrap() - 1);
        self.tensors.retain(|name, _| !name.contains(".ple.") || name.starts_with(&kept));
        true
    }

    /// Writes the checkpoint: the published files, or where it `differs` from these, what is left.
    pub(super) fn write(&self, from: &Path, to: &Path, differs: bool) {
        if !differs {
            for entry in fs::read_dir(from).unwrap() {
                let path = entry.unwrap().path();
                fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
            }
            return;
        }
        fs::write(to.join("config.json"), self.config.to_string()).unwrap();
        let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|(name, tensor)| {
                let bytes = tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect();
                (name.clone(), tensor.shape.clone(), bytes)
            })
            .collect();
        let views = bytes.iter().map(|(name, shape, bytes)| {
            (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        });
        fs::write(to.join("model.safetensors"), safetensors::serialize(views, None).unwrap())
            .unwrap();
    }
}

impl Floats {
    /// The rows from one to another.
    pub(super) fn rows(&self, first: usize, n: usize) -> Floats {
        let cols: usize = self.shape[1..].iter().product();
        let values = self.values[first * cols..(first + n) * cols].to_vec();
        let shape = [&[n], &self.shape[1..]].concat();
        Floats { shape, values }
    }

    /// Several tensors of one shape as one with one more dimension.
    pub(super) fn stack(all: &[Floats]) -> Floats {
        let shape = [&[all.len()], &all[0].shape[..]].concat();
        Floats { shape, values: all.iter().flat_map(|part| part.values.clone()).collect() }
    }

    /// The rows of several tensors, one after another.
    pub(super) fn joined(all: &[Floats]) -> Floats {
        let rows = all.iter().map(|part| part.shape[0]).sum();
        let shape = [&[rows], &all[0].shape[1..]].concat();
        Floats { shape, values: all.iter().flat_map(|part| part.values.clone()).collect() }
    }

    /// The matrices of a stack, or one matrix, the other way round.
    pub(super) fn transposed(&self) -> Floats {
        let [.., rows, cols] = self.shape[..] else { panic!("a matrix") };
        let mut shape = self.shape.clone();
        let n = shape.len();
        shape.swap(n - 2, n - 1);
        let matrices = self.values.chunks_exact(rows * cols);
        let values = matrices
            .flat_map(|matrix| (0..cols * rows).map(move |i| matrix[i % rows * cols + i / rows]));
        Floats { values: values.collect(), shape }
    }

    /// The rows in another order: row `i` of the result is row `order(i)`.
    pub(super) fn reordered(&self, order: impl Fn(usize) -> usize) -> Floats {
        let rows: Vec<Floats> = (0..self.shape[0]).map(|i| self.rows(order(i), 1)).collect();
        Floats::joined(&rows)
    }

    pub(super) fn map(mut self, change: impl Fn(f32) -> f32) -> Floats {
        self.values.iter_mut().for_each(|value| *value = change(*value));
        self
    }
}
