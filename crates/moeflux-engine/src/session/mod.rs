//! A session: tokens, and what the model has computed of them.

pub(crate) mod batch;
pub(crate) mod cache_copy;
pub(crate) mod checkpoints;
mod eval;
pub(crate) mod handle;
pub(crate) mod input;
mod persist;
mod prefix;
pub(crate) mod row_error;
mod rows;
#[cfg(test)]
mod tests;
pub(crate) mod timeline;
pub(crate) mod windows;

pub(crate) use self::batch::{DraftChunk, eval_draft_batch};
pub use self::batch::{SequenceChunk, eval_batch};
pub use self::eval::LogitsSink;
pub use self::handle::Session;
pub use self::input::{ChunkInput, EMBEDDED, InputRow, RowInput};
pub use self::prefix::{Prompt, Read};
pub use self::row_error::RowError;
pub use crate::engine::step::Logits;
