//! `inspect` and `plan`.

use clap::Args;

use super::model::ModelArgs;
use crate::values::{shape, weight_bits};

/// A published shape in place of a model.
#[derive(Debug, Args)]
pub(crate) struct ShapeArgs {
    /// Shape in place of a model, such as qwen3.5-397b-a17b
    #[arg(long, value_name = "NAME", value_parser = shape, conflicts_with = "model")]
    pub(crate) shape: Option<String>,
    /// Bits of the shape's weights: 2 to 6, 8 or 16 (BF16)
    #[arg(long, value_name = "BITS", default_value_t = 4, requires = "shape", value_parser = weight_bits, allow_negative_numbers = true)]
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

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux plan -m org/name --ctx 16384
  moeflux plan --shape qwen3.5-397b-a17b --bits 4 --expert-cache 16GiB")]
pub(crate) struct PlanArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}
