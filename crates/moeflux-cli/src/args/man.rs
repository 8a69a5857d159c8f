//! `man`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux man --out ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Folder for the pages; made where it is missing
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}
