//! One run of the delta rule.

use std::ops::Range;

use crate::cpu::pool::SharedMut;

/// Rows of the state that are worked on together, at most.
pub(in crate::cpu) const MOST_ROWS: usize = 64;

/// How much of a head's state stays, and how much of a correction joins it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cpu) struct Gates {
    pub(in crate::cpu) decay: f32,
    pub(in crate::cpu) beta: f32,
}

/// Positions of one value head, and a block of the rows of its state.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Run<'a> {
    /// `(positions, k_dim)`.
    pub(in crate::cpu) q: &'a [f32],
    /// `(positions, k_dim)`.
    pub(in crate::cpu) k: &'a [f32],
    /// One a position.
    pub(in crate::cpu) gates: &'a [Gates],
    /// The values of the block, `v_stride` apart.
    pub(in crate::cpu) v: &'a [f32],
    pub(in crate::cpu) v_stride: usize,
    pub(in crate::cpu) k_dim: usize,
}

/// The end of a position for two rows.
#[derive(Clone, Copy)]
pub(super) struct Now<'a> {
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) correction: [f32; 2],
}

/// The beginning of a position.
#[derive(Clone, Copy)]
pub(super) struct Next<'a> {
    pub(super) k: &'a [f32],
    pub(super) decay: f32,
}

/// Where what a block reads is written, position by position.
pub(in crate::cpu) struct Out<'a> {
    all: SharedMut<'a, f32>,
    /// Of the first position.
    columns: Range<usize>,
    /// From one position to the next.
    stride: usize,
}

impl<'a> Out<'a> {
    /// # Safety
    /// While the result lives, no other code reads or writes these columns of any position.
    pub(in crate::cpu) unsafe fn new(
        all: SharedMut<'a, f32>,
        columns: Range<usize>,
        stride: usize,
    ) -> Out<'a> {
        Out { all, columns, stride }
    }

    /// The columns of a position.
    pub(super) fn at(&mut self, t: usize) -> &mut [f32] {
        let first = t * self.stride;
        // SAFETY: the caller of `new` promised that no other code uses these columns, and the
        // result borrows `self`, which alone gives access to them.
        unsafe { self.all.slice(first + self.columns.start..first + self.columns.end) }
    }

    /// Without the first columns.
    pub(super) fn skip(&mut self, n: usize) {
        self.columns.start += n;
    }
}

impl Run<'_> {
    /// Without the first rows of the block.
    pub(super) fn skip_rows(self, i: usize) -> Self {
        Run { v: self.v.get(i..).unwrap_or_default(), ..self }
    }
}
