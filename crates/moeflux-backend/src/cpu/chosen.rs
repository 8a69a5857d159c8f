//! Positions that a selection has chosen.

use std::ops::Range;

/// The positions that each row of a batch attends to.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// By row: where its choice is stored; empty where it attends to all positions.
    pub(super) rows: Vec<Range<usize>>,
    /// Ascending within a row.
    pub(super) positions: Vec<u32>,
}

impl Chosen {
    /// The choice of a row, ascending; `None` where it sees all positions.
    pub(super) fn row(&self, row: usize) -> Option<&[u32]> {
        let range = self.rows[row].clone();
        (!range.is_empty()).then(|| &self.positions[range])
    }

    pub(super) fn reset(&mut self, n_rows: usize) {
        self.rows.clear();
        self.rows.resize(n_rows, 0..0);
        self.positions.clear();
    }

    /// Room for the choices of some rows, the `i`-th of `len_of(i)` positions.
    pub(super) fn extend(
        &mut self,
        rows: Range<usize>,
        len_of: impl Fn(usize) -> usize,
    ) -> Room<'_> {
        let first = self.positions.len();
        let mut end = first;
        for (i, row) in self.rows[rows.clone()].iter_mut().enumerate() {
            let start = end;
            end += len_of(i);
            *row = start..end;
        }
        self.positions.resize(end, 0);
        Room { places: &self.rows[rows], first, positions: &mut self.positions[first..] }
    }
}

/// Room for the choices of some rows.
pub(super) struct Room<'a> {
    /// By row: where its choice is stored.
    pub(super) places: &'a [Range<usize>],
    /// Where the first of them begins, and `positions`.
    pub(super) first: usize,
    pub(super) positions: &'a mut [u32],
}
