//! `doctor`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux doctor
  moeflux doctor --drive /mnt/models --json")]
pub(crate) struct DoctorArgs {
    /// Folder whose drive is measured [default: the Hub's cache]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) drive: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
