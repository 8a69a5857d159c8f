//! What is kept from one run to the next.

use std::path::PathBuf;

use clap::Args;
use moeflux_engine::PromptCacheOptions;

use crate::bytes;

/// What is kept from one run to the next.
#[derive(Clone, Debug, Args)]
pub(crate) struct PromptCacheArgs {
    /// Keep what the model knows of prompts in this directory, so that prompts which begin
    /// alike are read once [default: $MOEFLUX_PROMPT_CACHE, else nowhere]
    #[arg(long, value_name = "DIR")]
    prompt_cache: Option<PathBuf>,
    /// What the directory may hold; the least recently used leaves first
    #[arg(long, value_name = "BYTES", default_value = "4GiB", value_parser = bytes::parse_some, allow_negative_numbers = true)]
    prompt_cache_size: u64,
    /// Neither use nor keep what the expert cache learned of this model in other runs
    #[arg(long)]
    pub(crate) no_expert_stats: bool,
}

impl PromptCacheArgs {
    /// The engine's options, if there is to be a cache.
    pub(crate) fn options(&self) -> Option<PromptCacheOptions> {
        let variable = || std::env::var_os("MOEFLUX_PROMPT_CACHE").map(PathBuf::from);
        let dir = self.prompt_cache.clone().or_else(variable);
        let dir = dir.filter(|it| !it.as_os_str().is_empty())?;
        Some(PromptCacheOptions { dir, max_bytes: self.prompt_cache_size })
    }
}
