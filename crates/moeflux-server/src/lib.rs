//! HTTP for an engine: the APIs of OpenAI, Anthropic and Ollama, metrics, and a chat page for
//! browsers.
//!
//! Requests become jobs of the engine's scheduler, which runs on a thread of
//! its own; nothing here computes. What clients send is untrusted: sizes and
//! times are bounded, and a field that asks for what cannot be done is refused by name.

#![forbid(unsafe_code)]

mod access;
mod anthropic;
mod app;
mod ask;
mod auth;
mod body;
mod callers;
mod common;
mod connections;
mod conversation;
mod durations;
mod early;
mod encoding;
mod error;
mod events;
mod exposition;
mod fleet;
mod guarded;
mod half_closed;
mod ids;
mod infill;
mod journal;
mod json_values;
mod kept;
mod key_file;
mod library;
mod limits;
mod listen;
mod llama_server;
mod local;
mod log;
mod logprobs;
#[cfg(feature = "markdown")]
mod markdown;
mod marked;
mod messages;
mod metrics;
mod model;
mod offload;
mod ollama;
mod openai;
mod openapi;
mod options;
mod origins;
mod page;
mod parsed_room;
mod paths;
mod pictures;
mod prepare;
mod prompt;
pub(crate) mod reply;
mod request;
mod result_text;
mod room;
mod routes;
mod runtime;
mod sampling;
mod served;
mod service;
mod settings;
mod site;
#[cfg(unix)]
mod socket_file;
mod status;
mod stream;
mod surrogates;
mod thinking;
mod tls;
mod tools;
mod write_timeout;

pub use durations::parse_duration;
pub use error::ServerError;
pub use key_file::{KeyFile, KeyFileError, KeyLimits, NamedKey};
pub use library::{Library, LibraryError, LibraryModel, PullProgress};
pub use listen::Server;
pub use local::{LocalApi, LocalPart, LocalReply, LocalRequest};
pub use log::LogFormat;
pub use options::{Introduction, ServerOptions, UnixSocket};
pub use origins::{AllowedOrigin, AllowedPort, OriginError};
pub use prompt::{ChatPrompt, PicturesOfModel, Piece, PromptToken, RequestError};
pub use tls::TlsFiles;
