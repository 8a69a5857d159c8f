//! `inspect` and `plan`.

use clap::Args;

use super::model::ModelArgs;
use crate::bytes::parse_rate;
use crate::values::{Sessions, sessions, shape, weight_bits};

/// A published shape in place of a model.
#[derive(Debug, Args)]
pub(crate) struct ShapeArgs {
    /// Shape in place of a model, such as qwen3.5-397b-a17b
    #[arg(long, value_name = "NAME", value_parser = shape, conflicts_with = "model")]
    pub(crate) shape: Option<String>,
    /// Bits of the shape's weights: 2 to 6, 8 or 16 (BF16)
    #[arg(long, value_name = "BITS", default_value_t = 4, requires = "shape", conflicts_with = "model", value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) bits: u8,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux inspect -m org/name
  moeflux inspect --devices")]
pub(crate) struct InspectArgs {
    /// List the GPUs of this machine instead
    #[arg(long)]
    pub(crate) devices: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// Where a forecast's rates come from.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct RateArgs {
    /// Rate of the drive, like 3GB/s [default: measured]
    #[arg(long, value_name = "RATE", value_parser = parse_rate, allow_negative_numbers = true)]
    pub(crate) drive: Option<f64>,
    /// Measure memory and drive again
    #[arg(long)]
    pub(crate) measure: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux plan -m org/name --ctx 16384
  moeflux plan -m org/name --ctx 65536 --sessions 4
  moeflux plan --shape qwen3.5-397b-a17b --bits 4 --drive 3GB/s")]
pub(crate) struct PlanArgs {
    /// Answers at once, or auto [default: 1, as run]
    #[arg(long, value_name = "N", value_parser = sessions, allow_negative_numbers = true)]
    #[arg(aliases = ["parallel", "max-num-seqs"])]
    pub(crate) sessions: Option<Sessions>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) rates: RateArgs,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}
