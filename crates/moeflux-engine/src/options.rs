//! How a model is opened.

use std::path::PathBuf;

use moeflux_backend::KvType;
use moeflux_model::{ModelShape, Variant, WithMtp};
use moeflux_store::{CachePolicy, IoChoice, Prefetch};

use crate::device::Device;
use crate::draft::Drafts;
use crate::error::EngineError;
use crate::snapshot::options::PromptCacheOptions;

/// How products with quantised weights treat their inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// As they are: for comparison with references.
    Full,
    /// Rounded to sixteen bits, in two digits of eight: next to nothing is
    /// lost, and nothing takes longer while memory or the drive is the limit.
    #[default]
    Int16,
    /// Rounded to eight bits: half the arithmetic, but for AVX2 and AVX-VNNI.
    Int8,
}

/// How a model is opened.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Where it runs.
    pub device: Device,
    /// Threads that compute; all cores where absent.
    pub threads: Option<usize>,
    /// The instruction set of the kernels; the fastest where absent.
    pub isa: Option<String>,
    /// How large projections treat their inputs.
    pub activations: Activations,
    /// How experts come into memory.
    pub expert_io: IoChoice,
    /// Bytes for the cache of experts; planned where absent.
    pub expert_cache: Option<u64>,
    /// Bytes of experts that a GPU may hold; where absent, as many as it has
    /// memory for.
    pub device_cache: Option<u64>,
    /// Bytes down to which that cache may shrink while others need memory;
    /// where absent, a planned cache shrinks as far as it must and one of a
    /// given size stays.
    pub expert_cache_min: Option<u64>,
    /// Which expert leaves the cache.
    pub cache_policy: CachePolicy,
    /// Which experts are read ahead.
    pub prefetch: Prefetch,
    /// Whether what follows is guessed and checked several tokens at a time; changes no
    /// token. Nothing is guessed where routing is written down, nor by a model with recurrent
    /// layers whose `checkpoint_bytes` hold less than two of its states.
    pub drafts: Drafts,
    /// Rows of a prefill chunk.
    pub chunk: Option<usize>,
    /// Positions of a session.
    pub ctx: Option<usize>,
    /// Sessions that memory is planned for; one where absent.
    pub sessions: Option<usize>,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Experts a token gets; changes what the model says.
    pub experts_per_token: Option<usize>,
    /// Whether a missing layer file counts as experts that add nothing.
    pub allow_missing_experts: bool,
    /// Bytes of the checkpoints of a session, for models with recurrent layers;
    /// planned where absent.
    pub checkpoint_bytes: Option<u64>,
    /// A directory where what the expert cache learns is kept from one run to
    /// the next.
    pub expert_stats: Option<PathBuf>,
    /// Where the routing of every token is written down.
    pub record_routing: Option<PathBuf>,
    /// Where prompts are kept from one run to the next.
    pub prompt_cache: Option<PromptCacheOptions>,
    /// A directory where a GPU's measured layouts of products are kept; where
    /// absent, nothing is measured. They change how long products take and no
    /// bit of what the model says.
    pub gpu_tuning: Option<PathBuf>,
    /// Whether ops can be timed, see [`measure`](crate::measure).
    pub timed: bool,
}

impl EngineOptions {
    pub(crate) fn variant(&self) -> Variant {
        let mtp = WithMtp::Found;
        Variant { top_k: self.experts_per_token, kv_type: self.kv_type, mtp }
    }
}

pub(crate) fn check_top_k(options: &EngineOptions, shape: &ModelShape) -> Result<(), EngineError> {
    match options.experts_per_token {
        Some(k) if k == 0 || k > shape.n_experts => Err(EngineError::Option {
            name: "--experts-per-token",
            value: k.to_string(),
            remedy: format!("choose 1 to {}", shape.n_experts),
        }),
        _ => Ok(()),
    }
}

/// Threads beyond this help no model of today.
const MAX_THREADS: usize = 512;

pub(crate) fn threads(options: &EngineOptions) -> Result<usize, EngineError> {
    match options.threads {
        Some(n) if n == 0 || n > MAX_THREADS => Err(EngineError::Option {
            name: "--threads",
            value: n.to_string(),
            remedy: format!("choose 1 to {MAX_THREADS}"),
        }),
        Some(n) => Ok(n),
        None => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
    }
}
