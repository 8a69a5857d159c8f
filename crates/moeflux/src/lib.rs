//! Runs Mixture-of-Experts language models larger than memory.
//!
//! The routed experts of a model stay on the drive and stream into a bounded cache as tokens choose
//! them; everything else stays in memory. Checkpoints are opened as they were published.
//!
//! ```
//! # fn main() -> Result<(), moeflux::Error> {
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../moeflux-cli/demo");
//! # // The published crate comes without a model.
//! # if !std::path::Path::new(folder).exists() {
//! #     return Ok(());
//! # }
//! let model = moeflux::Model::open(folder)?;
//! let mut chat = model.chat()?;
//! for piece in chat.send("Why is the sky blue?")? {
//!     print!("{}", piece?);
//! }
//! assert_eq!(chat.messages().len(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! # The rules
//!
//! **Ownership.** A [`Model`] is a handle: clones share one loaded model, and its memory is freed
//! when the last handle, [`Chat`] and [`Answer`] are gone. A [`Chat`] owns its messages. An
//! [`Answer`] of a chat borrows it, and appends to it what it has yielded when it is dropped. Answers
//! of [`Model::answer`] and [`Model::generate`] borrow nothing.
//!
//! **Threads.** Opening a model starts one thread that runs its steps, and a pool of threads that
//! compute. Every type here is `Send`; a [`Model`] is `Sync`. Answers that are requested from
//! several threads share steps: up to [`MemoryOptions::sessions`] run at a time, others wait for a
//! session. Dropping an [`Answer`] cancels it.
//!
//! **What blocks.** [`Model::open`] reads all resident weights. [`Chat::send`], [`Model::answer`] and
//! [`Model::generate`] tokenise the prompt and return; [`Answer::next`](Iterator::next) blocks until
//! text is certain. Nothing here is async.
//!
//! **Input and output.** A model reads its own files, experts while it runs included. It writes
//! nothing unless options name a place: `Options::prompt_cache`, [`ExpertOptions::stats`],
//! [`ExpertOptions::record_routing`], [`ComputeOptions::gpu_tuning`]. It opens no connection.
//!
//! **Determinism.** The same model, options, messages and [`Sampling`] give the same text on the
//! processor, whatever its instruction set, the number of threads, the size of the expert cache and
//! the other answers of a step.
//!
//! **Untrusted input.** What a hostile checkpoint, template or message gets wrong is an [`Error`].
//! Text of messages never becomes a control token. A chat template is a program that comes with a
//! model: here it runs in the calling process, with limits of depth and work. A program that opens
//! models that it does not trust calls
//! [`render_in_children`](moeflux_text::render_in_children) first, which adds limits of time and
//! memory.

#![forbid(unsafe_code)]

mod answer;
mod chat;
mod error;
mod generate;
mod model;
mod pictures;
mod request;
mod shared;

pub use moeflux_core::OptionId;
pub use moeflux_engine::sampler::SamplerOptions as Sampling;
pub use moeflux_engine::{
    Activations, Bias, ComputeOptions, Device, EngineOptions as Options, ErrorKind, ExpertOptions,
    Finish, KvType, MIN_PROMPT_TOKENS, MemoryOptions, Plan, PromptCacheOptions, PromptMemory,
    SchedulerOptions, SeenPicture, Speculation, SpeculationStats, SubmitError, TokenLogprob,
    Vision, VisionOptions,
};
pub use moeflux_text::{Infill, Message, NamedText, ToolChoice};

pub use self::answer::{Answer, Piece, Summary, ToolCall, Update};
pub use self::chat::Chat;
pub use self::error::Error;
pub use self::generate::{AnswerOptions, Ask, News, Order};
pub use self::model::Model;
pub use self::pictures::{picture_id, picture_message};
pub use self::request::{Format, Request, Settings};
pub use moeflux_engine::LOW_DETAIL;
