//! `pack` and `calibrate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::model::ModelArgs;
use crate::values::{count, fewer_bits, group_size, weight_bits};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux pack ./qwen3.6-bf16 ./qwen3.6-4bit --bits 4
  moeflux pack ./qwen3.6-bf16 ./qwen3.6-2bit --bits 2 --resident-bits 8 --importance i.safetensors")]
pub(crate) struct PackArgs {
    /// Checkpoint: a folder, a file in it, or org/name on the Hub
    pub(crate) src: String,
    /// Folder to write
    pub(crate) dst: PathBuf,
    /// Start again over a container packed with other options
    #[arg(long)]
    pub(crate) force: bool,
    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) threads: Option<usize>,
    /// Bits of the weights: 2 to 6, 8, or 16 (unchanged). Without it, BF16, F16, F32 and FP8 weights
    /// get 4 bits and others stay; with it, MXFP4 and wider weights are requantised too
    #[arg(long, value_parser = weight_bits, allow_negative_numbers = true, help_heading = QUANTISATION)]
    pub(crate) bits: Option<u8>,
    /// Bits of the experts' down projections [default: --bits]
    #[arg(long, value_name = "BITS", value_parser = fewer_bits, allow_negative_numbers = true, help_heading = QUANTISATION)]
    pub(crate) down_bits: Option<u8>,
    /// Bits of the weights that are not routed experts [default: --bits]
    #[arg(long, value_name = "BITS", value_parser = weight_bits, allow_negative_numbers = true, help_heading = QUANTISATION)]
    pub(crate) resident_bits: Option<u8>,
    /// Bits of the embedding [default: --resident-bits]
    #[arg(long, value_name = "BITS", value_parser = weight_bits, allow_negative_numbers = true, help_heading = QUANTISATION)]
    pub(crate) embedding_bits: Option<u8>,
    /// Bits of the output head [default: --resident-bits]
    #[arg(long, value_name = "BITS", value_parser = weight_bits, allow_negative_numbers = true, help_heading = QUANTISATION)]
    pub(crate) head_bits: Option<u8>,
    /// Bits of routers and gates [default: 8; unchanged with --bits 16, and in FP8 and quantised
    /// checkpoints]
    #[arg(long, value_name = "BITS", value_parser = weight_bits, allow_negative_numbers = true, help_heading = QUANTISATION)]
    pub(crate) gate_bits: Option<u8>,
    /// Columns that share a scale: 32, 64 or 128
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = group_size, allow_negative_numbers = true, help_heading = QUANTISATION)]
    pub(crate) group_size: usize,
    /// Scales: fitted (least squares) or nearest (min and max; fast)
    #[arg(long, value_enum, default_value_t = RoundTo::Fitted, value_name = "HOW", hide_possible_values = true, help_heading = QUANTISATION)]
    pub(crate) rounding: RoundTo,
    /// Importance file of `calibrate`: experts are quantised with GPTQ
    #[arg(long, value_name = "FILE", help_heading = QUANTISATION)]
    pub(crate) importance: Option<PathBuf>,
}

const QUANTISATION: &str = "Quantisation";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoundTo {
    /// From the minimum and maximum of each group.
    Nearest,
    /// By least squares.
    Fitted,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  moeflux calibrate -m ./qwen3.6-bf16 --text sample.jsonl --out importance.safetensors")]
pub(crate) struct CalibrateArgs {
    /// UTF-8 text, or conversations in .jsonl; may be repeated
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) text: Vec<PathBuf>,
    /// Importance file to write
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Tokens evaluated together, from an empty context [default: 2048]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) window: Option<usize>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}
