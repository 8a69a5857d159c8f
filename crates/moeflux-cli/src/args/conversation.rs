//! `run` and `chat`.

use std::path::PathBuf;

use clap::Args;

use super::cache::PromptCacheArgs;
use super::model::ModelArgs;
use super::sampling::SampleArgs;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The prompt; left out, standard input
    pub(crate) prompt: Option<std::ffi::OsString>,
    /// What the model is told before the prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Give the prompt as it is, without the chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print the answer only
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) prompt_cache: PromptCacheArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// Continue the conversation in this file, and keep it there; FILE.snapshot holds what the
    /// model knows of it
    #[arg(long, value_name = "FILE")]
    pub(crate) session: Option<PathBuf>,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Print answers only
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) prompt_cache: PromptCacheArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
}
