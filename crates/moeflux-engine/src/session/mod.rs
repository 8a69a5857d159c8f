//! A session: tokens, and what the model has computed of them.

pub(crate) mod batch;
pub(crate) mod cache_copy;
pub(crate) mod checkpoints;
mod eval;
pub(crate) mod handle;
mod persist;
mod prefix;
#[cfg(test)]
mod tests;
pub(crate) mod timeline;
pub(crate) mod windows;

pub(crate) use self::batch::{DraftChunk, eval_draft_batch};
pub use self::batch::{SequenceChunk, eval_batch};
pub use self::eval::LogitsSink;
pub use self::handle::Session;
pub use self::prefix::{Prompt, Read};
pub use crate::engine::step::Logits;
