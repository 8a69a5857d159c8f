//! `inspect` and `plan`.

use clap::Args;

use super::model::ModelArgs;

/// A model that need not be there.
#[derive(Debug, Args)]
pub(crate) struct ShapeArgs {
    /// A shape of `synth` instead of a model, such as qwen3.5-397b-a17b
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    pub(crate) shape: Option<String>,
    /// Bits of the shape's weights, 16 for BF16
    #[arg(long, value_name = "BITS", default_value_t = 4, requires = "shape")]
    pub(crate) bits: u8,
}

#[derive(Debug, Args)]
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
pub(crate) struct PlanArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}
