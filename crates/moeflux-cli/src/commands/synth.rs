//! `moeflux synth`: random weights in a real shape.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use moeflux_engine::synth::{SynthFormat, SynthOptions, shape_family};
use moeflux_engine::{FAMILIES, synthesise};

use super::print;
use crate::args::UsageError;
use crate::bytes;
use crate::progress::{Bar, Unit};
use crate::values::{count, group_size, weight_bits};

#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// The family [default: the shape's]
    #[arg(long)]
    family: Option<String>,
    /// The shape, such as qwen3.6-35b-a3b
    #[arg(long)]
    shape: String,
    /// The directory to write
    #[arg(long)]
    out: PathBuf,
    /// Bits of the weights: 2, 3, 4, 5, 6 or 8, or 16 for BF16
    #[arg(long, default_value_t = 4, value_parser = weight_bits, allow_negative_numbers = true)]
    bits: u8,
    /// Columns that share a scale: 32, 64 or 128
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = group_size, allow_negative_numbers = true)]
    group_size: usize,
    /// Experts as MXFP4, as gpt-oss has them, whatever the bits of the rest
    #[arg(long)]
    mxfp4_experts: bool,
    /// With a layer of multi-token prediction
    #[arg(long)]
    mtp: bool,
    /// What to write
    #[arg(long, value_enum, default_value_t = SynthKind::Mlx)]
    format: SynthKind,
    /// Layers, instead of the shape's own number
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    layers: Option<usize>,
    /// The same seed gives the same bytes
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SynthKind {
    /// Sharded safetensors, as MLX writes them
    Mlx,
    /// The packed container
    Packed,
}

pub(crate) fn run(args: &SynthArgs) -> Result<()> {
    if let Some(family) = &args.family {
        check_family(family, &args.shape)?;
    }
    let options = SynthOptions {
        bits: args.bits,
        group_size: args.group_size,
        has_mxfp4_experts: args.mxfp4_experts,
        has_mtp: args.mtp,
        format: match args.format {
            SynthKind::Mlx => SynthFormat::Mlx,
            SynthKind::Packed => SynthFormat::Packed,
        },
        seed: args.seed,
        n_layers: args.layers,
        is_hollow: false,
    };
    let mut bar = Bar::new("writing", Unit::Bytes, false);
    let n = synthesise(&args.shape, &args.out, &options, &mut |it| {
        bar.set_label(it.file);
        bar.set(it.done, it.total);
    })?;
    drop(bar);
    print(&format!("{} in {}\n", bytes::show(n), args.out.display()))?;
    Ok(())
}

/// A shape belongs to one family; whoever names another is mistaken about one
/// of them.
fn check_family(family: &str, shape: &str) -> Result<(), UsageError> {
    if !FAMILIES.iter().any(|it| it.name == family) {
        let known: Vec<&str> = FAMILIES.iter().map(|it| it.name).collect();
        return Err(UsageError(format!("--family {family:?}: there are {}", known.join(", "))));
    }
    match shape_family(shape) {
        Some(own) if own != family => {
            Err(UsageError(format!("--family {family:?}: {shape} is a shape of {own}")))
        }
        _ => Ok(()),
    }
}
