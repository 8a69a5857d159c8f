//! What can go wrong between opening a model and its next token.

mod row;
mod state;

use std::io;
use std::path::PathBuf;

use moeflux_backend::DeviceError;
use moeflux_core::{OptionId, OutOfMemory, TokenId, WriteError, show_bytes};
use moeflux_image::{LayoutError, PictureError};
use moeflux_model::{ForwardError, LoadError};
use moeflux_store::StoreError;
use moeflux_text::{ConstraintError, TextError};

use crate::plan::Shortage;
use crate::sampler::error::SamplerError;

pub(crate) use self::row::MAX_POSITION;
pub use self::row::RowError;
pub use self::state::{SnapshotError, StateError};

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Files of the model are missing, damaged, or of no kind that is read.
    Model,
    /// An option makes no sense for the model or the machine.
    Option,
    /// Memory does not suffice.
    Memory,
    /// A part of a request cannot be used.
    Request,
    /// The model can do no such thing: it has no chat template, or one that renders no tools.
    Unsupported,
    /// Too many requests wait already.
    Busy,
    /// The model's thread ended before the answer did.
    Stopped,
    /// The machine failed: a device, a drive, a process that the system does not start.
    Machine,
}

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
    #[error("the context is full: {wanted} tokens do not fit into {limit} ({})", OptionId::Ctx)]
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
    /// The bytes of a picture cannot be read.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// A picture has a size that the model does not take.
    #[error(transparent)]
    PictureSize(#[from] LayoutError),
    /// A file does not say how a model takes pictures.
    #[error("{}: {what}", path.display())]
    Processor {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the remedy.
        what: String,
    },
    /// There is no memory for the vision tower.
    #[error(
        "the vision tower needs {}, and {} are free: give {} or {} less, or pictures fewer tokens ({})",
        show_bytes(*needed), show_bytes(*available), OptionId::ExpertCache, OptionId::Ctx,
        OptionId::ImageTokens
    )]
    TowerMemory {
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that there are.
        available: u64,
    },
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
         give fewer ({})",
        OptionId::Threads
    )]
    Threads {
        /// Threads asked for, the caller's included.
        n_threads: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The system gives no memory.
    #[error(
        "{0}; a smaller {ctx}, {chunk} or {cache} takes less",
        ctx = OptionId::Ctx,
        chunk = OptionId::Chunk,
        cache = OptionId::ExpertCache
    )]
    OutOfMemory(#[from] OutOfMemory),
    /// Nothing was given to evaluate.
    #[error("nothing to evaluate: the prompt has no tokens")]
    EmptyPrompt,
    /// An option makes no sense.
    #[error("{option} {value}: {remedy}")]
    Option {
        /// The option.
        option: OptionId,
        /// What was given.
        value: String,
        /// What would do.
        remedy: String,
    },
    /// The memory that the model needs is not there.
    #[error("{0}")]
    Memory(Box<Shortage>),
}

impl EngineError {
    /// What it is about.
    pub fn kind(&self) -> ErrorKind {
        match self {
            EngineError::Load(
                LoadError::EightBitIndexedCache { .. }
                | LoadError::NoTower { .. }
                | LoadError::OtherTower { .. }
                | LoadError::SeveralTowers { .. },
            )
            | EngineError::Option { .. } => ErrorKind::Option,
            EngineError::Load(_)
            | EngineError::Processor { .. }
            | EngineError::NotFinite { .. } => ErrorKind::Model,
            EngineError::Store(err) => kind_of_store(err),
            EngineError::Text(err) => kind_of_text(err),
            EngineError::OutOfMemory(_)
            | EngineError::TowerMemory { .. }
            | EngineError::Memory(_)
            | EngineError::Device(DeviceError::OutOfMemory { .. }) => ErrorKind::Memory,
            EngineError::Sampler(SamplerError::Option { .. })
            | EngineError::Constraint(_)
            | EngineError::TokenOutOfRange { .. }
            | EngineError::ContextFull { .. }
            | EngineError::EmptyPrompt
            | EngineError::NoCheckpoint { .. }
            | EngineError::BeyondEnd { .. }
            | EngineError::Picture(_)
            | EngineError::PictureSize(_)
            | EngineError::Row(_) => ErrorKind::Request,
            _ => ErrorKind::Machine,
        }
    }

    /// The option at fault, or one of which another value helps.
    pub fn option(&self) -> Option<OptionId> {
        match self {
            EngineError::Option { option, .. }
            | EngineError::Sampler(SamplerError::Option { option, .. })
            | EngineError::Snapshot(SnapshotError::OtherOption { option, .. }) => Some(*option),
            EngineError::Load(LoadError::EightBitIndexedCache { .. }) => Some(OptionId::KvType),
            EngineError::Load(
                LoadError::NoTower { .. }
                | LoadError::OtherTower { .. }
                | LoadError::SeveralTowers { .. },
            ) => Some(OptionId::Mmproj),
            EngineError::Store(err) => err.option(),
            EngineError::Device(DeviceError::OutOfMemory { .. }) => Some(OptionId::DeviceCache),
            #[cfg(feature = "gpu")]
            EngineError::Gpu(_) => Some(OptionId::Device),
            EngineError::Threads { .. } => Some(OptionId::Threads),
            EngineError::Memory(shortage) => {
                shortage.alternatives.first().map(|best| best.change.option)
            }
            EngineError::ContextFull { .. }
            | EngineError::OutOfMemory(_)
            | EngineError::Text(TextError::TooLong { .. })
            | EngineError::State(StateError::LenOverflow { .. })
            | EngineError::Snapshot(SnapshotError::TooLong { .. }) => Some(OptionId::Ctx),
            _ => None,
        }
    }
}

/// What helps where the device fails.
fn remedy(err: &DeviceError) -> String {
    match err {
        DeviceError::OutOfMemory { .. } => format!(
            "; a smaller {} or {}, or fewer {}, leave more",
            OptionId::DeviceCache,
            OptionId::Ctx,
            OptionId::Sessions
        ),
        DeviceError::Lost { .. } => {
            format!("; open the model again, or choose another {}", OptionId::Device)
        }
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

fn kind_of_store(err: &StoreError) -> ErrorKind {
    match err {
        StoreError::BudgetTooSmall { .. }
        | StoreError::SlotsHeld { .. }
        | StoreError::UnknownIoMode { .. } => ErrorKind::Option,
        StoreError::OutOfMemory(_) | StoreError::NoRowMemory(_) => ErrorKind::Memory,
        StoreError::Threads { .. } | StoreError::Io { .. } => ErrorKind::Machine,
        _ => ErrorKind::Model,
    }
}

fn kind_of_text(err: &TextError) -> ErrorKind {
    match err {
        TextError::NoRenderer(_) => ErrorKind::Machine,
        TextError::Read { .. }
        | TextError::Json { .. }
        | TextError::NoTokenizer { .. }
        | TextError::Vocabulary { .. }
        | TextError::Format(_)
        | TextError::Tokenizer { .. }
        | TextError::Field { .. }
        | TextError::TemplateSyntax(_) => ErrorKind::Model,
        _ => ErrorKind::Request,
    }
}
