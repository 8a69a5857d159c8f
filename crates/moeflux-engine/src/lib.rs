//! Turns a prompt into text: model families, sessions, sampling.
//!
//! ```no_run
//! use moeflux_engine::{Engine, EngineOptions};
//! use moeflux_engine::text::Markup;
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

mod calibrate;
mod constrain;
mod conversation;
mod convert;
mod device;
mod draft;
mod engine;
mod error;
mod expert_stats;
mod forecast;
mod forward_error;
mod generate;
pub mod hub;
mod inspect;
mod kept;
mod layers;
mod load;
pub mod measure;
mod model;
mod model_shape;
mod models;
mod options;
pub mod pack;
mod perplexity;
mod plan;
mod read_weights;
mod record;
pub mod sampler;
mod scheduler;
mod session;
mod snapshot;
pub mod synth;
pub mod text;
mod threads;
pub mod verify;

pub use crate::model_shape::ModelShape;
pub use calibrate::{Calibration, Importance, calibrate};
pub use constrain::{AnswerShape, Constraint, ConstraintError, Grammar, Grammars, LeftToModel};
pub use conversation::{Conversation, ConversationError, ModelName};
pub use convert::{pack_checkpoint, synthesise};
pub use device::{Device, DeviceFacts, DeviceTuning, GpuLimits, GpuProduct, devices, isa_names};
pub use draft::{DraftCounts, Drafts, MAX_GUESS};
pub use engine::Engine;
pub use error::EngineError;
pub use expert_stats::read_expert_stats;
pub use forecast::{Forecast, Rate};
pub use generate::{Finish, GenerateOptions, Generated, Sink, generate};
pub use inspect::{Inspection, Storage, check, inspect};
pub use load::LoadError;
pub use models::{FAMILIES, Family};
pub use moeflux_backend::{CacheSpec, DeviceStats, KvType};
pub use moeflux_core::checkpoint::CheckpointKind;
pub use moeflux_core::{TokenId, explain_thread_error, json_problem};
pub use options::{Activations, EngineOptions};
pub use perplexity::{Divergence, Perplexity, divergence, perplexity};
pub use plan::{Alternative, MAX_SESSIONS, Plan, PlanRow, RowKind, Shortage};
pub use scheduler::{
    Answer, Bias, Event, Job, Listener, Load, Scheduler, SchedulerOptions, SubmitError,
    TokenLogprob, TokenText,
};
pub use session::{Logits, LogitsSink, Part, Prompt, Read, Session, eval_together};
pub use snapshot::{PromptCacheOptions, SnapshotError, StateError};
pub use text::guard::catch_panic;
