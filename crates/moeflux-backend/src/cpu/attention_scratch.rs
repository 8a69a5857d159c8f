//! Memory that attention keeps from call to call.

use std::ops::Range;

use crate::cpu::floats::Floats;
use crate::cpu::math::LANES;

/// Memory of one task.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Of a tile: `(n_queries, n_positions)`.
    pub(super) scores: Floats,
    /// Keys or values that are not read in place.
    pub(super) rows: Floats,
    /// `(n_queries, v_dim)`.
    pub(super) sums: Floats,
    pub(super) totals: Vec<f32>,
    pub(super) maxima: Vec<f32>,
    pub(super) bidirectional: BidirectionalScratch,
    /// Empty between tiles.
    pub(super) queries: Vec<Query<'static>>,
    /// Empty between tiles.
    pub(super) vectors: Vec<&'static [f32]>,
}

impl Scratch {
    /// Begins a tile, whose queries have `stride` scores each and sums of `dim` columns.
    pub(super) fn begin(&mut self, queries: &[Query<'_>], stride: usize, dim: usize) {
        self.scores.first(queries.len() * stride);
        self.sums.first(queries.len() * dim).fill(0.0);
        self.totals.clear();
        self.totals.resize(queries.len(), 0.0);
        self.maxima.clear();
        let sinks = queries.iter().map(|query| query.sink.unwrap_or(f32::NEG_INFINITY));
        self.maxima.extend(sinks);
    }
}

/// Memory of one task whose queries all see the same positions. Queries are in groups, which meet a block of
/// positions together; rows of values and sums are whole vectors.
#[derive(Debug, Default)]
pub(super) struct BidirectionalScratch {
    /// Of each group `(k_dim, group)`.
    pub(super) queries: Floats,
    /// `(n_queries, width)`.
    pub(super) sums: Floats,
    /// Of each query.
    pub(super) maxima: Vec<f32>,
    /// Sums of each query's weights, lane = position mod 16.
    pub(super) totals: Vec<[f32; LANES]>,
    /// Of a block `(k_dim, n_positions)`.
    pub(super) keys: Floats,
    /// Of a block `(n_positions, k_dim)`.
    pub(super) stored_keys: Floats,
    /// Of a block and the next one `(n_positions, width)`.
    pub(super) values: [Floats; 2],
    /// Keys or values that are not read in place.
    pub(super) rows: Floats,
}

/// Some queries of a key head. They are counted by row, then by query head.
#[derive(Debug)]
pub(super) struct Tile {
    pub(super) head: usize,
    pub(super) queries: Range<usize>,
}

/// Query heads of one row and what they see.
#[derive(Debug)]
pub(super) struct Query<'a> {
    pub(super) q: &'a [f32],
    /// Positions, then entries of pools, or indices of a choice of these.
    pub(super) seen: [Range<usize>; 2],
    pub(super) sink: Option<f32>,
    /// First element of its output.
    pub(super) out: usize,
}
