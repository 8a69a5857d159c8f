//! `run` and `chat`.

use std::path::PathBuf;

use clap::Args;

use super::cache::PromptCacheArgs;
use super::model::ModelArgs;
use super::sampling::SampleArgs;
use crate::values::whole_number;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux run --schema event.json \"When, and where?\" < letter.txt
  moeflux run -m org/name --expert-cache 8GiB \"Why is the sky blue?\"")]
pub(crate) struct RunArgs {
    /// The prompt; standard input is added, or is all of it
    pub(crate) prompt: Option<std::ffi::OsString>,
    /// Show the model an image; repeatable
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Vec<PathBuf>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Answer in JSON: `json`, a schema, or a file with one
    #[arg(long, value_name = "SCHEMA")]
    pub(crate) schema: Option<String>,
    /// Send the prompt without the chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print each token's probability, and N others'
    #[arg(long, value_name = "N", value_parser = whole_number, allow_negative_numbers = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "0", conflicts_with = "quiet")]
    pub(crate) logprobs: Option<usize>,
    /// Print all statistics after the answer
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) stats: bool,
    /// Print the answer only
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
    #[command(flatten)]
    pub(crate) prompt_cache: PromptCacheArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux chat
  moeflux chat -m org/name --session talk.json \"Hello!\"")]
pub(crate) struct ChatArgs {
    /// First message
    pub(crate) message: Option<std::ffi::OsString>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Answer in JSON: `json`, a schema, or a file with one
    #[arg(long, value_name = "SCHEMA")]
    pub(crate) schema: Option<String>,
    /// Continue the chat in FILE (and FILE.snapshot); save it
    #[arg(long, value_name = "FILE")]
    pub(crate) session: Option<PathBuf>,
    /// Do not render Markdown
    #[arg(long)]
    pub(crate) plain: bool,
    /// Print all statistics after every answer
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) stats: bool,
    /// Print answers only
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
    #[command(flatten)]
    pub(crate) prompt_cache: PromptCacheArgs,
}
