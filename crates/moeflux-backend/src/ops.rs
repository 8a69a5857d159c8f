//! The arguments of ops: views of activations, and what travels together.

use std::ops::Range;
use std::sync::Arc;

use moeflux_core::quant::MatrixFormat;
use moeflux_core::{Expert, HostBuf};

/// Device memory holding `f32` activations, one row a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buf(pub u32);

/// A resident weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weight(pub u32);

/// Resident `f32` constants: a norm's weight, a convolution, a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vector(pub u32);

/// Rotary frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rope(pub u32);

/// One mutable timeline's caches on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequence(pub u32);

/// One of the caches that every sequence has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cache(pub u32);

/// The columns `start..start + len` of every row of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cols {
    /// The buffer.
    pub buf: Buf,
    /// First column.
    pub start: usize,
    /// Number of columns.
    pub len: usize,
}

/// Equal blocks of columns: head `h` is `start + h * stride` and the
/// `head_dim - 1` columns behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// The buffer.
    pub buf: Buf,
    /// First column of head 0.
    pub start: usize,
    /// Number of heads.
    pub n_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Columns from one head to the next.
    pub stride: usize,
}

impl Cols {
    /// Divides the columns into `n_heads` adjacent heads.
    pub fn heads(self, n_heads: usize) -> Heads {
        assert!(self.len.is_multiple_of(n_heads), "heads divide their columns evenly");
        let head_dim = self.len / n_heads;
        Heads { buf: self.buf, start: self.start, n_heads, head_dim, stride: head_dim }
    }

    /// The columns `start..start + len` of these.
    pub fn slice(self, start: usize, len: usize) -> Cols {
        assert!(start + len <= self.len, "a slice lies inside its columns");
        Cols { buf: self.buf, start: self.start + start, len }
    }
}

/// Consecutive rows of a batch that continue one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The sequence.
    pub sequence: Sequence,
    /// Its rows in the batch.
    pub rows: Range<usize>,
    /// Position of the first of them.
    pub position: usize,
}

/// What a sequence keeps between steps, for one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSpec {
    /// A key and a value a position and head; grows with the sequence.
    Kv {
        /// `num_key_value_heads`.
        n_heads: usize,
        /// Floats of a key.
        k_dim: usize,
        /// Floats of a value.
        v_dim: usize,
    },
    /// The last `kernel - 1` inputs of a causal convolution.
    Conv {
        /// Channels.
        channels: usize,
        /// Taps, the current input included.
        kernel: usize,
    },
    /// The state of a delta rule: `n_heads` matrices of `(v_dim, k_dim)`.
    Delta {
        /// Value heads.
        n_heads: usize,
        /// Floats of a key.
        k_dim: usize,
        /// Floats of a value.
        v_dim: usize,
    },
}

impl CacheSpec {
    /// Bytes that every sequence takes, however short.
    pub fn fixed_bytes(&self) -> usize {
        match *self {
            CacheSpec::Kv { .. } => 0,
            CacheSpec::Conv { channels, kernel } => channels * (kernel - 1) * 4,
            CacheSpec::Delta { n_heads, k_dim, v_dim } => n_heads * k_dim * v_dim * 4,
        }
    }

    /// Bytes that a sequence takes for each of its positions.
    pub fn bytes_per_position(&self) -> usize {
        match *self {
            CacheSpec::Kv { n_heads, k_dim, v_dim } => n_heads * (k_dim + v_dim) * 4,
            CacheSpec::Conv { .. } | CacheSpec::Delta { .. } => 0,
        }
    }

    /// Whether the past cannot be cut off position by position.
    pub fn is_recurrent(&self) -> bool {
        !matches!(self, CacheSpec::Kv { .. })
    }
}

/// How a matrix product treats its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// As they are.
    Full,
    /// Rounded to integers of two digits of eight bits, group by group, where
    /// the weights are quantised; else as they are.
    Int16,
    /// Rounded to integers of eight bits, group by group, where the weights
    /// are quantised; else as they are.
    Int8,
}

/// A matrix on its way to the device.
#[derive(Debug)]
pub struct HostMatrix {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// How the elements are stored.
    pub format: MatrixFormat,
    /// How products with it treat their inputs.
    pub inputs: Inputs,
    /// The elements; bytes behind them are ignored.
    pub weight: HostBuf,
    /// The scales, where the format has them.
    pub scales: Option<HostBuf>,
    /// The biases, where the format has them.
    pub biases: Option<HostBuf>,
}

/// Which elements of a head a rotation pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// `(i, i + rotary_dim / 2)`.
    Halves,
    /// `(2i, 2i + 1)`.
    Adjacent,
}

/// Rotary frequencies on their way to the device.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Radians a position, one for each pair; `rotary_dim / 2` of them.
    pub inv_freq: Vec<f32>,
    /// Which elements form a pair.
    pub pairs: RopePairs,
    /// Multiplies sine and cosine; 1 without YaRN.
    pub scale: f32,
}

/// One product of [`Backend::project`](crate::Backend::project).
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
    /// `head_dim` factors, shared by all heads.
    pub weight: Vector,
    /// Added to the mean square.
    pub eps: f32,
}

/// `out = x / rms(x) * weight * silu(gate)` for every head.
#[derive(Clone, Copy, Debug)]
pub struct GatedRmsNorm {
    /// The norm.
    pub norm: RmsNorm,
    /// The gate, before its activation.
    pub gate: Heads,
}

/// Appends keys and values to a cache, then attends causally over it.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// `(n_heads, v_dim)` a row.
    pub out: Heads,
    /// `(n_heads, k_dim)` a row.
    pub q: Heads,
    /// `(n_kv_heads, k_dim)` a row; query head `h` reads key head
    /// `h / (n_heads / n_kv_heads)`.
    pub k: Heads,
    /// `(n_kv_heads, v_dim)` a row.
    pub v: Heads,
    /// A [`CacheSpec::Kv`].
    pub cache: Cache,
    /// Multiplies every score.
    pub scale: f32,
}

/// `out[t] = silu(sum over j of weight[.., j] * x[t - kernel + 1 + j])`,
/// channel by channel, continuing from the cache.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv {
    /// Where it goes.
    pub out: Cols,
    /// The input; what reaches into the next step is kept as it is here.
    pub x: Cols,
    /// `(kernel, channels)`, row-major; the last row meets the newest input.
    pub weight: Vector,
    /// A [`CacheSpec::Conv`].
    pub cache: Cache,
}

/// The gated delta rule (Yang et al., 2024, "Gated Delta Networks"), head by
/// head: with `q` and `k` normalised to length one and `q` divided by
/// `sqrt(k_dim)`, `beta = sigmoid(b)` and
/// `decay = exp(-exp(a_log) * softplus(a + dt_bias))`,
///
/// ```text
/// S = decay * S;  d = (v - S k) * beta;  S = S + d k^T;  out = S q
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule {
    /// `(n_v_heads, v_dim)` a row.
    pub out: Heads,
    /// `(n_k_heads, k_dim)` a row; value head `h` reads key head
    /// `h / (n_v_heads / n_k_heads)`.
    pub q: Heads,
    /// `(n_k_heads, k_dim)` a row.
    pub k: Heads,
    /// `(n_v_heads, v_dim)` a row.
    pub v: Heads,
    /// `n_v_heads` a row.
    pub a: Cols,
    /// `n_v_heads` a row.
    pub b: Cols,
    /// `n_v_heads`.
    pub a_log: Vector,
    /// `n_v_heads`.
    pub dt_bias: Vector,
    /// A [`CacheSpec::Delta`].
    pub cache: Cache,
}

/// How routers turn logits into experts and weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts, the best `top_k`, divided by their sum.
    SoftmaxRenormalised,
}

/// Reads the choice of experts back.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// One logit an expert.
    pub logits: Cols,
    /// How many experts a row gets.
    pub top_k: usize,
    /// How logits become weights.
    pub scoring: Scoring,
}

/// The experts chosen for each row, best first; among equals the lower index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routing {
    /// `rows * top_k` experts.
    pub experts: Vec<moeflux_core::ExpertId>,
    /// How much each of them counts.
    pub weights: Vec<f32>,
}

/// A row of the batch that chose an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRow {
    /// The row.
    pub row: u32,
    /// `row * top_k + rank`: where its output goes.
    pub slot: u32,
}

/// One expert and the rows that chose it.
#[derive(Clone, Debug)]
pub struct ExpertCall {
    /// Kept by the backend until the device has read it.
    pub expert: Arc<Expert>,
    /// The rows, ascending.
    pub rows: Vec<ExpertRow>,
}

/// `out[slot] = down(silu(gate(x[row])) * up(x[row]))`, for experts that
/// arrived together.
#[derive(Debug)]
pub struct Experts<'a> {
    /// One row a slot.
    pub out: Buf,
    /// The normalised hidden states.
    pub x: Cols,
    /// How the products treat their inputs.
    pub inputs: Inputs,
    /// The experts.
    pub calls: &'a [ExpertCall],
}

/// `acc += sum over ranks of weights[rank] * slots[rank]`, in rank order,
/// plus the shared expert.
#[derive(Clone, Copy, Debug)]
pub struct Combine<'a> {
    /// The residual stream.
    pub acc: Cols,
    /// What [`Backend::experts`](crate::Backend::experts) wrote.
    pub slots: Buf,
    /// Experts of each row.
    pub top_k: usize,
    /// `rows * top_k`; a rank of weight zero is not read.
    pub weights: &'a [f32],
    /// The shared expert, where there is one.
    pub shared: Option<Shared>,
}

/// The shared expert's contribution.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// Its output.
    pub out: Cols,
    /// Where present, one logit a row whose sigmoid scales the output.
    pub gate: Option<Cols>,
}
