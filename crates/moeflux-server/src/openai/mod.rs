//! OpenAI's API.

pub(crate) mod chat;
mod chat_reply;
mod chat_request;
pub(crate) mod completions;
mod format;
mod hints;
pub(crate) mod models;
mod prompts;
pub(crate) mod responses;
mod usage;

pub(crate) use chat_reply::ChatCompletion;
pub(crate) use chat_request::ChatRequest;
pub(crate) use completions::{Completion, CompletionRequest};
pub(crate) use responses::{Response, ResponseRequest};
