//! `pack` and `calibrate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::model::ModelArgs;
use crate::values::{count, fewer_bits, group_size, weight_bits};

#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// A checkpoint: a directory, a file of one, or org/name on the Hub
    pub(crate) src: String,
    /// The directory to write
    pub(crate) dst: PathBuf,
    /// Bits of what is not quantised yet, and of FP8 [default: 4]; where given, also of MXFP4
    /// and the like, of what a quantised checkpoint left as it is, and of what has more bits;
    /// 16 leaves all as it is
    #[arg(long, value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) bits: Option<u8>,
    /// Bits of the experts' down projections [default: as --bits]
    #[arg(long, value_name = "BITS", value_parser = fewer_bits, allow_negative_numbers = true)]
    pub(crate) down_bits: Option<u8>,
    /// Bits of what stays in memory [default: as --bits]
    #[arg(long, value_name = "BITS", value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) resident_bits: Option<u8>,
    /// Bits of the embedding [default: as --resident-bits]
    #[arg(long, value_name = "BITS", value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) embedding_bits: Option<u8>,
    /// Bits of the head [default: as --resident-bits]
    #[arg(long, value_name = "BITS", value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) head_bits: Option<u8>,
    /// Bits of routers and gates; those of FP8 and of quantised checkpoints stay as they are
    #[arg(long, value_name = "BITS", default_value_t = 8, value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) gate_bits: u8,
    /// Columns that share a scale: 32, 64 or 128
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = group_size, allow_negative_numbers = true)]
    pub(crate) group_size: usize,
    /// How scales are chosen
    #[arg(long, value_enum, default_value_t = RoundTo::Fitted, value_name = "HOW")]
    pub(crate) rounding: RoundTo,
    /// What `moeflux calibrate` wrote of this model: the experts' columns that matter are rounded
    /// with more care, and columns make up for each other
    #[arg(long, value_name = "FILE")]
    pub(crate) importance: Option<PathBuf>,
    /// Start over what was packed otherwise
    #[arg(long)]
    pub(crate) force: bool,
    /// Threads that quantise [default: all cores]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoundTo {
    /// From the extremes of each group; fast
    Nearest,
    /// So that the squared error is least
    Fitted,
}

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// As perplexity's; may be given several times
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) text: Vec<PathBuf>,
    /// The importance file to write
    #[arg(long, value_name = "IMPORTANCE")]
    pub(crate) out: PathBuf,
    /// Tokens that are evaluated together, each window from an empty context [default: 2048]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) window: Option<usize>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}
