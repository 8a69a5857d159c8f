//! One run of the delta rule.

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

impl Run<'_> {
    /// Without the first rows of the block.
    pub(super) fn skip_rows(self, i: usize) -> Self {
        Run { v: self.v.get(i..).unwrap_or_default(), ..self }
    }
}
