//! Sums of a product of any matrix with `f32` activations.

/// Rows of the matrix that are decoded together.
pub(super) const ROWS: usize = 4;

/// Columns that are decoded together: four rows of them fit into a quarter of
/// the first cache. A multiple of every group size.
pub(super) const COLS: usize = 512;

pub(super) const LANES: usize = 16;

/// The partial sums of one output.
pub(super) type Partial = [f32; LANES];

/// The partial sums of one row of the activations with [`ROWS`] of the matrix.
pub(super) type Partials = [Partial; ROWS];
