//! What can go wrong between opening a model and its next token.

mod row;
mod state;

use std::io;

use moeflux_backend::DeviceError;
use moeflux_core::{OutOfMemory, TokenId, WriteError, show_bytes};
use moeflux_model::{ForwardError, LoadError};
use moeflux_store::StoreError;
use moeflux_text::{ConstraintError, TextError};

use crate::plan::Shortage;
use crate::sampler::error::SamplerError;

pub(crate) use self::row::MAX_POSITION;
pub use self::row::RowError;
pub use self::state::{SnapshotError, StateError};

/// Why a model could not be opened or a step could not be run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The checkpoint is not one that this engine runs, or is damaged.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An expert did not come.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device failed.
    #[error("{0}{remedy}", remedy = remedy(.0))]
    Device(#[from] DeviceError),
    /// A GPU cannot be opened.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] moeflux_wgpu::OpenError),
    /// Text or a template cannot be used.
    #[error(transparent)]
    Text(#[from] TextError),
    /// No token can be chosen.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// An answer has left its grammar.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A token is not of this model's vocabulary.
    #[error("token {} is outside the vocabulary of {vocab}", token.0)]
    TokenOutOfRange {
        /// The token.
        token: TokenId,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The session has no room for more tokens.
    #[error("the context is full: {wanted} tokens do not fit into {limit} (--ctx)")]
    ContextFull {
        /// Tokens that the session would hold.
        wanted: usize,
        /// Tokens that it may hold.
        limit: usize,
    },
    /// A session cannot be written in the original system's format, or bytes
    /// in it are not this model's.
    #[error(transparent)]
    State(#[from] StateError),
    /// A snapshot file cannot be written or used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A row of embeddings or positions cannot be evaluated.
    #[error(transparent)]
    Row(#[from] RowError),
    /// A checkpoint is made where the session stands, and nowhere else.
    #[error("a checkpoint at {position} was asked for, the session stands at {actual}")]
    WrongPosition {
        /// The position asked for.
        position: usize,
        /// The session's.
        actual: usize,
    },
    /// The session remembers nothing of that position.
    #[error("there is no checkpoint at position {position}")]
    NoCheckpoint {
        /// The position.
        position: usize,
    },
    /// A session cannot be cut behind its end.
    #[error("the session ends at {end}, before position {position}")]
    BeyondEnd {
        /// The position asked for.
        position: usize,
        /// The session's.
        end: usize,
    },
    /// Checkpoints may not take that much.
    #[error(
        "a checkpoint takes {}, the checkpoints of a session may take {}", show_bytes(*needed),
        show_bytes(*budget)
    )]
    CheckpointBudget {
        /// Bytes of one.
        needed: u64,
        /// Bytes of all.
        budget: u64,
    },
    /// What the model computed is not a finite number.
    #[error(
        "{what} is {value}: a weight of the model is damaged, or its arithmetic overflowed; \
         `moeflux verify MODEL` checks the files"
    )]
    NotFinite {
        /// What.
        what: String,
        /// NaN or an infinity.
        value: f32,
    },
    /// The threads that compute cannot be started.
    #[error(
        "cannot start {n_threads} compute threads ({source}): allow this process more threads, or \
         give fewer (--threads)"
    )]
    Threads {
        /// Threads asked for, the caller's included.
        n_threads: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The system gives no memory.
    #[error("{0}; a smaller --ctx, --chunk or --expert-cache takes less")]
    OutOfMemory(#[from] OutOfMemory),
    /// Nothing was given to evaluate.
    #[error("nothing to evaluate: the prompt has no tokens")]
    EmptyPrompt,
    /// An option makes no sense.
    #[error("{name} {value}: {remedy}")]
    Option {
        /// The option.
        name: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        remedy: String,
    },
    /// The memory that the model needs is not there.
    #[error("{0}")]
    Memory(Box<Shortage>),
}

/// What helps where the device fails.
fn remedy(err: &DeviceError) -> &'static str {
    match err {
        DeviceError::OutOfMemory { .. } => {
            "; a smaller --device-cache or --ctx, or fewer --sessions, leave more"
        }
        DeviceError::Lost { .. } => "",
    }
}

impl From<Box<Shortage>> for EngineError {
    fn from(shortage: Box<Shortage>) -> EngineError {
        EngineError::Memory(shortage)
    }
}

impl From<ForwardError> for EngineError {
    fn from(err: ForwardError) -> EngineError {
        match err {
            ForwardError::Store(err) => err.into(),
            ForwardError::Device(err) => err.into(),
        }
    }
}
