//! The command line: one file for every group of flags.

mod cache;
mod completions;
mod conversation;
mod doctor;
mod headings;
mod inspect;
mod keys;
mod launch;
mod man;
mod measure;
mod model;
mod models;
mod pack;
mod pictures;
mod prompt;
mod sampling;
mod serve;
mod synth;
mod verify;

use clap::{Parser, Subcommand};

pub(crate) use self::cache::Kept;
pub(crate) use self::completions::{CompletionsArgs, Shell};
pub(crate) use self::conversation::{ChatArgs, RunArgs};
pub(crate) use self::doctor::DoctorArgs;
pub(crate) use self::inspect::{InspectArgs, PlanArgs, ShapeArgs};
pub(crate) use self::keys::{KeysAction, KeysArgs};
pub(crate) use self::launch::{Agent, LaunchArgs};
pub(crate) use self::man::ManArgs;
pub(crate) use self::measure::{BenchArgs, LogitsArgs, PerplexityArgs, ReplayArgs};
pub(crate) use self::model::{DEVICE_VARIABLE, ModelArgs, Policy};
pub(crate) use self::models::{ModelsArgs, PsArgs, PullArgs, RmArgs};
pub(crate) use self::pack::{CalibrateArgs, PackArgs, RoundTo};
pub(crate) use self::prompt::PromptArgs;
pub(crate) use self::sampling::SampleArgs;
pub(crate) use self::serve::ServeArgs;
pub(crate) use self::synth::{SynthArgs, SynthKind};
pub(crate) use self::verify::VerifyArgs;

/// Runs Mixture-of-Experts language models that are larger than memory.
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
    /// Chat with a model in the terminal
    Chat(ChatArgs),
    /// Serve OpenAI- and Anthropic-compatible APIs and a web UI
    Serve(ServeArgs),
    /// Run a coding agent on a model of this machine
    Launch(LaunchArgs),
    /// Make, list and remove keys with names for `serve`
    Keys(KeysArgs),
    /// Convert a checkpoint to a packed container, quantised if wanted
    Pack(PackArgs),
    /// Check a model's files: checksums, structure and values
    Verify(VerifyArgs),
    /// Measure which expert weights matter, for `pack --importance`
    Calibrate(CalibrateArgs),
    /// Write the logits of token sequences to a file
    Logits(LogitsArgs),
    /// Measure a model's perplexity on a text
    Perplexity(PerplexityArgs),
    /// Measure a model's speed against the limits of the machine
    Bench(BenchArgs),
    /// Show a model's family, shapes and files
    #[command(visible_alias = "show")]
    Inspect(InspectArgs),
    /// List published models, what fits here, and what is here
    #[command(visible_aliases = ["list", "ls"])]
    Models(ModelsArgs),
    /// Download a model
    Pull(PullArgs),
    /// Remove a downloaded model
    Rm(RmArgs),
    /// Show what a running server does
    Ps(PsArgs),
    /// Show the prompt that a chat request becomes
    Prompt(PromptArgs),
    /// Show the memory a model needs and the speed to expect
    Plan(PlanArgs),
    /// Check this machine: processor, memory, drive and GPU
    Doctor(DoctorArgs),
    /// Compare cache policies on a routing of `--record-routing`
    Replay(ReplayArgs),
    /// Write a checkpoint with random weights, for benchmarks
    Synth(SynthArgs),
    /// Print a script that completes commands in a shell
    Completions(CompletionsArgs),
    /// Write manual pages, one a command
    Man(ManArgs),
}
