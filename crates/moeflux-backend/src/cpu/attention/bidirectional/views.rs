//! What kernels work on.

use crate::cpu::math::LANES;

/// Positions of a block.
pub(super) const KEYS: usize = 64;

/// Queries that meet a block together.
pub(super) const GROUP: usize = 8;

/// A group of queries and a block of positions.
pub(super) struct Group<'a> {
    /// Scores, then weights.
    pub(super) weights: &'a mut [[f32; KEYS]; GROUP],
    /// Positions of the block.
    pub(super) n: usize,
    /// `(GROUP, width)`.
    pub(super) sums: &'a mut [f32],
    /// Floats of a row of sums and of values: whole vectors.
    pub(super) width: usize,
}

/// What is known of the weights of a group's queries so far.
pub(super) struct Softmax<'a> {
    pub(super) maxima: &'a mut [f32],
    /// Sums of weights, lane = position mod 16.
    pub(super) totals: &'a mut [[f32; LANES]],
}
