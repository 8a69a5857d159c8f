//! The largest drafts, and the largest steps that verify them.

/// The most tokens of a draft.
pub const MAX_DRAFT: usize = 15;

/// The most tokens that multi-token prediction drafts.
pub(crate) const MAX_MTP_DRAFT: usize = 4;

/// The most rows of a step with drafts. A GPU uses other kernels for more rows, which round
/// differently.
pub(crate) const MAX_STEP_ROWS: usize = 64;
