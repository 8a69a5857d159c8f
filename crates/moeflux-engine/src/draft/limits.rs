//! How much is drafted at most.

/// Rows of a step with guesses at most: a GPU takes other kernels for more, which
/// round otherwise.
pub(crate) const MOST_ROWS: usize = 64;

/// Tokens that multi-token prediction drafts at most.
pub(crate) const MOST_FORESEEN: usize = 4;
