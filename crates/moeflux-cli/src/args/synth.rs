//! `synth`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use moeflux_convert::synth::GgufMix;

use crate::bytes::parse_some;
use crate::values::{count, group_size, mix, seed, shape, weight_bits};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux synth --shape tiny --out ./tiny
  moeflux synth --shape qwen3.6-35b-a3b --layers 8 --out ./qwen-8-layers
  moeflux synth --shape qwen3.6-35b-a3b --format gguf --type Q4_K_M --out ./qwen-gguf")]
pub(crate) struct SynthArgs {
    /// Shape, such as qwen3.6-35b-a3b
    #[arg(long, value_name = "NAME", value_parser = shape)]
    pub(crate) shape: String,
    /// Folder to write
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Family of the shape, checked if given
    #[arg(long, value_name = "NAME")]
    pub(crate) family: Option<String>,
    /// mlx, packed, gguf, nvfp4, int4, gptq, awq, fp8 or fp4
    #[arg(long, value_enum, default_value_t = SynthKind::Mlx, value_name = "KIND", hide_possible_values = true)]
    pub(crate) format: SynthKind,
    /// Bits of the weights: 2 to 6, 8, or 16 (BF16) [default: 4]
    #[arg(long, value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) bits: Option<u8>,
    /// Columns that share a scale: 32, 64 or 128 [default: 64]
    #[arg(long, value_name = "N", value_parser = group_size, allow_negative_numbers = true)]
    pub(crate) group_size: Option<usize>,
    /// Experts in MXFP4, as in gpt-oss
    #[arg(long)]
    pub(crate) mxfp4_experts: bool,
    /// Types of a GGUF file, such as Q4_K_M, Q4_0 or IQ4_XS [default: Q4_K_M]
    #[arg(long = "type", value_name = "NAME", value_parser = mix)]
    pub(crate) mix: Option<GgufMix>,
    /// Split a GGUF file into parts of up to this size, such as 5GB
    #[arg(long, value_name = "SIZE", value_parser = parse_some)]
    pub(crate) part_size: Option<u64>,
    /// Add a layer of multi-token prediction
    #[arg(long)]
    pub(crate) mtp: bool,
    /// Leave the vision tower out
    #[arg(long)]
    pub(crate) no_vision: bool,
    /// Number of layers [default: the shape's]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) layers: Option<usize>,
    /// Rows of each part of a table of rows [default: the shape's]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) table_rows: Option<usize>,
    /// Leave holes for tables of rows: they read as zeros
    #[arg(long)]
    pub(crate) sparse_tables: bool,
    /// Random seed; the same seed writes the same bytes
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SynthKind {
    /// Sharded safetensors, as MLX writes them.
    Mlx,
    /// The packed container.
    Packed,
    /// GGUF, as llama.cpp writes it.
    Gguf,
    /// NVFP4 of ModelOpt.
    Nvfp4,
    /// Experts in four bits of compressed-tensors.
    Int4,
    /// GPTQ in four bits.
    Gptq,
    /// AWQ in four bits.
    Awq,
    /// FP8 in blocks.
    Fp8,
    /// Experts of MXFP4, and FP8 in blocks.
    Fp4,
}
