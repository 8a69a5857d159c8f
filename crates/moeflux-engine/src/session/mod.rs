//! A session: tokens, and what the model has computed of them.

pub(crate) mod batch;
mod cache_copy;
mod checks;
mod drafts;
mod eval;
pub(crate) mod evaluator;
pub(crate) mod handle;
mod leave;
mod persist;
mod prefix;
mod rows;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use self::batch::{DraftChunk, eval_draft_batch};
pub use self::batch::{SequenceChunk, eval_batch};
pub(crate) use self::checks::check_prompt;
pub use self::evaluator::LogitsSink;
pub(crate) use self::handle::KeptTurn;
pub use self::handle::Session;
pub(crate) use self::prefix::reusable_end;
pub use self::prefix::{Prompt, Read};
