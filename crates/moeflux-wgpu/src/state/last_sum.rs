//! The last kernel that added to columns, which a norm may take the place of.

use moeflux_backend::Cols;

use crate::device::buffer::Mem;
use crate::kernels::basic::FusedSum;

/// The kernel that added to columns of a buffer last.
#[derive(Debug)]
pub(crate) struct LastSum {
    pub(crate) nth: u64,
    pub(crate) rows: usize,
    pub(crate) acc: Cols,
    pub(crate) summands: Summands,
}

impl LastSum {
    /// The number of its kernel.
    pub(crate) fn nth(&self) -> u64 {
        self.nth
    }
}

/// What a kernel adds to columns, as `norm/norm.wgsl` reads it.
#[derive(Debug)]
pub(crate) struct Summands {
    /// What is added: rows, or outputs of experts; the lists with their weights,
    /// and what a shared expert gives.
    pub(crate) mems: [Mem; 3],
    /// The logit that scales what the shared expert gives.
    pub(crate) gate: Mem,
    /// Of the first and the last of these buffers, and of the gate.
    pub(crate) views: [[u32; 4]; 3],
    /// First word of the weights.
    pub(crate) weights: u32,
    /// What kind of sum it is.
    pub(crate) sum: FusedSum,
}
