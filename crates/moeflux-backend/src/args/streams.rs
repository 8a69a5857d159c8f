//! Arguments of ops on residuals of several streams, which a row has side by side.

use super::views::{Cols, Heads, Vector};

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

/// What a manifold-constrained hyper-connection (DeepSeek-AI, 2025, "mHC") does with the streams of a row,
/// from one logit for each of its numbers: with `z = scale * logit + base`,
///
/// ```text
/// read = sigmoid(z) + eps;  write = 2 * sigmoid(z)
/// mix  = softmax(z) + eps, row by row, divided by the sums of its columns, then `n_rounds - 1` times by
///        those of its rows and those of its columns, each sum with eps added
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StreamShares {
    /// `n` numbers `read`, then `n` of `write` and `(n, n)` of `mix`; those of `read` alone where it has `n`
    /// columns.
    pub out: Cols,
    /// As many as `out`, in another buffer.
    pub logits: Cols,
    /// Streams, at most [`StreamShares::MOST`].
    pub n_streams: usize,
    /// One scale for each of the parts of `out`, then a base for each logit.
    pub of_logits: Vector,
    /// Keeps shares and sums above 0.
    pub eps: f32,
    /// How often columns are divided by their sums (Sinkhorn and Knopp, 1967).
    pub n_rounds: usize,
}

impl StreamShares {
    /// The most streams of a residual.
    pub const MOST: usize = 8;

    /// Columns of all parts.
    pub const fn len(n_streams: usize) -> usize {
        n_streams * (n_streams + 2)
    }

    /// Parts of the output: one, or three.
    pub fn n_parts(&self) -> usize {
        if self.out.len == self.n_streams { 1 } else { 3 }
    }

    /// Checks the widths.
    ///
    /// # Panics
    /// If they do not fit each other.
    pub fn assert_fits(&self) {
        let StreamShares { out, logits, n_streams, n_rounds, .. } = *self;
        assert!((1..=StreamShares::MOST).contains(&n_streams) && n_rounds > 0, "streams");
        assert_eq!(out.len, logits.len, "a logit for each share");
        assert!(out.buf != logits.buf, "an op writes a buffer that it also reads");
        assert!([n_streams, StreamShares::len(n_streams)].contains(&out.len), "shares of streams");
    }
}

/// `out = sum over streams s of shares[s] * streams[s]`, or their mean.
#[derive(Clone, Copy, Debug)]
pub struct WeighStreams {
    /// Where it goes: as many columns as a stream.
    pub out: Cols,
    /// The streams.
    pub streams: Heads,
    /// One a stream; the mean where absent.
    pub shares: Option<Cols>,
}

/// `streams[j] = write[j] * x + sum over streams i of mix[i, j] * streams[i]` for every stream `j`.
#[derive(Clone, Copy, Debug)]
pub struct BlendStreams {
    /// The streams.
    pub streams: Heads,
    /// What joins them: as many columns as a stream.
    pub x: Cols,
    /// `n` numbers `write`, then `(n, n)` of `mix`: the last two parts of [`StreamShares`].
    pub shares: Cols,
}
