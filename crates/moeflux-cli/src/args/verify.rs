//! Flags of `moeflux verify`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux verify ./qwen3.6-4bit
  moeflux verify org/name --json")]
pub(crate) struct VerifyArgs {
    /// Checkpoint: a folder, a file in it, or org/name on the Hub
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
