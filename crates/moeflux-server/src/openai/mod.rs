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
pub(crate) mod sampling;
pub(crate) mod thinking;

pub(crate) use chat_request::ChatRequest;
pub(crate) use completions::CompletionRequest;
pub(crate) use responses::ResponseRequest;
