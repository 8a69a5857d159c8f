//! What can go wrong.

use std::sync::Arc;

use moeflux_engine::{EngineError, SubmitError};
use moeflux_text::{ConstraintError, Part, TextError};

/// What can go wrong between opening a model and the end of an answer. Each message is one line
/// that names the file or the value, and a remedy where there is one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model cannot be opened, or a step failed.
    #[error(transparent)]
    Engine(Arc<EngineError>),
    /// A tokenizer, a chat template or a message cannot be used.
    #[error(transparent)]
    Text(Arc<TextError>),
    /// A schema or a set of tools cannot become a grammar.
    #[error(transparent)]
    Constraint(Arc<ConstraintError>),
    /// The model's thread takes no request.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The model's thread cannot be started.
    #[error("cannot start the model's thread ({0}): allow this process more threads")]
    Thread(Arc<std::io::Error>),
    /// The model has no chat template.
    #[error("{model}: the model has no chat template; use Model::generate")]
    NoChatTemplate {
        /// The model's directory.
        model: String,
    },
    /// The model's chat template renders no tools.
    #[error("{model}: the chat template of the model renders no tools")]
    NoTools {
        /// The model's directory.
        model: String,
    },
    /// A part of the request makes no sense.
    #[error("{reason}")]
    Refused {
        /// The part.
        part: Part,
        /// Why.
        reason: String,
    },
    /// The model's thread ended before the answer did.
    #[error("the thread of the model has ended")]
    Stopped,
}

impl From<EngineError> for Error {
    fn from(err: EngineError) -> Error {
        Error::Engine(Arc::new(err))
    }
}

impl From<TextError> for Error {
    fn from(err: TextError) -> Error {
        Error::Text(Arc::new(err))
    }
}

impl From<ConstraintError> for Error {
    fn from(err: ConstraintError) -> Error {
        Error::Constraint(Arc::new(err))
    }
}
