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

    /// Room for the choices of some rows, of `lens` positions each; `starts` gets where each begins.
    pub(super) fn extend(
        &mut self,
        rows: Range<usize>,
        lens: &[usize],
        starts: &mut Vec<usize>,
    ) -> &mut [u32] {
        let first = self.positions.len();
        let mut start = first;
        for (row, len) in self.rows[rows].iter_mut().zip(lens) {
            *row = start..start + len;
            starts.push(start - first);
            start += len;
        }
        self.positions.resize(start, 0);
        &mut self.positions[first..]
    }
}
