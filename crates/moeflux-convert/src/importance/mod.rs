//! The importance file: safetensors with six tensors a layer.

mod samples;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use moeflux_core::checkpoint::{
    Dtype, Extent, FileReader, FormatError, PackedLayer, open_safetensors,
};
use moeflux_core::quant::{ErrorFeedback, Float};

use crate::error::PackError;
use crate::files::checksum_of;

pub(crate) use samples::{STORED, Samples};

/// The value of `format`.
pub(crate) const FORMAT: &str = "moeflux-importance";

/// The version that this program writes and reads.
pub(crate) const VERSION: &str = "2";

/// Rows that what is known of a layer counts as, where an expert is judged: one
/// that fewer rows chose is taken to be more like the others than like what
/// those few showed.
const PRIOR_ROWS: f64 = 16.0;

/// No column matters less than this share of the mean: the text was not all
/// that the model will ever see.
const LEAST_SHARE: f32 = 0.02;

/// Second moments of a layer's inputs at most: of more columns than any model
/// has, so that a small file cannot ask for much memory.
const MAX_MOMENTS: usize = 64 << 20;

/// How much the columns of the experts' matrices matter.
///
/// Whatever is opened is untrusted: shapes are checked against the model
/// before anything is used, values when they are read.
#[derive(Debug)]
pub struct Importance {
    path: PathBuf,
    reader: FileReader,
    checksum: String,
    model: String,
    /// By layer.
    layers: BTreeMap<usize, LayerTensors>,
}

/// Where the figures of a layer lie.
#[derive(Clone, Copy, Debug)]
struct LayerTensors {
    n_experts: usize,
    hidden: usize,
    intermediate: usize,
    rows: Extent,
    top_k: usize,
    input: Extent,
    inner: Extent,
    samples: Extent,
    experts: Extent,
    weights: Extent,
}

/// The figures of a layer.
#[derive(Debug)]
pub(crate) struct LayerImportance {
    hidden: usize,
    intermediate: usize,
    /// Rows that chose each expert.
    rows: Vec<u32>,
    /// `(n_experts, hidden)`: mean squares of what gate and up multiply.
    input: Vec<f32>,
    /// `(n_experts, intermediate)`: mean squares of what down multiplies.
    inner: Vec<f32>,
    samples: Samples,
    /// How the columns of gate and up depend on each other, over all experts.
    pooled: Vec<f32>,
}

impl Importance {
    /// Opens an importance file.
    ///
    /// # Errors
    /// Where it is none, or contradicts itself.
    pub fn open(path: &Path) -> Result<Importance, PackError> {
        let (file, header) = open_safetensors(path)?;
        let fail = |what: String| FormatError::Malformed { path: path.to_path_buf(), what };
        let fact = |key: &str| header.metadata.get(key).map_or("", String::as_str);
        if fact("format") != FORMAT {
            let what = "is no importance file; `moeflux calibrate` writes them";
            return Err(fail(what.to_owned()).into());
        }
        if fact("version") != VERSION {
            let version = fact("version");
            let what =
                format!("importance version {version:?}; this program reads 2: calibrate again");
            return Err(FormatError::Unsupported { path: path.to_path_buf(), what }.into());
        }
        let mut parts: BTreeMap<usize, BTreeMap<&str, _>> = BTreeMap::new();
        for tensor in &header.tensors {
            let misplaced = || fail(format!("tensor {:?} is not part of it", tensor.stored_name));
            let name = tensor.stored_name.strip_prefix("layers.").ok_or_else(misplaced)?;
            let (layer, part) = name.split_once('.').ok_or_else(misplaced)?;
            let layer: usize =
                layer.parse().ok().filter(|number| *number < 1000).ok_or_else(misplaced)?;
            parts.entry(layer).or_default().insert(part, tensor);
        }
        let mut layers = BTreeMap::new();
        for (layer, parts) in parts {
            let wrong = |what: &str| fail(format!("layer {layer}: {what}"));
            let get = |name: &str, dtype: Dtype| {
                let tensor = parts.get(name).filter(|part| part.dtype == dtype);
                tensor.ok_or_else(|| wrong(&format!("{name} is missing, or no {}", dtype.name())))
            };
            let rows = get("rows", Dtype::U32)?;
            let floats = Dtype::Float(Float::F32);
            let (input, inner) = (get("input", floats.clone())?, get("inner", floats.clone())?);
            let (experts, weights) = (get("experts", Dtype::U32)?, get("weights", floats)?);
            let samples = get("samples", Dtype::Float(STORED))?;
            let shapes = (&rows.shape[..], &input.shape[..], &inner.shape[..]);
            let (&[n_experts], &[a, hidden], &[b, intermediate]) = shapes else {
                return Err(wrong("shapes that are not (experts), (experts, columns)").into());
            };
            let shapes = (&samples.shape[..], &experts.shape[..], &weights.shape[..]);
            let (&[n_samples, width], &[c, top_k], &[d, e]) = shapes else {
                return Err(wrong("shapes that are not (samples, columns)").into());
            };
            let belong = parts.len() == 6
                && (a, b) == (n_experts, n_experts)
                && (c, d, e, width) == (n_samples, n_samples, top_k, hidden)
                && n_experts > 0
                && hidden > 0
                && top_k > 0
                && ErrorFeedback::n_moments(hidden).is_some_and(|n| n <= MAX_MOMENTS);
            if !belong {
                return Err(wrong("parts that do not belong together").into());
            }
            let tensors = LayerTensors {
                n_experts,
                hidden,
                intermediate,
                top_k,
                rows: rows.extent,
                input: input.extent,
                inner: inner.extent,
                samples: samples.extent,
                experts: experts.extent,
                weights: weights.extent,
            };
            layers.insert(layer, tensors);
        }
        let (_, checksum) = checksum_of(path, &mut |_| {})?;
        let (model, reader) = (fact("model").to_owned(), FileReader::new(&[file]));
        Ok(Importance { path: path.to_path_buf(), reader, checksum, model, layers })
    }

    /// Tells this file from all others.
    pub(crate) fn checksum(&self) -> &str {
        &self.checksum
    }

    /// Refuses the file of another model than the one with this key and these layers.
    pub(crate) fn check<'a>(
        &self,
        key: &str,
        layers: impl Iterator<Item = (usize, &'a PackedLayer)>,
    ) -> Result<(), PackError> {
        let fail = |what: String| FormatError::Malformed { path: self.path.clone(), what };
        for (idx, packed) in layers {
            let want = (packed.n_experts, packed.hidden, packed.intermediate);
            let have = self.layers.get(&idx);
            let have = have.map(|have| (have.n_experts, have.hidden, have.intermediate));
            if have != Some(want) {
                let have = have.map_or(String::from("none"), |have| format!("{have:?}"));
                return Err(fail(format!(
                    "layer {idx} has experts {have}, the model {want:?}; calibrate this model"
                ))
                .into());
            }
        }
        if self.model != key {
            let what = "was made with another model of this shape; calibrate this model";
            return Err(fail(what.to_owned()).into());
        }
        Ok(())
    }

    /// The figures of a layer.
    ///
    /// # Errors
    /// Where the layer is missing, or a value is no mean of squares.
    pub(crate) fn layer(&self, idx: usize) -> Result<LayerImportance, PackError> {
        let fail = |what: String| FormatError::Malformed { path: self.path.clone(), what };
        let tensors = self.layers.get(&idx);
        let tensors = tensors.ok_or_else(|| fail(format!("layer {idx} is missing")))?;
        let squares = |extent: Extent| {
            let bytes = self.reader.read(extent)?;
            let mut values = vec![0.0; bytes.len() / size_of::<f32>()];
            Float::F32.decode(&bytes, &mut values);
            match values.iter().find(|value| !(value.is_finite() && **value >= 0.0)) {
                Some(odd) => Err(fail(format!("layer {idx} holds {odd}, no mean of squares"))),
                None => Ok(values),
            }
        };
        let integers = |extent: Extent| {
            let bytes = self.reader.read(extent)?;
            let integers = bytes.as_chunks::<4>().0.iter().map(|chunk| u32::from_le_bytes(*chunk));
            Ok::<Vec<u32>, FormatError>(integers.collect())
        };
        let LayerTensors { n_experts, hidden, intermediate, top_k, .. } = *tensors;
        let experts = integers(tensors.experts)?;
        if let Some(odd) = experts.iter().find(|expert| **expert as usize >= n_experts) {
            return Err(fail(format!("layer {idx} samples expert {odd} of {n_experts}")).into());
        }
        let weights = self.reader.read(tensors.weights)?;
        let mut counts = vec![0.0; experts.len()];
        Float::F32.decode(&weights, &mut counts);
        let inputs = self.reader.read(tensors.samples)?;
        let samples = Samples::new(hidden, top_k).kept(inputs, experts, counts);
        if !samples.is_finite() {
            return Err(fail(format!("layer {idx} has samples that are not finite")).into());
        }
        Ok(LayerImportance {
            hidden,
            intermediate,
            rows: integers(tensors.rows)?,
            input: squares(tensors.input)?,
            inner: squares(tensors.inner)?,
            pooled: samples.pooled(),
            samples,
        })
    }

    /// The layers that it has figures of.
    pub fn layers(&self) -> impl Iterator<Item = usize> + use<'_> {
        self.layers.keys().copied()
    }

    /// Reads every figure.
    ///
    /// # Errors
    /// Where one is not what it should be.
    pub fn verify(&self) -> Result<(), PackError> {
        self.layers().try_for_each(|idx| self.layer(idx).map(drop))
    }
}

impl LayerImportance {
    /// How the columns of an expert's gate and up depend on each other, where
    /// the samples say, and how much each column of its matrices matters.
    pub(crate) fn of_expert(&self, expert: usize) -> (Option<ErrorFeedback>, [Vec<f32>; 2]) {
        let n_rows = f64::from(self.rows[expert]);
        let share = n_rows / (n_rows + PRIOR_ROWS);
        // Columns of gate and up are the same for all experts; those of down are each
        // expert's own, and nothing is known of them but how large they are together.
        let prior = self.mean_input();
        let own = &self.input[expert * self.hidden..][..self.hidden];
        let input = own.iter().zip(&prior).map(|(own, prior)| blend(share, *own, *prior));
        let own = &self.inner[expert * self.intermediate..][..self.intermediate];
        let prior = mean(own);
        let inner = own.iter().map(|value| blend(share, *value, prior));
        let importance = [floored(input.collect()), floored(inner.collect())];
        (self.samples.of_expert(expert, &self.pooled), importance)
    }

    /// The mean over the experts, each counting as often as it was chosen.
    fn mean_input(&self) -> Vec<f32> {
        let mut sums = vec![0f64; self.hidden];
        for (rows, values) in self.rows.iter().zip(self.input.chunks_exact(self.hidden.max(1))) {
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += f64::from(*rows) * f64::from(*value);
            }
        }
        let n_rows = self.rows.iter().map(|row| f64::from(*row)).sum::<f64>().max(1.0);
        sums.into_iter().map(|sum| (sum / n_rows) as f32).collect()
    }
}

fn blend(share: f64, own: f32, prior: f32) -> f32 {
    (share * f64::from(own) + (1.0 - share) * f64::from(prior)) as f32
}

fn mean(values: &[f32]) -> f32 {
    (values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len().max(1) as f64) as f32
}

/// In units of their mean, and none below the least share of it; all the same
/// where nothing is known.
fn floored(mut values: Vec<f32>) -> Vec<f32> {
    let mean = mean(&values);
    for value in &mut values {
        *value = if mean > 0.0 { (*value / mean).max(LEAST_SHARE) } else { 1.0 };
    }
    values
}
