//! `logits`, `perplexity`, `bench` and `replay`.

use std::path::PathBuf;

use clap::Args;

use super::model::{ModelArgs, Policy};
use crate::values::{CacheSize, cache_size, count, probability};

#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    /// A JSON file: an array of arrays of token ids
    #[arg(long, value_name = "IN.json")]
    pub(crate) tokens: PathBuf,
    /// The safetensors file to write: logits.0, logits.1, ... of f32 [tokens, vocab]
    #[arg(long, value_name = "OUT.safetensors")]
    pub(crate) out: PathBuf,
    /// Keep activations f32 everywhere, for comparison with references
    #[arg(long)]
    pub(crate) exact: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    /// A UTF-8 text; if its name ends in .jsonl, a conversation a line: {"messages": [...]}, and
    /// "tools" if there are any
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Tokens that are evaluated together, each window from an empty context [default: 2048]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) window: Option<usize>,
    /// Another model of the same vocabulary: print how far this one is from it
    #[arg(long, value_name = "MODEL")]
    pub(crate) against: Option<PathBuf>,
    /// Keep activations f32 everywhere
    #[arg(long)]
    pub(crate) exact: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write a report with plots, one HTML file
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Time every kernel instead, with 1, 16 and 128 rows and those of --prompt-tokens
    #[arg(long, conflicts_with_all = ["report", "cold", "sequences"])]
    pub(crate) kernels: bool,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = count, allow_negative_numbers = true)]
    pub(crate) prompt_tokens: usize,
    /// Tokens made one by one
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count, allow_negative_numbers = true)]
    pub(crate) gen_tokens: usize,
    /// How often to measure: medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count, allow_negative_numbers = true)]
    pub(crate) repeat: usize,
    /// Also make tokens in so many conversations at once, as a server does
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count, allow_negative_numbers = true)]
    pub(crate) sequences: usize,
    /// Begin every run with no expert in memory, the system's page cache included
    #[arg(long)]
    pub(crate) cold: bool,
    /// Take prompts from this UTF-8 text [default: a text of its own for the demo model, random
    /// tokens for others]
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Also make what this text has behind its first --prompt-tokens, as if the model had chosen
    /// it, one by one and with guesses: UTF-8, or a JSON array of token ids
    #[arg(long, value_name = "FILE", conflicts_with = "kernels")]
    pub(crate) follow: Option<PathBuf>,
    /// The same of a text of which multi-token prediction foresees this share, as many tokens
    /// in a row as --draft says
    #[arg(long, value_name = "SHARE", value_parser = probability, conflicts_with_all = ["kernels", "follow"], allow_negative_numbers = true)]
    pub(crate) foreseen: Option<f32>,
    /// Determines random tokens and what of the drive is read
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The file that --record-routing wrote
    pub(crate) trace: PathBuf,
    /// Sizes of caches: shares of all experts, or bytes
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "12.5%,25%,50%,75%", value_parser = cache_size)]
    pub(crate) cache: Vec<CacheSize>,
    /// Policies to score [default: all]
    #[arg(long, value_enum, value_name = "POLICIES", value_delimiter = ',')]
    pub(crate) policy: Vec<Policy>,
    /// Tokens at the beginning that only teach
    #[arg(long, value_name = "N")]
    pub(crate) skip: Option<usize>,
    /// Cut the trace into N sequences that are served together
    #[arg(long, value_name = "N", default_value = "1", value_parser = count, allow_negative_numbers = true)]
    pub(crate) sequences: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
