//! What can go wrong.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use moeflux_core::OptionId;
use moeflux_engine::{EngineError, ErrorKind, SubmitError};
use moeflux_text::{PromptError, TextError};

/// What can go wrong between opening a model and the end of an answer. Its text is one line that
/// names the file or the value, and a remedy where there is one.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    option: Option<OptionId>,
    text: String,
    cause: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// What it is about.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The option or the part of a request at fault, or an option of which another value helps.
    pub fn option(&self) -> Option<OptionId> {
        self.option
    }

    pub(crate) fn no_thread(err: &io::Error) -> Error {
        let text =
            format!("cannot start the model's thread ({err}): allow this process more threads");
        Error { kind: ErrorKind::Machine, option: None, text, cause: None }
    }

    /// A part of a request that cannot be used.
    pub(crate) fn request(text: String) -> Error {
        Error { kind: ErrorKind::Request, option: None, text, cause: None }
    }

    /// What the model cannot do.
    pub(crate) fn unsupported(text: String) -> Error {
        Error { kind: ErrorKind::Unsupported, option: None, text, cause: None }
    }

    /// An answer whose model's thread has ended.
    pub(crate) fn stopped() -> Error {
        let text = String::from("the thread of the model has ended");
        Error { kind: ErrorKind::Stopped, option: None, text, cause: None }
    }

    /// A conversation that the model in the directory `model` does not answer.
    pub(crate) fn refusal(model: &str, err: PromptError) -> Error {
        use ErrorKind::{Request, Unsupported};

        let (kind, option, text) = match err {
            PromptError::Text(err) => return err.into(),
            PromptError::NoTemplate => (
                Unsupported,
                None,
                format!("{model}: the model has no chat template; use Model::generate"),
            ),
            PromptError::NoInfill => (Unsupported, None, format!("{model}: {err}")),
            PromptError::NoTools => (
                Unsupported,
                Some(OptionId::Tools),
                format!("{model}: the chat template of the model renders no tools"),
            ),
            PromptError::Refused { option, reason, .. } => (Request, Some(option), reason),
            PromptError::Constraint { option, source } => {
                (Request, Some(option), source.to_string())
            }
            PromptError::Vocabulary(source) => (ErrorKind::Model, None, source.to_string()),
        };
        Error { kind, option, text, cause: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let cause = self.cause.as_deref()?;
        Some(cause)
    }
}

impl From<EngineError> for Error {
    fn from(err: EngineError) -> Error {
        Arc::new(err).into()
    }
}

impl From<Arc<EngineError>> for Error {
    fn from(err: Arc<EngineError>) -> Error {
        let (kind, option) = (err.kind(), err.option());
        Error { kind, option, text: err.to_string(), cause: Some(err) }
    }
}

impl From<TextError> for Error {
    fn from(err: TextError) -> Error {
        EngineError::from(err).into()
    }
}

impl From<SubmitError> for Error {
    fn from(err: SubmitError) -> Error {
        let kind = match err {
            SubmitError::QueueFull { .. } => ErrorKind::Busy,
            SubmitError::Stopped => ErrorKind::Stopped,
        };
        Error { kind, option: None, text: err.to_string(), cause: Some(Arc::new(err)) }
    }
}
