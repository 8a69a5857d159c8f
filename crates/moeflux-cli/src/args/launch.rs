//! `launch`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::serve::address;
use crate::values::{Sessions, count, sessions, whole_number};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux launch claude -m org/name --ctx 65536
  moeflux launch codex -- exec \"What does this repository do?\"
  moeflux launch opencode --print")]
pub(crate) struct LaunchArgs {
    /// claude, codex or opencode
    #[arg(value_enum, value_name = "AGENT", hide_possible_values = true)]
    pub(crate) agent: Agent,
    /// Model to serve [default: what a running server has]
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Context window in tokens [default: by memory]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    #[arg(aliases = ["ctx-size", "context", "max-model-len"])]
    pub(crate) ctx: Option<usize>,
    /// Answers at once [default: auto, as memory allows]
    #[arg(long, value_name = "N", value_parser = sessions, allow_negative_numbers = true)]
    #[arg(aliases = ["parallel", "max-num-seqs"])]
    pub(crate) sessions: Option<Sessions>,
    /// Most tokens of thoughts, 0 for none
    #[arg(long, value_name = "N", value_parser = whole_number, allow_negative_numbers = true)]
    pub(crate) thinking_budget: Option<usize>,
    /// Where the server is, or is started
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080", value_parser = address)]
    pub(crate) addr: SocketAddr,
    /// The running server's certificate or its authority's (PEM), for HTTPS
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Keep no evaluated prompts
    #[arg(long)]
    pub(crate) no_prompt_cache: bool,
    /// The server's API keys [default: $MOEFLUX_API_KEY, else none]
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Print variables and command in place of running it
    #[arg(long)]
    pub(crate) print: bool,
    /// The agent's own arguments
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) args: Vec<OsString>,
}

/// Programs that can be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Agent {
    Claude,
    Codex,
    Opencode,
}
