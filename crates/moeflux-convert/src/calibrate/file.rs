//! Writes the importance file.

use std::path::Path;

use moeflux_core::checkpoint::{Checkpoint, Dtype};
use moeflux_core::manifest::Manifest;
use moeflux_core::quant::Float;

use super::observer::{ExpertSums, Moments};
use crate::error::PackError;
use crate::files::{FileWriter, TensorEntry, safetensors_header_with};
use crate::importance::{FORMAT, STORED, Samples, VERSION};
use crate::pack::PackOptions;
use crate::pack::plan::Plan;

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
        ("model", plan.model_key()?),
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
