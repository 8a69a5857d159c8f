//! What is kept from one run to the next.

use std::path::PathBuf;

use clap::Args;
use moeflux_engine::{MIN_PROMPT_TOKENS, PromptCacheOptions, PromptMemory};

use super::model::MEMORY;
use crate::bytes;
use crate::prompts::{self, DEFAULT_BYTES};

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
    no_expert_stats: bool,
}

/// What a server keeps of prompts, and from one run to the next.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerCacheArgs {
    /// Keep evaluated prompts here [default: cache]
    #[arg(long, value_name = "DIR", help_heading = MEMORY)]
    prompt_cache: Option<PathBuf>,
    /// Largest size of that folder [default: 8GiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_some, allow_negative_numbers = true, help_heading = MEMORY)]
    prompt_cache_size: Option<u64>,
    /// Memory for them [default: part of the rest]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse, allow_negative_numbers = true, help_heading = MEMORY)]
    #[arg(conflicts_with = "no_prompt_cache")]
    prompt_memory: Option<u64>,
    /// Keep no evaluated prompts
    #[arg(long, conflicts_with_all = ["prompt_cache", "prompt_cache_size"], help_heading = MEMORY)]
    no_prompt_cache: bool,
    /// Do not load or save expert usage
    #[arg(long, help_heading = MEMORY)]
    no_expert_stats: bool,
}

/// What is kept when a model is open.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// Evaluated prompts on the drive.
    pub(crate) prompts: Option<PromptCacheOptions>,
    /// And in memory.
    pub(crate) memory: PromptMemory,
    /// Whether the usage of experts is loaded and saved.
    pub(crate) expert_stats: bool,
}

/// `MOEFLUX_PROMPT_CACHE`, where a flag names no folder.
fn named(flag: Option<&PathBuf>) -> Option<PathBuf> {
    let variable = || std::env::var_os("MOEFLUX_PROMPT_CACHE").map(PathBuf::from);
    flag.cloned().or_else(variable).filter(|dir| !dir.as_os_str().is_empty())
}

impl PromptCacheArgs {
    /// What `run` and `chat` keep.
    pub(crate) fn kept(&self) -> Kept {
        let of = |dir| PromptCacheOptions { dir, max_bytes: self.prompt_cache_size, min_tokens: 1 };
        Kept {
            prompts: named(self.prompt_cache.as_ref()).map(of),
            memory: PromptMemory::Off,
            expert_stats: !self.no_expert_stats,
        }
    }
}

impl ServerCacheArgs {
    /// The folder that the user names for prompts.
    pub(crate) fn named_dir(&self) -> Option<PathBuf> {
        named(self.prompt_cache.as_ref()).filter(|_| !self.no_prompt_cache)
    }

    /// What a server keeps. A default folder that cannot be made is left out with a warning.
    pub(crate) fn kept(&self) -> Kept {
        let expert_stats = !self.no_expert_stats;
        if self.no_prompt_cache {
            return Kept { prompts: None, memory: PromptMemory::Off, expert_stats };
        }
        let prompts = match self.named_dir() {
            Some(dir) => {
                let max_bytes = self.prompt_cache_size.unwrap_or(DEFAULT_BYTES);
                Some(PromptCacheOptions { dir, max_bytes, min_tokens: MIN_PROMPT_TOKENS })
            }
            None => prompts::default_options(self.prompt_cache_size),
        };
        let memory = self.prompt_memory.map_or(PromptMemory::Planned, PromptMemory::Bytes);
        Kept { prompts, memory, expert_stats }
    }
}
