//! Tables whose rows are read one by one: shards of rows, and the scale of all elements.

use moeflux_core::checkpoint::{Config, Dtype, FormatError};
use moeflux_core::manifest::{Manifest, TableDecl};
use moeflux_core::quant::{Float, MatrixFormat};

use super::fill::{E4M3_STD, Fill, Noise};
use super::options::{SynthFormat, SynthOptions};
use super::plan::Made;
use crate::files::TensorEntry;

/// Config key of the number of shards.
const PARTS: &str = "split_ngram_parts";

/// The tensors of all tables, under their canonical names. Elements have standard deviation 1.
pub(super) fn tensors(
    manifest: &Manifest,
    config: &Config,
    options: &SynthOptions,
) -> Result<Vec<Made>, FormatError> {
    let n_parts = config.usize_or(PARTS, 1)?.max(1);
    Ok(manifest.tables.iter().flat_map(|decl| of_table(decl, n_parts, options)).collect())
}

fn of_table(decl: &TableDecl, n_parts: usize, options: &SynthOptions) -> Vec<Made> {
    let TableDecl { name, rows, cols } = decl;
    let noise = Noise::of(options.seed, name);
    // Unquantised checkpoints have tables in BF16, all others in eight bits.
    let is_plain = match options.format {
        SynthFormat::Mlx | SynthFormat::Packed => options.bits == 16,
        SynthFormat::Gguf | SynthFormat::Tool(_) => false,
    };
    let dtype = if is_plain { Dtype::Float(Float::BF16) } else { Dtype::F8E4M3 };
    let fill = match (options.has_sparse_tables, is_plain) {
        (true, _) => Fill::Hole,
        (false, false) => Fill::SmallE4m3,
        (false, true) => {
            let [rows, ..] = Fill::matrix(MatrixFormat::Dense(Float::BF16), 1.0, noise);
            rows
        }
    };
    let n_parts = n_parts.min((*rows).max(1));
    let mut made: Vec<Made> = Vec::with_capacity(n_parts + 1);
    for part in 0..n_parts {
        let n_rows = (part + 1) * rows / n_parts - part * rows / n_parts;
        let name = format!("{name}.shard_{part}.weight");
        let noise = Noise::of(options.seed, &name);
        let entry = TensorEntry { name, dtype: dtype.clone(), shape: vec![n_rows, *cols] };
        made.push(Made { entry, fill: fill.clone(), noise });
    }
    if !is_plain {
        let (name, dtype) = (format!("{name}.weight_scale"), Dtype::Float(Float::F32));
        let entry = TensorEntry { name, dtype, shape: vec![1] };
        let fill = Fill::cycle((1.0 / E4M3_STD).to_le_bytes());
        made.push(Made { entry, fill, noise });
    }
    made
}
