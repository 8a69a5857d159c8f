//! `keys`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::values::limit;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux keys add anna --requests-per-minute 60 --sessions 2
  moeflux keys list
  moeflux serve -m org/name --host 0.0.0.0 --keys ~/.local/state/moeflux/keys.json")]
pub(crate) struct KeysArgs {
    /// What to do
    #[arg(value_enum, value_name = "ACTION")]
    pub(crate) action: KeysAction,
    /// Whose key it is, for the log and for metrics
    #[arg(value_name = "NAME", required_if_eq_any = [("action", "add"), ("action", "remove")])]
    pub(crate) name: Option<String>,
    /// File of keys [default: keys.json of the state directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) keys: Option<PathBuf>,
    /// With add: requests for answers in a minute
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    pub(crate) requests_per_minute: Option<u32>,
    /// With add: tokens of prompts and answers in a minute
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    pub(crate) tokens_per_minute: Option<u32>,
    /// With add: answers at once
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    pub(crate) sessions: Option<u32>,
    /// With list: print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to do with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeysAction {
    /// Make a key and print it, once
    Add,
    /// Show names and limits
    List,
    /// Remove a key; servers that use the file refuse it within seconds
    Remove,
}
