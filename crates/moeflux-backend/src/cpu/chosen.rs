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

    /// Room for the choices of `top_k` positions of some rows.
    pub(super) fn extend(&mut self, rows: Range<usize>, top_k: usize) -> &mut [u32] {
        let first = self.positions.len();
        for (i, row) in self.rows[rows.clone()].iter_mut().enumerate() {
            *row = first + i * top_k..first + (i + 1) * top_k;
        }
        self.positions.resize(first + rows.len() * top_k, 0);
        &mut self.positions[first..]
    }
}
