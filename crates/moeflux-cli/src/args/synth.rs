//! `synth`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::values::{count, group_size, weight_bits};

#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// The family [default: the shape's]
    #[arg(long)]
    pub(crate) family: Option<String>,
    /// The shape, such as qwen3.6-35b-a3b
    #[arg(long)]
    pub(crate) shape: String,
    /// The directory to write
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Bits of the weights: 2, 3, 4, 5, 6 or 8, or 16 for BF16
    #[arg(long, default_value_t = 4, value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) bits: u8,
    /// Columns that share a scale: 32, 64 or 128
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = group_size, allow_negative_numbers = true)]
    pub(crate) group_size: usize,
    /// Experts as MXFP4, as gpt-oss has them, whatever the bits of the rest
    #[arg(long)]
    pub(crate) mxfp4_experts: bool,
    /// With a layer of multi-token prediction
    #[arg(long)]
    pub(crate) mtp: bool,
    /// What to write
    #[arg(long, value_enum, default_value_t = SynthKind::Mlx)]
    pub(crate) format: SynthKind,
    /// Layers, instead of the shape's own number
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) layers: Option<usize>,
    /// The same seed gives the same bytes
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SynthKind {
    /// Sharded safetensors, as MLX writes them
    Mlx,
    /// The packed container
    Packed,
}
