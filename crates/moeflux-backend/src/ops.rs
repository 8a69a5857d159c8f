//! The arguments of ops: views of activations, and what travels together.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use moeflux_core::quant::MatrixFormat;
use moeflux_core::{Expert, HostBuf, TokenId};

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

/// Which positions each row of a batch may attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selection(pub u32);

/// How a cache stores keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvType {
    /// As they are.
    #[default]
    F32,
    /// Rounded to the upper half of a single, ties to even.
    Bf16,
    /// Integers of eight bits in groups of [`KvType::Q8_GROUP`] elements of a
    /// head (the last may be shorter), each behind its `f32` scale: the largest
    /// magnitude divided by 127, rounded up to a mantissa of 16 bits, so that
    /// storing what was read back changes nothing. A group whose scale would be
    /// below the normal numbers is all zeros.
    Q8,
}

impl KvType {
    /// Elements that share a scale.
    pub const Q8_GROUP: usize = 64;

    /// Bytes of a vector of `dim` elements.
    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            KvType::F32 => dim * 4,
            KvType::Bf16 => dim * 2,
            KvType::Q8 => dim + 4 * dim.div_ceil(Self::Q8_GROUP),
        }
    }
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
        /// Floats of a value; 0 where values are the first floats of keys.
        v_dim: usize,
        /// How both are stored.
        dtype: KvType,
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
            CacheSpec::Kv { n_heads, k_dim, v_dim, dtype } => {
                n_heads * (dtype.row_bytes(k_dim) + dtype.row_bytes(v_dim))
            }
            CacheSpec::Conv { .. } | CacheSpec::Delta { .. } => 0,
        }
    }

    /// Bytes of [`Backend::save_cache`](crate::Backend::save_cache) for
    /// `n` positions: little-endian, as stored.
    ///
    /// Keys and values: the keys `(n, n_heads, k_dim)`, then the values
    /// `(n, n_heads, v_dim)`. A convolution: `(kernel - 1, channels)` floats,
    /// the oldest input first. A delta rule: `(n_heads, v_dim, k_dim)` floats.
    pub fn saved_bytes(&self, n: usize) -> usize {
        self.fixed_bytes() + n * self.bytes_per_position()
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
    /// the weights are integers, as affine ones and those of MXFP4 are; else as
    /// they are. Backends may take the inputs of many rows as sums of two halves
    /// instead, whatever the weights, which keeps 22 bits, and those of MXFP4 as they are.
    Int16,
    /// Rounded to integers of eight bits, group by group, where the weights
    /// are integers; else as for [`Int16`](Inputs::Int16). Backends may take the
    /// inputs of many rows as one half each instead, and those of MXFP4 as they are,
    /// which loses less.
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

/// A product for every head with rows of its own of one matrix:
/// `out[h] = W_h x[h]`, or `out[h] = W_h^T x[h]`, inputs as they are.
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
    /// `(n_kv_heads, v_dim)` a row; `None` where a value is the first
    /// `out.head_dim` floats of its key (multi-head latent attention).
    pub v: Option<Heads>,
    /// A [`CacheSpec::Kv`].
    pub cache: Cache,
    /// Multiplies every score.
    pub scale: f32,
    /// Only so many positions are seen, the row's own included.
    pub window: Option<usize>,
    /// One logit a query head that takes part in the softmax and has no value.
    /// It is not multiplied by the scale.
    pub sinks: Option<Vector>,
    /// Only the positions chosen for each row of the batch are seen.
    pub selection: Option<Selection>,
}

/// Appends an index key to a cache and chooses the positions that each row
/// will attend to: the `top_k` highest of
/// `score(j) = sum over heads of weights[h] * relu(q[h] . k[j] * scale)`
/// among the positions up to the row's own, all of them where there are no
/// more; among equals the lower position (DeepSeek-V3.2's lightning indexer,
/// which also divides the weights by `sqrt(n_heads)`: as scores are only
/// compared, that belongs into `scale`, or nowhere).
#[derive(Clone, Copy, Debug)]
pub struct SelectPositions {
    /// Where the choice goes.
    pub out: Selection,
    /// `(n_heads, dim)` a row.
    pub q: Heads,
    /// `dim` a row.
    pub k: Cols,
    /// `n_heads` a row.
    pub weights: Cols,
    /// A [`CacheSpec::Kv`] of one head of `dim`, without values.
    pub cache: Cache,
    /// Multiplies every product of a query and a key.
    pub scale: f32,
    /// How many positions a row keeps.
    pub top_k: usize,
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scoring {
    /// Softmax over all experts, then the best `top_k`.
    Softmax {
        /// Whether their weights are divided by their sum.
        renormalise: bool,
        /// Multiplies the weights.
        scale: f32,
    },
    /// The best `top_k` logits, then softmax over those (gpt-oss).
    SoftmaxOfChosen,
    /// `sigmoid` of every logit (DeepSeek-V3's `noaux_tc`).
    Sigmoid {
        /// Added to scores for the choice alone, one an expert.
        bias: Option<Vector>,
        /// Where present, only experts of the best groups are eligible.
        groups: Option<ExpertGroups>,
        /// Whether weights are divided by their sum plus `1e-20`.
        renormalise: bool,
        /// Multiplies the weights.
        scale: f32,
    },
}

impl Scoring {
    /// The scores themselves: probabilities of all experts, or sigmoids, neither
    /// renormalised nor scaled. The order stays the same, but for ties.
    pub fn plain(self) -> Scoring {
        match self {
            Scoring::Softmax { .. } | Scoring::SoftmaxOfChosen => {
                Scoring::Softmax { renormalise: false, scale: 1.0 }
            }
            Scoring::Sigmoid { bias, groups, .. } => {
                Scoring::Sigmoid { bias, groups, renormalise: false, scale: 1.0 }
            }
        }
    }
}

/// Equal runs of experts; a group's score is the sum of its two best choice
/// scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// How many there are.
    pub n: usize,
    /// How many stay eligible.
    pub kept: usize,
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

/// One of the tokens that may well come next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leader {
    /// The token.
    pub token: TokenId,
    /// Its logit.
    pub logit: f32,
}

impl Leader {
    /// The highest logit first, of equal ones the lowest token; logits as
    /// [`f32::total_cmp`] orders them.
    pub fn order(&self, other: &Leader) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.0.cmp(&other.token.0))
    }
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

/// What stands between an expert's first two products and its third.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up`.
    Swiglu,
    /// gpt-oss: `g * sigmoid(alpha * g) * (u + 1)` where
    /// `g = min(gate, limit)` and `u = clamp(up, -limit, limit)`.
    ClampedSwiglu {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Bound of both inputs.
        limit: f32,
    },
}

/// Added to experts' products, `n_experts` rows each.
#[derive(Clone, Copy, Debug)]
pub struct ExpertBiases {
    /// `(n_experts, intermediate)`.
    pub gate: Vector,
    /// `(n_experts, intermediate)`.
    pub up: Vector,
    /// `(n_experts, hidden)`.
    pub down: Vector,
}

/// `out[slot] = down(activation(gate(x[row]), up(x[row])))`, for experts that
/// arrived together.
#[derive(Clone, Copy, Debug)]
pub struct Experts<'a> {
    /// One row a slot.
    pub out: Buf,
    /// The normalised hidden states.
    pub x: Cols,
    /// Rows of the batch, whether they are among those of the experts or not.
    pub rows: usize,
    /// How the products treat their inputs.
    pub inputs: Inputs,
    /// What stands between the products.
    pub activation: Activation,
    /// Added to the products, where the family has them.
    pub biases: Option<ExpertBiases>,
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
