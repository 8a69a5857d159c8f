//! Arguments of norms and products.

use super::views::{Cols, Heads, Vector, Weight};

/// One product of [`Ops::project`](crate::Ops::project).
#[derive(Clone, Copy, Debug)]
pub struct Projection {
    /// The matrix, `(out.len, x.len)`.
    pub weight: Weight,
    /// Where the product goes.
    pub out: Cols,
}

/// `out = x / rms(x) * weight` for every head.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// Where it goes; may be `x` itself.
    pub out: Heads,
    /// The input.
    pub x: Heads,
    /// `head_dim` factors that all heads share, or as many for each head.
    pub weight: Vector,
    /// Added to the mean square.
    pub eps: f32,
}

/// `out = x / rms(x) * weight * function(gate)` for every head, or `out = y / rms(y) * weight` of
/// `y = x * function(gate)`.
#[derive(Clone, Copy, Debug)]
pub struct GatedRmsNorm {
    /// The norm.
    pub norm: RmsNorm,
    /// The gate, before its function.
    pub gate: Heads,
    /// The gate's function.
    pub function: GateFunction,
    /// Whether the gate multiplies what the norm reads, not what it gives.
    pub gates_input: bool,
}

/// What a gate goes through before it multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GateFunction {
    /// `gate * sigmoid(gate)`.
    #[default]
    Silu,
    /// `1 / (1 + e^-gate)`.
    Sigmoid,
}

/// `out = (x - mean) / sqrt(variance + eps) * weight + bias` for every head.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    /// Where it goes; may be `x` itself.
    pub out: Heads,
    /// The input.
    pub x: Heads,
    /// `head_dim` factors, shared by all heads.
    pub weight: Vector,
    /// `head_dim` terms, shared by all heads.
    pub bias: Vector,
    /// Added to the variance.
    pub eps: f32,
}

/// A product of every head with its own block of rows of one matrix:
/// `out[h] = W_h x[h]`, or `out[h] = W_h^T x[h]`, with unrounded activations.
#[derive(Clone, Copy, Debug)]
pub struct HeadProduct {
    /// Where it goes.
    pub out: Heads,
    /// As many heads as `out`.
    pub x: Heads,
    /// The matrix that holds every `W_h`.
    pub weight: Weight,
    /// First row of `W_0`.
    pub first_row: usize,
    /// Rows from one `W_h` to the next.
    pub row_stride: usize,
    /// Whether `W_h` has `x.head_dim` rows and `out.head_dim` columns, instead
    /// of the other way round.
    pub transposed: bool,
}
