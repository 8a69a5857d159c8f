//! OpenAI's API.

pub(crate) mod chat;
mod chat_reply;
pub(crate) mod completions;
pub(crate) mod models;
pub(crate) mod responses;
mod responses_reply;
pub(crate) mod sampling;
