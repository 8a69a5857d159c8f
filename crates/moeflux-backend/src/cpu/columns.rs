//! Columns of the rows of a buffer, which one task writes.

use std::ops::Range;

use super::pool::SharedMut;

/// Columns that a task writes, position by position.
pub(super) struct Columns<'a> {
    all: SharedMut<'a, f32>,
    /// Those of the first position.
    columns: Range<usize>,
    /// From one position to the next.
    stride: usize,
}

impl<'a> Columns<'a> {
    /// # Safety
    /// While the result lives, no other code reads or writes these columns of any position.
    pub(super) unsafe fn new(
        all: SharedMut<'a, f32>,
        columns: Range<usize>,
        stride: usize,
    ) -> Columns<'a> {
        Columns { all, columns, stride }
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
