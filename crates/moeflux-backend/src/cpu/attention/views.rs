//! Scores and sums that attention kernels write.

/// Scores of several queries, `stride` apart.
pub(in crate::cpu) struct Scores<'a> {
    pub(in crate::cpu) scores: &'a mut [f32],
    pub(in crate::cpu) stride: usize,
}

/// What queries have gathered so far.
pub(super) struct Mix<'a> {
    /// `(n_queries, dim)`.
    pub(super) sums: &'a mut [f32],
    pub(super) dim: usize,
    /// The sum of each query's weights.
    pub(super) totals: &'a mut [f32],
}
