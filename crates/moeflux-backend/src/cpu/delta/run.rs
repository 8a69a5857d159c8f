//! One run of the delta rule.

use crate::cpu::math::LANES;

/// Rows of the state that are worked on together, at most.
pub(in crate::cpu) const MOST_ROWS: usize = 64;

/// How much of a head's state stays, and how much of a correction joins it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cpu) struct Gates {
    /// Of all columns, where these have none of their own.
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
    /// How much of each column of the state stays, `(positions, k_dim)`, where columns decay.
    pub(in crate::cpu) decays: Option<&'a [f32]>,
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
    /// One a column, where these have their own.
    pub(super) decays: Option<&'a [f32]>,
}

impl<'a> Next<'a> {
    /// The decays of columns by whole blocks of lanes: none unless columns have their own.
    pub(super) fn lanes<const COLUMNS: bool>(&self) -> &'a [[f32; LANES]] {
        let decays = if COLUMNS { self.decays.expect("decays of columns") } else { &[] };
        let lanes = decays.as_chunks().0;
        assert!(!COLUMNS || lanes.len() == self.k.len() / LANES, "a decay a column");
        lanes
    }
}

impl<'a> Run<'a> {
    /// The query of a position.
    pub(super) fn query(&self, t: usize) -> &'a [f32] {
        &self.q[t * self.k_dim..][..self.k_dim]
    }

    /// The key of a position.
    pub(super) fn key(&self, t: usize) -> &'a [f32] {
        &self.k[t * self.k_dim..][..self.k_dim]
    }

    /// The beginning of a position.
    pub(super) fn next(&self, t: usize) -> Next<'a> {
        let decays = self.decays.map(|decays| &decays[t * self.k_dim..][..self.k_dim]);
        Next { k: self.key(t), decay: self.gates[t].decay, decays }
    }

    /// Without the first rows of the block.
    pub(super) fn skip_rows(self, i: usize) -> Self {
        Run { v: self.v.get(i..).unwrap_or_default(), ..self }
    }
}
