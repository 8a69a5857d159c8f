//! Which model a command uses, and how it runs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use moeflux_engine::{Activations, Device, EngineOptions, KvType, Speculation, isa_names};
use moeflux_server::parse_duration;
use moeflux_store::{CachePolicy, IoChoice, Prefetch};

use super::headings::MODEL;
use super::pictures::PictureArgs;
use crate::error::UsageError;
use crate::values::{count, speculation};
use crate::words::did_you_mean;
use crate::{bytes, paths};

/// Which model, and how it runs.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelArgs {
    /// Folder, GGUF file, org/name, org/name:Q4_K_M [demo model]
    #[arg(long, short, value_name = "MODEL", help_heading = MODEL)]
    pub(crate) model: Option<String>,
    /// auto (the fastest), cpu, gpu or gpu:N
    #[arg(long, default_value = "auto", value_name = "NAME", help_heading = MODEL)]
    device: String,
    /// Context window in tokens [default: by memory]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true, help_heading = MODEL)]
    #[arg(aliases = ["ctx-size", "context", "max-model-len"])]
    pub(crate) ctx: Option<usize>,
    /// Compute threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true, help_heading = MODEL)]
    threads: Option<usize>,
    #[command(flatten)]
    pictures: PictureArgs,
    /// Free an unused tower after this [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, allow_negative_numbers = true, help_heading = MODEL)]
    tower_idle: Option<Duration>,
    /// Check the checksums of a packed model first
    #[arg(long, help_heading = MODEL)]
    pub(crate) verify: bool,
    /// Expert cache, like 8GiB [default: free memory]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse, allow_negative_numbers = true, help_heading = MEMORY)]
    expert_cache: Option<u64>,
    /// Smallest expert cache when memory is short
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse, allow_negative_numbers = true, help_heading = MEMORY)]
    expert_cache_min: Option<u64>,
    /// GPU memory for experts [default: all free]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse, allow_negative_numbers = true, help_heading = MEMORY)]
    device_cache: Option<u64>,
    /// KV cache: f32, bf16 or q8
    #[arg(long, value_enum, default_value_t = KvFormat::F32, value_name = "TYPE", hide_possible_values = true, help_heading = MEMORY)]
    #[arg(aliases = ["cache-type", "kv-cache-dtype"])]
    kv_type: KvFormat,
    /// Prompt tokens per step [default: 512 or more]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true, help_heading = MEMORY)]
    #[arg(alias = "prefill-chunk")]
    chunk: Option<usize>,
    /// State checkpoints, to roll chats back to
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse, allow_negative_numbers = true, help_heading = MEMORY)]
    checkpoint_memory: Option<u64>,
    /// Cache of table rows [default: 128MiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse, allow_negative_numbers = true, help_heading = MEMORY)]
    row_cache: Option<u64>,
    /// auto, mmap, pread or direct [default: auto]
    #[arg(long, value_name = "MODE", help_heading = MEMORY)]
    expert_io: Option<String>,
    /// Evict by frequency or lru
    #[arg(long, value_enum, default_value_t = Policy::Frequency, value_name = "POLICY", hide_possible_values = true, help_heading = MEMORY)]
    cache_policy: Policy,
    /// off, last-token, lookahead
    #[arg(long, value_enum, default_value_t = Ahead::Auto, value_name = "WHICH", hide_possible_values = true, help_heading = MEMORY)]
    prefetch: Ahead,
    /// Draft tokens a step: off, 1 to 15
    #[arg(long, value_name = "N", default_value = "auto", value_parser = speculation, allow_negative_numbers = true, help_heading = ADVANCED)]
    draft: Speculation,
    /// int16, or int8: less exact
    #[arg(long, value_enum, default_value_t = Rounding::Int16, value_name = "TYPE", hide_possible_values = true, help_heading = ADVANCED)]
    activations: Rounding,
    /// Kernels, such as avx2 [default: the fastest]
    #[arg(long, value_name = "NAME", help_heading = ADVANCED)]
    isa: Option<String>,
    /// Active experts; changes the answers
    #[arg(long, value_name = "K", value_parser = count, allow_negative_numbers = true, help_heading = ADVANCED)]
    experts_per_token: Option<usize>,
    /// Run although expert files are missing
    #[arg(long, help_heading = ADVANCED)]
    allow_missing_experts: bool,
    /// Record the routing, for `replay`
    #[arg(long, value_name = "FILE", help_heading = ADVANCED)]
    record_routing: Option<PathBuf>,
}

/// Holds the default of `--device`.
pub(crate) const DEVICE_VARIABLE: &str = "MOEFLUX_DEVICE";

pub(super) const MEMORY: &str = "Memory and streaming";
const ADVANCED: &str = "Advanced";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rounding {
    /// Two int8 halves: almost exact.
    Int16,
    /// Half the arithmetic, except with AVX2 and AVX-VNNI.
    Int8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KvFormat {
    /// As computed.
    F32,
    /// Half the memory.
    Bf16,
    /// A little over a quarter of the memory.
    Q8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// Evicts the least recently used expert.
    Lru,
    /// Evicts the expert with the farthest expected next use, from its recent frequency and the
    /// distance to its layer.
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
    /// No prefetch.
    Off,
    /// The experts that the last token used.
    LastToken,
    /// The experts that the next layer's router would choose now.
    Lookahead,
    /// Lookahead if it saves time, measured while running.
    Auto,
}

impl ModelArgs {
    /// These arguments with another model.
    pub(crate) fn with_model(&self, model: String) -> ModelArgs {
        ModelArgs { model: Some(model), ..self.clone() }
    }

    /// These arguments with any device, where none but the processor was named.
    pub(crate) fn on_any_device(&self) -> ModelArgs {
        let device = if self.device.eq_ignore_ascii_case("cpu") {
            String::from("auto")
        } else {
            self.device.clone()
        };
        ModelArgs { device, ..self.clone() }
    }

    /// The engine's options.
    pub(crate) fn engine_options(&self, exact: bool) -> Result<EngineOptions> {
        let device = self.device()?;
        let mut options = EngineOptions::default();
        options.speculation = self.draft;

        let compute = &mut options.compute;
        compute.device = device;
        compute.threads = self.threads;
        compute.isa = self.isa()?;
        compute.activations = match self.activations {
            _ if exact => Activations::Full,
            Rounding::Int16 => Activations::Int16,
            Rounding::Int8 => Activations::Int8,
        };
        compute.gpu_tuning = if device == Device::Cpu { None } else { paths::gpu_tuning() };

        let memory = &mut options.memory;
        memory.ctx = self.ctx;
        memory.chunk = self.chunk;
        memory.checkpoint_bytes = self.checkpoint_memory;
        memory.row_cache = self.row_cache;
        memory.kv_type = match self.kv_type {
            KvFormat::F32 => KvType::F32,
            KvFormat::Bf16 => KvType::Bf16,
            KvFormat::Q8 => KvType::Q8,
        };

        self.pictures.set(&mut options.vision);
        if let Some(idle) = self.tower_idle {
            options.vision.tower_idle = idle;
        }

        let experts = &mut options.experts;
        experts.io = self.expert_io()?;
        experts.cache = self.expert_cache;
        experts.cache_min = self.expert_cache_min;
        experts.device_cache = self.device_cache;
        experts.policy = self.cache_policy.into();
        experts.prefetch = match self.prefetch {
            Ahead::Off => Prefetch::Off,
            Ahead::LastToken => Prefetch::LastToken,
            Ahead::Lookahead => Prefetch::Lookahead,
            Ahead::Auto => Prefetch::Auto,
        };
        experts.per_token = self.experts_per_token;
        experts.allow_missing = self.allow_missing_experts;
        experts.record_routing = self.record_routing.clone();
        Ok(options)
    }

    fn device(&self) -> Result<Device, UsageError> {
        let name = self.device.to_lowercase();
        Device::by_name(&name).map_err(|err| {
            let err = if cfg!(feature = "gpu") {
                format!("{err} as `moeflux inspect --devices` counts them")
            } else {
                err.to_string()
            };
            if std::env::var_os(DEVICE_VARIABLE).is_some_and(|value| *value == *self.device) {
                // The flag was not given, or says the same.
                return UsageError(format!("{err} ({DEVICE_VARIABLE})"));
            }
            let kind = name.split([':', ' ', '=']).next().unwrap_or_default();
            let is_gpu = ["cuda", "metal", "vulkan", "rocm", "mps", "wgpu", "gpu0", "gp"];
            match kind {
                _ if cfg!(feature = "gpu") && is_gpu.contains(&kind) => {
                    UsageError(format!("{err} (did you mean gpu?)"))
                }
                _ => usage(err),
            }
        })
    }

    fn isa(&self) -> Result<Option<String>> {
        let Some(name) = &self.isa else { return Ok(None) };
        let names = isa_names();
        if names.contains(&name.as_str()) {
            return Ok(Some(name.clone()));
        }
        let known = names.join(", ");
        let near = did_you_mean(name, names.into_iter());
        let near = near.map_or(String::new(), |near| format!("did you mean {near}? "));
        Err(usage(format!("--isa {name:?}: {near}this machine has {known}")).into())
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
