//! A step that was recorded before its tokens are known.

use std::ops::Range;

use crate::commands::command::Encoded;

/// Commands that are submitted as soon as the tokens are known.
#[derive(Debug, Default)]
pub(super) struct PrerecordedStep {
    pub(super) batches: Vec<Encoded>,
    /// Lists and parameters of all of them.
    pub(super) arena: Vec<u8>,
    /// Where in these the tokens stand.
    pub(super) tokens: Range<usize>,
    /// Kernels, and experts that these find on the device.
    pub(super) n_kernels: usize,
    pub(super) n_hits: usize,
    /// Whether it was too long.
    pub(super) is_abandoned: bool,
}
