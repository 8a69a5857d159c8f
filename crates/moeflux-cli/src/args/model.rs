//! Which model a command uses, and how it runs.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use moeflux_engine::{Activations, Device, Drafts, EngineOptions, KvType, isa_names};
use moeflux_store::{CachePolicy, IoChoice, Prefetch};

use crate::error::UsageError;
use crate::values::{count, drafts};
use crate::{bytes, paths};

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
            gpu_tuning: if device == Device::Cpu { None } else { paths::gpu_tuning() },
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
