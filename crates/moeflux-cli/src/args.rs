//! The command line.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};
use moeflux_engine::sampler::SamplerOptions;
use moeflux_engine::text::GenerationDefaults;
use moeflux_engine::{
    Activations, Device, Drafts, EngineOptions, KvType, PromptCacheOptions, isa_names,
};
use moeflux_store::{CachePolicy, IoChoice, Prefetch};

use crate::commands::serve::ServeArgs;
use crate::commands::synth::SynthArgs;
use crate::values::{
    CacheSize, cache_size, count, drafts, fewer_bits, group_size, non_negative, penalty,
    positive_share, probability, weight_bits,
};
use crate::{bytes, demo};

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

/// Which model, and how it runs.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelArgs {
    /// A directory, a file of one, or org/name on the Hub; left out, the demo model
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Where to run: cpu; in builds for GPUs also gpu, or gpu:N as `inspect --devices` counts them
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Threads that compute [default: all cores]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    threads: Option<usize>,
    /// Instruction set of the kernels: scalar, avx2, avxvnni, avx512 or amx; on ARM neon, dotprod or
    /// i8mm [default: the fastest that the machine has]
    #[arg(long, value_name = "NAME")]
    isa: Option<String>,
    /// How products with quantised weights round their inputs
    #[arg(long, value_enum, default_value_t = Rounding::Int16, value_name = "HOW")]
    activations: Rounding,
    /// Positions of a conversation [default: planned from memory]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    ctx: Option<usize>,
    /// Rows of a prefill chunk [default: 512, more where experts stream or a GPU has all of them]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    chunk: Option<usize>,
    /// How keys and values are kept
    #[arg(long, value_enum, default_value_t = KvFormat::F32, value_name = "TYPE")]
    kv_type: KvFormat,
    /// Memory for going back in a conversation with a recurrent model [default: planned]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, allow_negative_numbers = true)]
    checkpoint_memory: Option<u64>,
    /// How experts are read: auto, mmap, pread or direct [default: $MOEFLUX_EXPERT_IO, else auto]
    #[arg(long, value_name = "MODE")]
    expert_io: Option<String>,
    /// Memory for experts, such as 8GiB [default: planned from what is available]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, allow_negative_numbers = true)]
    expert_cache: Option<u64>,
    /// Memory of the GPU for experts [default: what is left there]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, allow_negative_numbers = true)]
    device_cache: Option<u64>,
    /// How small that memory may become while other programs need theirs [default: as small as
    /// it must where it is planned; --expert-cache itself where that is given]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, allow_negative_numbers = true)]
    expert_cache_min: Option<u64>,
    /// Which expert leaves the cache first
    #[arg(long, value_enum, default_value_t = Policy::Frequency, value_name = "POLICY")]
    cache_policy: Policy,
    /// Which experts are read ahead
    #[arg(long, value_enum, default_value_t = Ahead::Auto, value_name = "WHICH")]
    prefetch: Ahead,
    /// Tokens that are guessed from what the text was continued with before, or by the model's
    /// multi-token prediction (up to 4), and checked in one step: auto (as many as pay), off, or up
    /// to 15; changes no answer; none with --record-routing
    #[arg(long, value_name = "N", default_value = "auto", value_parser = drafts, allow_negative_numbers = true)]
    draft: Drafts,
    /// Write down which experts every token is routed to, for replay
    #[arg(long, value_name = "FILE")]
    record_routing: Option<PathBuf>,
    /// Experts a token gets; changes what the model says
    #[arg(long, value_name = "K", value_parser = count, allow_negative_numbers = true)]
    experts_per_token: Option<usize>,
    /// Let layers whose expert file is missing add nothing, instead of refusing the model
    #[arg(long)]
    allow_missing_experts: bool,
    /// Compare the checksums of a packed model before using it
    #[arg(long)]
    pub(crate) verify: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rounding {
    /// Next to nothing is lost
    Int16,
    /// Half the arithmetic, but with AVX2 and AVX-VNNI
    Int8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KvFormat {
    /// As they are
    F32,
    /// Half the memory
    Bf16,
    /// A little over a quarter
    Q8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// The one unused for longest
    Lru,
    /// The one whose next use is farthest, by how often it was used of late and the way to its
    /// layer
    Frequency,
}

impl Policy {
    pub(crate) const ALL: [Policy; 2] = [Policy::Lru, Policy::Frequency];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Policy::Lru => "lru",
            Policy::Frequency => "frequency",
        }
    }
}

impl From<Policy> for CachePolicy {
    fn from(policy: Policy) -> CachePolicy {
        match policy {
            Policy::Lru => CachePolicy::Lru,
            Policy::Frequency => CachePolicy::Frequency,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ahead {
    /// None
    Off,
    /// Those that the last token used
    LastToken,
    /// Those that the next layer's router would choose now
    Lookahead,
    /// Lookahead where it saves time, found out while running
    Auto,
}

/// A value that no command can work with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

impl ModelArgs {
    /// The same for another model.
    pub(crate) fn with_model(&self, model: String) -> ModelArgs {
        ModelArgs { model: Some(model), ..self.clone() }
    }

    /// The engine's options.
    pub(crate) fn engine_options(&self, exact: bool) -> Result<EngineOptions> {
        let device = Device::by_name(&self.device).map_err(usage)?;
        Ok(EngineOptions {
            device,
            threads: self.threads,
            isa: self.isa()?,
            activations: match self.activations {
                _ if exact => Activations::Full,
                Rounding::Int16 => Activations::Int16,
                Rounding::Int8 => Activations::Int8,
            },
            expert_io: self.expert_io()?,
            expert_cache: self.expert_cache,
            device_cache: self.device_cache,
            expert_cache_min: self.expert_cache_min,
            cache_policy: self.cache_policy.into(),
            prefetch: match self.prefetch {
                Ahead::Off => Prefetch::Off,
                Ahead::LastToken => Prefetch::LastToken,
                Ahead::Lookahead => Prefetch::Lookahead,
                Ahead::Auto => Prefetch::Auto,
            },
            drafts: self.draft,
            chunk: self.chunk,
            ctx: self.ctx,
            sessions: None,
            kv_type: match self.kv_type {
                KvFormat::F32 => KvType::F32,
                KvFormat::Bf16 => KvType::Bf16,
                KvFormat::Q8 => KvType::Q8,
            },
            experts_per_token: self.experts_per_token,
            allow_missing_experts: self.allow_missing_experts,
            checkpoint_bytes: self.checkpoint_memory,
            record_routing: self.record_routing.clone(),
            expert_stats: None,
            prompt_cache: None,
            gpu_tuning: if device == Device::Cpu { None } else { demo::gpu_tuning() },
            timed: false,
        })
    }

    fn isa(&self) -> Result<Option<String>> {
        match &self.isa {
            Some(name) if !isa_names().contains(&name.as_str()) => {
                let known = isa_names().join(", ");
                Err(usage(format!("--isa {name:?}: this machine has {known}")).into())
            }
            isa => Ok(isa.clone()),
        }
    }

    fn expert_io(&self) -> Result<IoChoice> {
        const VARIABLE: &str = "MOEFLUX_EXPERT_IO";
        if let Some(mode) = &self.expert_io {
            return Ok(mode.parse().map_err(|err| usage(format!("--expert-io: {err}")))?);
        }
        match std::env::var(VARIABLE) {
            Ok(mode) if mode.is_empty() => Ok(IoChoice::Auto),
            Ok(mode) => Ok(mode.parse().map_err(|err| usage(format!("{VARIABLE}: {err}")))?),
            Err(std::env::VarError::NotPresent) => Ok(IoChoice::Auto),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(usage(format!("{VARIABLE} is not UTF-8: choose auto, mmap, pread or direct"))
                    .into())
            }
        }
    }
}

fn usage(err: impl ToString) -> UsageError {
    UsageError(err.to_string())
}

/// How tokens are chosen. What is left out is as the model's authors advise in
/// `generation_config.json`, else greedy.
#[derive(Clone, Debug, Args)]
pub(crate) struct SampleArgs {
    /// Divides the logits; 0 always takes the likeliest token
    #[arg(long, value_name = "T", value_parser = non_negative, allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Keep the fewest tokens whose probabilities reach this sum
    #[arg(long, value_name = "P", value_parser = positive_share, allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep this many of the likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Drop tokens below this share of the likeliest one's probability
    #[arg(long, value_name = "P", value_parser = probability, allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Make tokens that were used less likely; 1 changes nothing
    #[arg(long, value_name = "R", value_parser = penalty, allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
    /// Determines all random choices [default: another one each time]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = count, allow_negative_numbers = true)]
    pub(crate) max_tokens: usize,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

impl SampleArgs {
    /// The sampler's options, completed by what the model advises.
    pub(crate) fn sampler(&self, advised: &GenerationDefaults) -> SamplerOptions {
        let samples = advised.do_sample.unwrap_or(false);
        let default_temperature = if samples { advised.temperature.unwrap_or(1.0) } else { 0.0 };
        let plain = SamplerOptions::default();
        SamplerOptions {
            temperature: self.temperature.unwrap_or(default_temperature),
            top_k: self.top_k.or(advised.top_k).unwrap_or(plain.top_k),
            top_p: self.top_p.or(advised.top_p).unwrap_or(plain.top_p),
            min_p: self.min_p.or(advised.min_p).unwrap_or(plain.min_p),
            repeat_penalty: self
                .repeat_penalty
                .or(advised.repetition_penalty)
                .unwrap_or(plain.repeat_penalty),
            repeat_window: plain.repeat_window,
            seed: self.seed.unwrap_or_else(seed_of_now),
        }
    }
}

fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |it| it.as_nanos() as u64)
}

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

#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// A checkpoint: a directory, a file of one, or org/name on the Hub
    pub(crate) src: String,
    /// The directory to write
    pub(crate) dst: PathBuf,
    /// Bits of what is not quantised yet, and of FP8 [default: 4]; where given, also of MXFP4
    /// and the like, of what a quantised checkpoint left as it is, and of what has more bits;
    /// 16 leaves all as it is
    #[arg(long, value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) bits: Option<u8>,
    /// Bits of the experts' down projections [default: as --bits]
    #[arg(long, value_name = "BITS", value_parser = fewer_bits, allow_negative_numbers = true)]
    pub(crate) down_bits: Option<u8>,
    /// Bits of what stays in memory [default: as --bits]
    #[arg(long, value_name = "BITS", value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) resident_bits: Option<u8>,
    /// Bits of the embedding [default: as --resident-bits]
    #[arg(long, value_name = "BITS", value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) embedding_bits: Option<u8>,
    /// Bits of the head [default: as --resident-bits]
    #[arg(long, value_name = "BITS", value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) head_bits: Option<u8>,
    /// Bits of routers and gates; those of FP8 and of quantised checkpoints stay as they are
    #[arg(long, value_name = "BITS", default_value_t = 8, value_parser = weight_bits, allow_negative_numbers = true)]
    pub(crate) gate_bits: u8,
    /// Columns that share a scale: 32, 64 or 128
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = group_size, allow_negative_numbers = true)]
    pub(crate) group_size: usize,
    /// How scales are chosen
    #[arg(long, value_enum, default_value_t = RoundTo::Fitted, value_name = "HOW")]
    pub(crate) rounding: RoundTo,
    /// What `moeflux calibrate` wrote of this model: the experts' columns that matter are rounded
    /// with more care, and columns make up for each other
    #[arg(long, value_name = "FILE")]
    pub(crate) importance: Option<PathBuf>,
    /// Start over what was packed otherwise
    #[arg(long)]
    pub(crate) force: bool,
    /// Threads that quantise [default: all cores]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoundTo {
    /// From the extremes of each group; fast
    Nearest,
    /// So that the squared error is least
    Fitted,
}

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// As perplexity's; may be given several times
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) text: Vec<PathBuf>,
    /// The importance file to write
    #[arg(long, value_name = "IMPORTANCE")]
    pub(crate) out: PathBuf,
    /// Tokens that are evaluated together, each window from an empty context [default: 2048]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) window: Option<usize>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

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

/// A model that need not be there.
#[derive(Debug, Args)]
pub(crate) struct ShapeArgs {
    /// A shape of `synth` instead of a model, such as qwen3.5-397b-a17b
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    pub(crate) shape: Option<String>,
    /// Bits of the shape's weights, 16 for BF16
    #[arg(long, value_name = "BITS", default_value_t = 4, requires = "shape")]
    pub(crate) bits: u8,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// List the GPUs of this machine instead
    #[arg(long)]
    pub(crate) devices: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,
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
