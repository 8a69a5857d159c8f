//! Arguments of ops on residuals of several streams, which a row has side by side.

use super::views::{Cols, Heads};

/// `out = mean over streams s of sigmoid(gates[s]) * streams[s]`, element by element.
#[derive(Clone, Copy, Debug)]
pub struct MixStreams {
    /// Where it goes: as many columns as a stream.
    pub out: Cols,
    /// The streams.
    pub streams: Heads,
    /// As many as `streams`, of the same width.
    pub gates: Heads,
}

/// `streams[s] += 2 * sigmoid(gates[s] * scale) * x` for every stream `s`.
#[derive(Clone, Copy, Debug)]
pub struct JoinStreams {
    /// The streams.
    pub streams: Heads,
    /// What joins them: as many columns as a stream.
    pub x: Cols,
    /// One a stream.
    pub gates: Cols,
    /// Multiplies the gates before their sigmoid.
    pub scale: f32,
}

/// `out[s] = sigmoid(root(a[s] . b[s] * scale)) * x` for every stream `s`, with
/// `root(z) = sign(z) * sqrt(max(|z|, 1e-6))` and `sign(0) = 0`.
#[derive(Clone, Copy, Debug)]
pub struct SimilarityGate {
    /// Where it goes, a stream for each stream of `a`.
    pub out: Heads,
    /// As many streams as `out`.
    pub a: Heads,
    /// As many streams as `out`.
    pub b: Heads,
    /// What is gated: as many columns as a stream.
    pub x: Cols,
    /// Multiplies the products.
    pub scale: f32,
}
