//! Anthropic's API.

mod blocks;
mod hints;
pub(crate) mod messages;
mod reply;
pub(crate) mod request;
mod tools;
mod turns;

pub(crate) use messages::TokenCount;
pub(crate) use reply::MessageReply;
pub(crate) use request::MessageRequest;
