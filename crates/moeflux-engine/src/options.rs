//! How a model is opened.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use moeflux_backend::{ActivationPrecision, KvType};
use moeflux_core::OptionId;
use moeflux_model::{ModelShape, Variant, WithMtp};
use moeflux_store::{CachePolicy, IoChoice, Prefetch};

use crate::device::Device;
use crate::error::EngineError;
use crate::speculation::options::Speculation;

/// How products with quantised weights treat their inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// As they are: for comparison with references.
    Full,
    /// Rounded to sixteen bits, which are multiplied as a high and a low byte: next to nothing is
    /// lost, and nothing takes longer while memory or the drive is the limit.
    #[default]
    Int16,
    /// Rounded to eight bits: half the arithmetic, but for AVX2 and AVX-VNNI.
    Int8,
}

/// Where snapshots of prompts are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptCacheOptions {
    /// The directory; created where it is missing, for its owner only. All
    /// snapshots in it are for their owner only.
    pub dir: PathBuf,
    /// Bytes of all snapshots together; the least recently used leave.
    pub max_bytes: u64,
    /// A [`Scheduler`](crate::Scheduler) keeps a prompt where at least this many of its tokens are not
    /// kept already; [`MIN_PROMPT_TOKENS`] is right for most.
    pub min_tokens: usize,
}

/// Tokens that a drive is not troubled for: they are evaluated again in little time, and agents send
/// many such prompts, for titles and the like.
pub const MIN_PROMPT_TOKENS: usize = 256;

/// Memory for evaluated prompts whose sessions a [`Scheduler`](crate::Scheduler) has given to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptMemory {
    /// None: such prompts go to the prompt cache on the drive, where there is one.
    #[default]
    Off,
    /// A part of the memory that nothing else needs.
    Planned,
    /// This number of bytes.
    Bytes(u64),
}

/// How a model is opened: where it runs, what memory it takes, how its experts come.
///
/// Every field has a default that suits the machine. Set fields, or chain the methods of the
/// same meaning:
///
/// ```
/// use moeflux_engine::EngineOptions;
///
/// let options = EngineOptions::default().ctx(8192).threads(4);
/// assert_eq!(options.memory.ctx, Some(8192));
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Where and how steps are computed.
    pub compute: ComputeOptions,
    /// What sessions take in memory.
    pub memory: MemoryOptions,
    /// How routed experts come into memory and stay there.
    pub experts: ExpertOptions,
    /// Whether tokens are drafted and verified several at a time; changes no token. Nothing is
    /// drafted while routing is recorded, nor by a model with recurrent layers whose
    /// `checkpoint_bytes` hold less than two of its states.
    pub speculation: Speculation,
    /// The prefix cache on disk; none where absent.
    pub prompt_cache: Option<PromptCacheOptions>,
    /// How pictures are seen, where the model has a vision tower.
    pub vision: VisionOptions,
    /// Whether the first token matters more than the rate of those after it: a GPU that has memory for
    /// all experts gets them while the engine answers, few of its products are measured when a model is
    /// opened, and the tokenizer is read meanwhile. No bit of an answer depends on it.
    pub quick_start: bool,
}

/// Where and how steps are computed.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ComputeOptions {
    /// Where the model runs.
    pub device: Device,
    /// Threads that compute; all cores where absent.
    pub threads: Option<usize>,
    /// The instruction set of the kernels; the fastest where absent.
    pub isa: Option<String>,
    /// The precision of the inputs of large projections.
    pub activations: Activations,
    /// A directory for a GPU's measured layouts of products, and for what [`Device::Auto`] measures;
    /// where absent, no layout is measured, and the rest every time. Layouts change how long products
    /// take and no bit of their results.
    pub gpu_tuning: Option<PathBuf>,
    /// Whether ops can be timed, see [`measure`](crate::measure).
    pub timed: bool,
}

/// What sessions take in memory.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct MemoryOptions {
    /// Positions of a session.
    pub ctx: Option<usize>,
    /// Sessions that memory is planned for; one where absent.
    pub sessions: Option<usize>,
    /// Where `sessions` is absent: as many as memory has room for with the expert cache, each with
    /// the context that one alone would have, and at most this many.
    pub most_sessions: Option<usize>,
    /// Rows of a prefill chunk.
    pub chunk: Option<usize>,
    /// Bytes of the state checkpoints of a session, for models with recurrent layers; planned
    /// where absent.
    pub checkpoint_bytes: Option<u64>,
    /// Bytes of the cache of rows of tables, for models that have any; planned where absent.
    pub row_cache: Option<u64>,
    /// Evaluated prompts without a session.
    pub prompts: PromptMemory,
    /// The element type of cached keys and values.
    pub kv_type: KvType,
}

/// How routed experts come into memory and stay there.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ExpertOptions {
    /// How expert records are read.
    pub io: IoChoice,
    /// Bytes of the expert cache; planned where absent.
    pub cache: Option<u64>,
    /// Bytes down to which the cache may shrink while other processes need memory; where absent,
    /// a planned cache shrinks as far as it must and one of a given size stays.
    pub cache_min: Option<u64>,
    /// Bytes of experts that a GPU may hold; where absent, as many as it has memory for.
    pub device_cache: Option<u64>,
    /// Which expert is evicted.
    pub policy: CachePolicy,
    /// Which experts are prefetched.
    pub prefetch: Prefetch,
    /// Routed experts of a token, in place of the config's number; changes the output.
    pub per_token: Option<usize>,
    /// Whether experts of a missing layer file contribute zero instead of an error.
    pub allow_missing: bool,
    /// A directory for the statistics that the cache learns, from one run to the next.
    pub stats: Option<PathBuf>,
    /// A file for the routing of every token, which `replay` reads.
    pub record_routing: Option<PathBuf>,
}

/// Tokens of a picture at most, where nothing else is asked for: a million pixels of the Qwen families.
pub const DEFAULT_IMAGE_TOKENS: NonZeroUsize = NonZeroUsize::new(1024).expect("above zero");

/// How long a tower without pictures stays in memory, where nothing else is asked for.
pub const DEFAULT_TOWER_IDLE: Duration = Duration::from_secs(300);

/// How pictures are seen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VisionOptions {
    /// Whether the model's vision tower is left out.
    pub is_off: bool,
    /// The GGUF file of the vision tower (`mmproj`); where absent, the one next to the model's GGUF file.
    pub mmproj: Option<PathBuf>,
    /// Rows of a prompt that a picture takes at most; as many as the model's processor allows where
    /// absent.
    pub image_tokens: Option<NonZeroUsize>,
    /// How long the tower stays in memory without pictures.
    pub tower_idle: Duration,
}

impl Default for VisionOptions {
    fn default() -> VisionOptions {
        VisionOptions {
            is_off: false,
            mmproj: None,
            image_tokens: Some(DEFAULT_IMAGE_TOKENS),
            tower_idle: DEFAULT_TOWER_IDLE,
        }
    }
}

/// A method of [`EngineOptions`] for each field of a group.
macro_rules! setters {
    ($($(#[$doc:meta])* $method:ident: $($field:ident).+, $value:ty;)*) => {
        impl EngineOptions {$(
            $(#[$doc])*
            #[must_use]
            pub fn $method(mut self, value: impl Into<$value>) -> EngineOptions {
                self.$($field).+ = value.into();
                self
            }
        )*}
    };
}

setters! {
    /// Sets [`EngineOptions::quick_start`].
    quick_start: quick_start, bool;
    /// Sets [`ComputeOptions::device`].
    device: compute.device, Device;
    /// Sets [`ComputeOptions::threads`].
    threads: compute.threads, Option<usize>;
    /// Sets [`ComputeOptions::isa`].
    isa: compute.isa, Option<String>;
    /// Sets [`ComputeOptions::activations`].
    activations: compute.activations, Activations;
    /// Sets [`ComputeOptions::gpu_tuning`].
    gpu_tuning: compute.gpu_tuning, Option<PathBuf>;
    /// Sets [`ComputeOptions::timed`].
    timed: compute.timed, bool;
    /// Sets [`MemoryOptions::ctx`].
    ctx: memory.ctx, Option<usize>;
    /// Sets [`MemoryOptions::sessions`].
    sessions: memory.sessions, Option<usize>;
    /// Sets [`MemoryOptions::most_sessions`].
    most_sessions: memory.most_sessions, Option<usize>;
    /// Sets [`MemoryOptions::chunk`].
    chunk: memory.chunk, Option<usize>;
    /// Sets [`MemoryOptions::checkpoint_bytes`].
    checkpoint_bytes: memory.checkpoint_bytes, Option<u64>;
    /// Sets [`MemoryOptions::row_cache`].
    row_cache: memory.row_cache, Option<u64>;
    /// Sets [`MemoryOptions::prompts`].
    prompt_memory: memory.prompts, PromptMemory;
    /// Sets [`MemoryOptions::kv_type`].
    kv_type: memory.kv_type, KvType;
    /// Sets [`ExpertOptions::io`].
    expert_io: experts.io, IoChoice;
    /// Sets [`ExpertOptions::cache`].
    expert_cache: experts.cache, Option<u64>;
    /// Sets [`ExpertOptions::cache_min`].
    expert_cache_min: experts.cache_min, Option<u64>;
    /// Sets [`ExpertOptions::device_cache`].
    device_cache: experts.device_cache, Option<u64>;
    /// Sets [`ExpertOptions::policy`].
    cache_policy: experts.policy, CachePolicy;
    /// Sets [`ExpertOptions::prefetch`].
    prefetch: experts.prefetch, Prefetch;
    /// Sets [`ExpertOptions::per_token`].
    experts_per_token: experts.per_token, Option<usize>;
    /// Sets [`ExpertOptions::allow_missing`].
    allow_missing_experts: experts.allow_missing, bool;
    /// Sets [`ExpertOptions::stats`].
    expert_stats: experts.stats, Option<PathBuf>;
    /// Sets [`ExpertOptions::record_routing`].
    record_routing: experts.record_routing, Option<PathBuf>;
    /// Sets [`VisionOptions::is_off`].
    vision_off: vision.is_off, bool;
    /// Sets [`VisionOptions::mmproj`].
    mmproj: vision.mmproj, Option<PathBuf>;
    /// Sets [`VisionOptions::image_tokens`].
    image_tokens: vision.image_tokens, Option<NonZeroUsize>;
    /// Sets [`VisionOptions::tower_idle`].
    tower_idle: vision.tower_idle, Duration;
    /// Sets whether tokens are drafted and verified several at a time.
    speculation: speculation, Speculation;
    /// Sets the prefix cache on disk.
    prompt_cache: prompt_cache, Option<PromptCacheOptions>;
}

impl EngineOptions {
    pub(crate) fn variant(&self) -> Variant {
        let mtp = WithMtp::IfStored;
        Variant { top_k: self.experts.per_token, kv_type: self.memory.kv_type, mtp }
    }
}

pub(crate) fn check_top_k(options: &EngineOptions, shape: &ModelShape) -> Result<(), EngineError> {
    match options.experts.per_token {
        Some(k) if k == 0 || k > shape.n_experts => Err(EngineError::Option {
            option: OptionId::ExpertsPerToken,
            value: k.to_string(),
            remedy: format!("choose 1 to {}", shape.n_experts),
        }),
        _ => Ok(()),
    }
}

/// Threads beyond this help no model of today.
const MAX_THREADS: usize = 512;

pub(crate) fn threads(options: &EngineOptions) -> Result<usize, EngineError> {
    match options.compute.threads {
        Some(n) if n == 0 || n > MAX_THREADS => Err(EngineError::Option {
            option: OptionId::Threads,
            value: n.to_string(),
            remedy: format!("choose 1 to {MAX_THREADS}"),
        }),
        Some(n) => Ok(n),
        None => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
    }
}

/// How inputs of products are rounded.
pub(crate) fn precision(activations: Activations) -> ActivationPrecision {
    match activations {
        Activations::Full => ActivationPrecision::F32,
        Activations::Int16 => ActivationPrecision::Int16,
        Activations::Int8 => ActivationPrecision::Int8,
    }
}
