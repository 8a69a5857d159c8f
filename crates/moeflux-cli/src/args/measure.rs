//! `logits`, `perplexity`, `bench` and `replay`.

use std::path::PathBuf;

use clap::Args;

use super::model::{ModelArgs, Policy};
use crate::values::{CacheSize, cache_size, count, probability, seed, whole_number};

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  moeflux logits -m ./model --tokens tokens.json --out logits.safetensors --exact")]
pub(crate) struct LogitsArgs {
    /// JSON array of arrays of token ids
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: PathBuf,
    /// Picture in place of placeholders, in order; repeatable
    #[arg(long, value_name = "FILE")]
    pub(crate) images: Vec<PathBuf>,
    /// Safetensors file to write: logits.0, logits.1, ... as f32 [tokens, vocab]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Keep all activations in f32
    #[arg(long)]
    pub(crate) exact: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  moeflux perplexity -m ./model-2bit --text sample.txt --against ./model-8bit")]
pub(crate) struct PerplexityArgs {
    /// UTF-8 text, or .jsonl with {"messages": [...], "tools": [...]} a line
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Tokens evaluated together, from an empty context [default: 2048]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) window: Option<usize>,
    /// Also print the KL divergence from this model (same vocabulary)
    #[arg(long, value_name = "MODEL")]
    pub(crate) against: Option<PathBuf>,
    /// Keep all activations in f32
    #[arg(long)]
    pub(crate) exact: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux bench -m ./model --expert-cache 2GiB
  moeflux bench -m ./model --json --repeat 3 --gen-tokens 128")]
pub(crate) struct BenchArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write an HTML report with plots
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Print a result to share, without names or paths
    #[arg(long, conflicts_with_all = ["json", "kernels", "sequences", "teacher_force", "mtp_acceptance"])]
    pub(crate) share: bool,
    /// Also write that to a new file
    #[arg(long, value_name = "FILE.json", requires = "share")]
    pub(crate) out: Option<PathBuf>,
    /// Replace the file of --out
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
    /// Prompt tokens
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = count, allow_negative_numbers = true)]
    pub(crate) prompt_tokens: usize,
    /// Decoded tokens
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count, allow_negative_numbers = true)]
    pub(crate) gen_tokens: usize,
    /// Runs; medians are reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count, allow_negative_numbers = true)]
    pub(crate) repeat: usize,
    /// Also decode N conversations at once, each with tokens of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count, allow_negative_numbers = true)]
    pub(crate) sequences: usize,
    /// Start every run without cached experts, page cache included
    #[arg(long)]
    pub(crate) cold: bool,
    /// Time each kernel instead of the model
    #[arg(long, conflicts_with_all = ["report", "cold", "sequences"])]
    pub(crate) kernels: bool,
    /// Time the vision tower with a picture instead of the model
    #[arg(long, value_name = "FILE", conflicts_with_all = ["report", "cold", "sequences", "kernels", "share", "teacher_force", "mtp_acceptance"])]
    pub(crate) image: Option<PathBuf>,
    /// UTF-8 text for prompts [default: built in, or random tokens, decoded ones too]
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Also decode the rest of this text (teacher-forced), with and without drafts
    #[arg(long, value_name = "FILE", conflicts_with = "kernels")]
    pub(crate) teacher_force: Option<PathBuf>,
    /// Also decode a text with this share of accepted MTP drafts
    #[arg(long, value_name = "SHARE", value_parser = probability, conflicts_with_all = ["kernels", "teacher_force"], allow_negative_numbers = true)]
    pub(crate) mtp_acceptance: Option<f32>,
    /// Seed of random tokens and of the drive test
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = seed, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux run --record-routing routing.bin \"What does Vec::push do?\"
  moeflux replay routing.bin --cache 25%,8GiB")]
pub(crate) struct ReplayArgs {
    /// File of `--record-routing`
    pub(crate) trace: PathBuf,
    /// Cache sizes: shares of all experts, or bytes
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "12.5%,25%,50%,75%", value_parser = cache_size)]
    pub(crate) cache: Vec<CacheSize>,
    /// Eviction policies: frequency, lru [default: all]
    #[arg(
        long,
        value_enum,
        value_name = "POLICIES",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub(crate) policy: Vec<Policy>,
    /// Warm up with the first N tokens and do not count them
    #[arg(long, value_name = "N", value_parser = whole_number, allow_negative_numbers = true)]
    pub(crate) skip: Option<usize>,
    /// Cut the trace into N sequences that run together
    #[arg(long, value_name = "N", default_value = "1", value_parser = count, allow_negative_numbers = true)]
    pub(crate) sequences: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
