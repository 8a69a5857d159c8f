//! The command line: one file for every group of flags.

mod cache;
mod conversation;
mod inspect;
mod measure;
mod model;
mod pack;
mod sampling;
mod serve;
mod synth;

use clap::{Parser, Subcommand};

pub(crate) use self::cache::PromptCacheArgs;
pub(crate) use self::conversation::{ChatArgs, RunArgs};
pub(crate) use self::inspect::{InspectArgs, PlanArgs, ShapeArgs};
pub(crate) use self::measure::{BenchArgs, LogitsArgs, PerplexityArgs, ReplayArgs};
pub(crate) use self::model::{ModelArgs, Policy};
pub(crate) use self::pack::{CalibrateArgs, PackArgs, RoundTo};
pub(crate) use self::sampling::SampleArgs;
pub(crate) use self::serve::ServeArgs;
pub(crate) use self::synth::{SynthArgs, SynthKind};

/// Runs Mixture-of-Experts models larger than memory by streaming their experts.
#[derive(Debug, Parser)]
#[command(name = "moeflux", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt
    Run(RunArgs),
    /// Talk to a model
    Chat(ChatArgs),
    /// Answer clients of OpenAI and Anthropic, and people
    Serve(ServeArgs),
    /// Write a checkpoint as a packed container, quantising it if it is not quantised
    Pack(PackArgs),
    /// Learn from text which columns of the experts matter, for pack --importance
    Calibrate(CalibrateArgs),
    /// Write the logits of token sequences
    Logits(LogitsArgs),
    /// Measure how surprised a model is by a text
    Perplexity(PerplexityArgs),
    /// Measure how fast a model runs, and how fast the machine would let it
    Bench(BenchArgs),
    /// Show a model's family, shapes, storage and files
    Inspect(InspectArgs),
    /// Show what a model takes in memory; changes nothing
    Plan(PlanArgs),
    /// Score cache policies and predictors on a routing that --record-routing wrote
    Replay(ReplayArgs),
    /// Write a random-weight checkpoint of a real shape, for benchmarks
    Synth(SynthArgs),
}
