//! `models`, `pull`, `rm` and `ps`.

use std::path::PathBuf;

use clap::Args;

use super::serve::place;
use crate::dial::Place;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux models
  moeflux models --dir ./models --json")]
pub(crate) struct ModelsArgs {
    /// Also list the models in this folder; repeatable
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux pull qwen3.6-35b-a3b
  moeflux pull org/name-GGUF:Q4_K_M

An interrupted download goes on where it stopped. The files are in the Hub's
cache; HF_HOME or HF_HUB_CACHE names another drive.")]
pub(crate) struct PullArgs {
    /// org/name, org/name:Q4_K_M, or a name that `moeflux models` lists
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// Print errors only
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux rm org/name
  moeflux rm org/name-GGUF:Q4_K_M --yes

Files that another revision or another name still uses stay. An unfinished
download goes with org/name alone. Nothing outside of the Hub's cache is
removed.")]
pub(crate) struct RmArgs {
    /// org/name, org/name@revision, or org/name:Q4_K_M for one GGUF file
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// Remove without asking
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux ps
  moeflux ps --address 127.0.0.1:9000 --json
  moeflux ps --address unix:/run/m.sock")]
pub(crate) struct PsArgs {
    /// Where the server listens; unix:PATH for a Unix socket
    #[arg(long, alias = "addr", value_name = "HOST:PORT", default_value = "127.0.0.1:8080", value_parser = place)]
    pub(crate) address: Place,
    /// The server's certificate or its authority's (PEM), for HTTPS
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// The server's API keys [default: $MOEFLUX_API_KEY, else none]
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
