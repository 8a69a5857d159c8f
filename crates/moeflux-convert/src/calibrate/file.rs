//! The importance file: safetensors with six tensors a layer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use moeflux_core::checkpoint::{
    Checkpoint, Checksum, Dtype, Extent, FileReader, FormatError, open_safetensors,
};
use moeflux_core::manifest::Manifest;
use moeflux_core::quant::{Feedback, Float};

use super::observer::{ExpertSums, Moments};
use super::samples::{STORED, Samples};
use crate::pack::PackOptions;
use crate::pack::error::PackError;
use crate::pack::files::{FileWriter, TensorEntry, checksum_of, safetensors_header_with};
use crate::pack::plan::Plan;

/// The value of `format`.
const FORMAT: &str = "moeflux-importance";

/// The version that this program writes and reads.
const VERSION: &str = "2";

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
                && Feedback::n_moments(hidden).is_some_and(|n| n <= MAX_MOMENTS);
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

    /// Refuses the file of another model.
    pub(crate) fn check(&self, plan: &Plan<'_>) -> Result<(), PackError> {
        let fail = |what: String| FormatError::Malformed { path: self.path.clone(), what };
        // The optional layers are those of multi-token prediction: calibration does not run them.
        for layer in plan.layers.iter().flatten().filter(|layer| !layer.is_optional) {
            let packed = &layer.packed;
            let want = (packed.n_experts, packed.hidden, packed.intermediate);
            let have = self.layers.get(&layer.idx);
            let have = have.map(|have| (have.n_experts, have.hidden, have.intermediate));
            if have != Some(want) {
                let have = have.map_or(String::from("none"), |have| format!("{have:?}"));
                let idx = layer.idx;
                return Err(fail(format!(
                    "layer {idx} has experts {have}, the model {want:?}; calibrate this model"
                ))
                .into());
            }
        }
        if self.model != model_key(plan)? {
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
    pub(crate) fn of_expert(&self, expert: usize) -> (Option<Feedback>, [Vec<f32>; 2]) {
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

/// Tells a model from others of its shape, however its matrices are stored: a
/// hash of the tensors that every container keeps as they are.
fn model_key(plan: &Plan<'_>) -> Result<String, FormatError> {
    let mut checksum = Checksum::default();
    for (entry, source) in &plan.vectors {
        checksum.update(format!("{} {:?}\n", entry.name, entry.shape).as_bytes());
        let bytes = plan.reader.read(source.extent)?;
        let mut values = vec![0.0; bytes.len() / source.float.bytes()];
        source.float.decode(&bytes, &mut values);
        values.iter().for_each(|value| checksum.update(&value.to_le_bytes()));
    }
    Ok(checksum.hex())
}

/// Writes what was seen, whole or not at all.
pub(super) fn write(
    moments: &Moments,
    n_tokens: u64,
    checkpoint: &Checkpoint,
    manifest: &Manifest,
    out: &Path,
) -> Result<(), PackError> {
    let plan = Plan::new(checkpoint, manifest, &PackOptions::unquantised())?;
    let layers = moments.layers.iter().enumerate().filter(|(_, layer)| !layer.is_empty());
    let entry = |(idx, experts): (usize, &Vec<_>)| entries(idx, experts, &moments.samples[idx]);
    let entries: Vec<TensorEntry> = layers.clone().flat_map(entry).collect();
    let facts = [
        ("format", FORMAT.to_owned()),
        ("version", VERSION.to_owned()),
        ("model", model_key(&plan)?),
        ("tokens", n_tokens.to_string()),
    ];
    let mut writer = FileWriter::create(out)?;
    writer.write(&safetensors_header_with(&facts, &entries))?;
    for (layer, experts) in layers {
        for expert in experts {
            writer.write(&expert.n_rows.to_le_bytes())?;
        }
        let Samples { inputs, experts: chosen, weights, .. } = &moments.samples[layer];
        writer.write(inputs)?;
        writer.write(&chosen.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>())?;
        writer
            .write(&weights.iter().flat_map(|weight| weight.to_le_bytes()).collect::<Vec<_>>())?;
        for expert in experts {
            writer.write(&expert.means(&expert.input))?;
        }
        for expert in experts {
            writer.write(&expert.means(&expert.inner))?;
        }
    }
    Ok(writer.finish()?.publish()?)
}

impl ExpertSums {
    /// Sums as means, as they are stored.
    fn means(&self, sums: &[f32]) -> Vec<u8> {
        let scale = if self.weight > 0.0 { 1.0 / self.weight } else { 0.0 };
        sums.iter().flat_map(|sum| (sum * scale).to_le_bytes()).collect()
    }
}

fn entries(layer: usize, experts: &[ExpertSums], samples: &Samples) -> [TensorEntry; 6] {
    let entry = |part: &str, dtype: Dtype, shape: &[usize]| TensorEntry {
        name: format!("layers.{layer}.{part}"),
        dtype,
        shape: shape.to_vec(),
    };
    let floats = || Dtype::Float(Float::F32);
    let (n_experts, n_samples) = (experts.len(), samples.n_rows());
    [
        entry("rows", Dtype::U32, &[n_experts]),
        entry("samples", Dtype::Float(STORED), &[n_samples, samples.hidden]),
        entry("experts", Dtype::U32, &[n_samples, samples.top_k]),
        entry("weights", floats(), &[n_samples, samples.top_k]),
        entry("input", floats(), &[n_experts, experts[0].input.len()]),
        entry("inner", floats(), &[n_experts, experts[0].inner.len()]),
    ]
}
