//! What is kept from one run to the next.

use std::path::PathBuf;

use clap::Args;
use moeflux_engine::PromptCacheOptions;

use super::model::MEMORY;
use crate::bytes;

/// What is kept from one run to the next.
#[derive(Clone, Debug, Args)]
pub(crate) struct PromptCacheArgs {
    /// Keep evaluated prompts here [default: nowhere]
    #[arg(long, value_name = "DIR", help_heading = MEMORY)]
    prompt_cache: Option<PathBuf>,
    /// Largest size of that folder
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = bytes::parse_some, allow_negative_numbers = true, help_heading = MEMORY)]
    prompt_cache_size: u64,
    /// Do not load or save expert usage
    #[arg(long, help_heading = MEMORY)]
    pub(crate) no_expert_stats: bool,
}

impl PromptCacheArgs {
    /// The engine's options; `None` without a folder for the cache.
    pub(crate) fn options(&self) -> Option<PromptCacheOptions> {
        let variable = || std::env::var_os("MOEFLUX_PROMPT_CACHE").map(PathBuf::from);
        let dir = self.prompt_cache.clone().or_else(variable);
        let dir = dir.filter(|dir| !dir.as_os_str().is_empty())?;
        Some(PromptCacheOptions { dir, max_bytes: self.prompt_cache_size })
    }
}
