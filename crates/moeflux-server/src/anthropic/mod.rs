//! Anthropic's API.

mod blocks;
pub(crate) mod messages;
mod reply;
