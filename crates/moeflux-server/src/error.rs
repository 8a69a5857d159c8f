//! What can go wrong: a server that cannot start, a request that is refused.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hyper::StatusCode;
use moeflux_core::OptionId;
use moeflux_engine::{EngineError, SubmitError};
use moeflux_text::TextError;

use crate::key_file::KeyFileError;

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is taken, or not the machine's.
    #[error("cannot listen on {addr}: {source} ({option})")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The option that names it.
        option: OptionId,
        /// What the system said.
        source: std::io::Error,
    },
    /// The Unix socket cannot be made.
    #[error("cannot listen on the Unix socket {path}: {source} ({})", OptionId::Addr)]
    Socket {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of the certificate is wrong.
    #[error("{path} {reason} (TLS)")]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Others could reach it without a key.
    #[error(
        "{addr} is open to other machines: give {} or {}, or listen on 127.0.0.1",
        OptionId::ApiKeys,
        OptionId::KeysFile
    )]
    Open {
        /// The address.
        addr: SocketAddr,
    },
    /// A key that no client could send, or anyone could guess.
    #[error(
        "an API key is {n_bytes} bytes of text without spaces: it must be {want} ({})",
        OptionId::ApiKeys
    )]
    Key {
        /// Its length.
        n_bytes: usize,
        /// What would do.
        want: &'static str,
    },
    /// The file of keys with names is wrong.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// The file of keys with names has none.
    #[error("{path} has no key: `moeflux keys add NAME` adds one")]
    NoKeys {
        /// The file.
        path: PathBuf,
    },
    /// The system has no thread or runtime for it.
    #[error("cannot start the server ({0}): allow this process more threads")]
    Start(#[source] std::io::Error),
    /// The device does not come back.
    #[error("the device was lost: the server has to be started again")]
    DeviceLost,
    /// The model cannot be talked to.
    #[error(transparent)]
    Model(#[from] moeflux::Error),
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The field at fault.
    pub(crate) param: Option<String>,
    /// OpenAI's `code`.
    pub(crate) code: Option<&'static str>,
    pub(crate) retry_after: Option<Duration>,
    /// Set where the prompt does not fit: clients of each dialect look for words of their own.
    pub(crate) overflow: Option<Overflow>,
}

/// A prompt that leaves no room for an answer in the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow {
    /// Tokens of the prompt.
    pub(crate) n_prompt: usize,
    /// Whether it is their number, or one that they exceed or reach.
    pub(crate) is_exact: bool,
    /// Tokens of the context.
    pub(crate) ctx: usize,
}

impl Overflow {
    /// The tokens of the prompt in words.
    pub(crate) fn prompt(&self) -> String {
        let least = if self.is_exact { "" } else { "at least " };
        format!("{least}{}", self.n_prompt)
    }
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        let message = message.into();
        ApiError { status, message, param: None, code: None, retry_after: None, overflow: None }
    }

    /// A prompt that leaves no room for an answer in the context.
    pub(crate) fn too_long(overflow: Overflow) -> ApiError {
        let message = format!(
            "the prompt has {} tokens, the context has room for {} ({})",
            overflow.prompt(),
            overflow.ctx,
            OptionId::Ctx
        );
        ApiError {
            code: Some("context_length_exceeded"),
            overflow: Some(overflow),
            ..ApiError::new(StatusCode::BAD_REQUEST, message)
        }
    }

    /// A field that makes no sense.
    pub(crate) fn field(param: impl Into<String>, problem: impl AsRef<str>) -> ApiError {
        let param = param.into();
        let message = format!("{param}: {}", problem.as_ref());
        let code = Some("invalid_value");
        ApiError { param: Some(param), code, ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    }

    /// A field that means something, but not here.
    pub(crate) fn unsupported(param: impl Into<String>) -> ApiError {
        let error = ApiError::field(param, "this server does not support this field: leave it out");
        ApiError { code: Some("unsupported_parameter"), ..error }
    }

    /// A field that asks for what the server cannot do, and why it cannot.
    pub(crate) fn not_supported(param: &str, problem: &str) -> ApiError {
        ApiError { code: Some("unsupported_parameter"), ..ApiError::field(param, problem) }
    }

    /// Messages that a model cannot read; a template that refuses a conversation says why.
    pub(crate) fn text(err: TextError) -> ApiError {
        match err {
            TextError::NoRenderer(reason) => ApiError::overloaded(&reason),
            TextError::TooLong { n_tokens, is_exact, max_tokens } => {
                let ctx = max_tokens.saturating_add(1);
                ApiError::too_long(Overflow { n_prompt: n_tokens, is_exact, ctx })
            }
            TextError::TemplateSyntax(_) => ApiError::internal(EngineError::from(err).to_string()),
            _ => ApiError::field("messages", err.to_string()),
        }
    }

    /// A text that a model cannot read, by the name of its field.
    pub(crate) fn text_of(field: &str, err: TextError) -> ApiError {
        match err {
            TextError::TooLong { .. } => ApiError::text(err),
            _ => ApiError::field(field, err.to_string()),
        }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// The system starts no thread or process for the request.
    pub(crate) fn overloaded(reason: &str) -> ApiError {
        let message = format!("the server cannot start a thread or process for this ({reason})");
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message);
        ApiError { retry_after: Some(Duration::from_secs(1)), ..error }
    }

    /// Other bodies wait for the memory of one that comes too slowly.
    pub(crate) fn crowded() -> ApiError {
        let message = "other large bodies wait for this one, which comes too slowly to be complete \
                       in time: send it again";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message);
        ApiError { retry_after: Some(Duration::from_secs(5)), ..error }
    }

    /// What a server says of itself whose device was lost.
    pub(crate) fn device_lost() -> ApiError {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the device was lost: the server has to be started again",
        )
    }

    /// What the server is doing when it ends in the middle of an answer.
    pub(crate) fn shutting_down() -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down");
        ApiError { retry_after: Some(Duration::from_secs(5)), ..error }
    }
}

impl From<SubmitError> for ApiError {
    fn from(err: SubmitError) -> ApiError {
        match err {
            SubmitError::QueueFull { retry_after, .. } => ApiError {
                code: Some("queue_full"),
                retry_after: Some(retry_after),
                ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, err.to_string())
            },
            SubmitError::Stopped => ApiError::shutting_down(),
        }
    }
}
