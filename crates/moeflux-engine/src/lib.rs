//! Turns a prompt into text: model families, sessions, sampling.
//!
//! ```no_run
//! use moeflux_engine::{Engine, EngineOptions};
//! use moeflux_text::Markup;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::open("models/qwen3.6-35b-a3b".as_ref(), &EngineOptions::default())?;
//! let tokenizer = engine.tokenizer()?;
//! let prompt = tokenizer.encode("The quick brown fox", Markup::Literal)?;
//! let logits = engine.session().eval_prompt(&prompt)?;
//! assert_eq!(logits.len(), engine.shape().vocab);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod choice;
mod conversation;
mod decoding;
mod device;
mod drafting;
mod engine;
mod error;
mod expert_stats;
mod forecast;
mod format_name;
mod inspect;
pub mod measure;
mod memory_probe;
mod options;
mod perplexity;
mod plan;
mod planning;
mod positions;
mod record;
mod residency;
mod rows;
pub mod sampler;
mod scheduler;
mod session;
mod snapshot;
mod speculation;
mod step;
mod vision;

pub use choice::{DeviceChoice, Reason, test_device};
pub use conversation::{Conversation, ConversationError, ModelName};
pub use decoding::{Bias, DecodingOptions, Finish, TokenLogprob, TokenText};
pub use device::{
    Device, DeviceFacts, DeviceTuning, GpuLimits, GpuProduct, built_isa_names, devices, isa_names,
};
pub use engine::Engine;
pub use error::{EngineError, ErrorKind, RowError, SnapshotError, StateError};
pub use expert_stats::read_expert_stats;
pub use forecast::{Forecast, Rate, Rates};
pub use format_name::ExpertFormat;
pub use inspect::{Inspection, Storage, check, choose_device, inspect};
pub use moeflux_backend::{CacheSpec, DeviceStats, KvType, RowPosition};
pub use moeflux_core::checkpoint::CheckpointKind;
pub use moeflux_core::{PictureRows, TokenId, explain_thread_error, json_problem};
pub use moeflux_image::Prepared as PreparedPicture;
pub use moeflux_model::{FAMILIES, Family, LoadError, ModelShape, dialects};
pub use options::{
    Activations, ComputeOptions, DEFAULT_IMAGE_TOKENS, DEFAULT_TOWER_IDLE, EngineOptions,
    ExpertOptions, MIN_PROMPT_TOKENS, MemoryOptions, PromptCacheOptions, PromptMemory,
    VisionOptions,
};
pub use perplexity::{Divergence, Perplexity, divergence, perplexity};
pub use plan::{Alternative, Change, Plan, PlanRow, RowKind, Shortage};
pub use planning::{MAX_SESSIONS, ModelSizes};
pub use positions::input::{ChunkInput, EMBEDDED, InputRow, RowInput};
pub use positions::pictures::PromptPicture;
pub use scheduler::{
    Answer, Event, Job, Listener, Scheduler, SchedulerOptions, SchedulerStats, SubmitError,
};
pub use session::{LogitsSink, Prompt, Read, SequenceChunk, Session, eval_batch};
pub use speculation::limits::MAX_DRAFT;
pub use speculation::options::{Speculation, SpeculationStats};
pub use step::Logits;
pub use vision::{
    LOW_DETAIL, LookProgress, PictureFacts, PictureReader, SeenPicture, TowerFacts, Vision,
    picture_reader,
};
