//! Arguments of the ops that read other rows of a sequence.

use super::caches::StateShape;
use super::views::{Cache, Cols, Heads, Rope, Selection, Vector};

/// Keys and values of the rows of a step.
#[derive(Clone, Copy, Debug)]
pub struct KeysValues {
    /// `(n_kv_heads, k_dim)` a row.
    pub k: Heads,
    /// `(n_kv_heads, v_dim)` a row; `None` where the cache has no values, because a value is the first
    /// floats of its key (multi-head latent attention).
    pub v: Option<Heads>,
}

/// Appends keys and values to a cache, then attends over it, causally but for rows that look ahead.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// `(n_heads, v_dim)` a row.
    pub out: Heads,
    /// `(n_heads, k_dim)` a row; query head `h` reads key head `h / (n_heads / n_kv_heads)`.
    pub q: Heads,
    /// What is appended to the cache first; absent where another op of the step has appended keys and
    /// values of the same rows, those of a layer that shares them.
    pub append: Option<KeysValues>,
    /// [Pages](crate::CacheSpec::Pages). Where these are without values, a value is the first
    /// `out.head_dim` floats of its key.
    pub cache: Cache,
    /// Multiplies every score.
    pub scale: f32,
    /// The last positions that a row attends to, its own included; all where absent.
    pub window: Option<usize>,
    /// One logit a query head that takes part in the softmax and has no value.
    /// It is not multiplied by the scale.
    pub sinks: Option<Vector>,
    /// Only the positions chosen for each row of the batch are seen; where there are entries, only those
    /// chosen of these, and all positions.
    pub selection: Option<Selection>,
    /// [Entries](crate::CacheSpec::Entries) that take part in the softmax as further keys of all heads, whose
    /// values are their first `out.head_dim` floats: those of the pools that end at or before a row's own
    /// position. Another op of the step has made those of its rows.
    pub entries: Option<Cache>,
    /// Whether rows see positions after their own, up to [`Span::ahead_to`](crate::Span::ahead_to).
    /// Windows go by a row's own position all the same.
    pub looks_ahead: bool,
}

/// Appends an index key to a cache and chooses the positions that each row
/// will attend to: the `top_k` highest of
/// `score(j) = sum over heads of weights[h] * relu(q[h] . k[j] * scale)`
/// among the positions up to the row's own, all of them where there are no
/// more; among equals the lower position (DeepSeek-V3.2's lightning indexer,
/// which also divides the weights by `sqrt(n_heads)`: as scores are only
/// compared, that belongs into `scale`, or nowhere).
///
/// With [pools](PoolKeys) a row chooses `top_k` of the pools that end at or before its position,
/// and also sees the positions after the last of these. Of entries it chooses `top_k` likewise, and the
/// selection has the numbers of these.
#[derive(Clone, Copy, Debug)]
pub struct SelectPositions {
    /// Where the choice goes.
    pub out: Selection,
    /// `(n_heads, dim)` a row.
    pub q: Heads,
    /// `dim` a row; with [gated pools](PoolFunction::Gated) `dim` gates follow. Absent where entries are
    /// chosen, which another op has made.
    pub k: Option<Cols>,
    /// `n_heads` a row; 1 for every head where absent.
    pub weights: Option<Cols>,
    /// [Pages](crate::CacheSpec::Pages) of one head of as many columns as `k`, without values; or
    /// [entries](crate::CacheSpec::Entries), which are chosen as pools are.
    pub cache: Cache,
    /// Multiplies every product of a query and a key.
    pub scale: f32,
    /// How many positions, or pools, a row keeps.
    pub top_k: usize,
    /// How keys of positions become those of pools, where pools are chosen.
    pub pools: Option<PoolKeys>,
}

/// Pools of `size` consecutive positions, counted from position 0.
///
/// The cache holds the key of a pool in place of that of the pool's last position. All other
/// places have the keys of their positions, so that a sequence can be cut anywhere.
#[derive(Clone, Copy, Debug)]
pub struct PoolKeys {
    /// Positions of a pool.
    pub size: usize,
    /// What the key of a pool is.
    pub function: PoolFunction,
}

/// What the key of a pool is of the keys of its positions.
#[derive(Clone, Copy, Debug)]
pub enum PoolFunction {
    /// `rope(rms_norm(mean of keys))`, rotated as its first row is
    /// ([`Span::rotary_at`](crate::Span::rotary_at)).
    Mean {
        /// `dim` factors of the norm.
        weight: Vector,
        /// Added to the mean square.
        eps: f32,
        /// The rotation.
        rope: Rope,
    },
    /// `sum over positions j of softmax over j of (gates[j] + bias[j]) * keys[j]`, column by column.
    Gated {
        /// `(size, dim)`.
        bias: Vector,
    },
}

impl SelectPositions {
    /// Checks the widths of keys.
    ///
    /// # Panics
    /// If they do not fit those of queries.
    pub fn assert_fits(&self) {
        let is_gated =
            self.pools.is_some_and(|pools| matches!(pools.function, PoolFunction::Gated { .. }));
        let n = if is_gated { 2 } else { 1 };
        let fits = self.k.is_none_or(|k| k.len == n * self.q.head_dim);
        assert!(fits, "index keys have the columns of queries");
        assert!(self.k.is_some() || self.pools.is_none(), "pools are of positions");
        assert!(self.top_k > 0, "a row sees a position");
        assert!(self.weights.is_none_or(|all| all.len == self.q.n_heads), "a weight an index head");
    }
}

/// Appends values and gates of rows to a cache with a window and, for each pool of positions that these
/// complete, an entry to another (DeepSeek-AI, 2026, "DeepSeek-V4"): column by column
///
/// ```text
/// entry = rope(rms_norm(sum over slots of softmax over slots of (gates + bias) * values))
/// ```
///
/// where the last columns are rotated as the first row of the pool is. The slots are the positions of the
/// pool. Pools that overlap have twice as many: the first halves of the columns of the positions of the
/// pool before, where there is one, then the second halves of their own.
#[derive(Clone, Copy, Debug)]
pub struct PoolEntries {
    /// Values, then as many gates a row: each as wide as an entry, or twice as wide where pools overlap.
    pub x: Cols,
    /// [Pages](crate::CacheSpec::Pages) of one head of as many columns as `x`, without values, in `f32`. A
    /// window reaches back to the first slot of a pool that is not complete.
    pub rows: Cache,
    /// [Entries](crate::CacheSpec::Entries).
    pub entries: Cache,
    /// Added to gates: as many as a row has, for each position of a pool.
    pub bias: Vector,
    /// Factors of the norm, one a column of an entry.
    pub weight: Vector,
    /// Added to the mean square.
    pub eps: f32,
    /// The rotation of the last columns.
    pub rope: Rope,
}

/// `out[t] = silu(bias + sum over j of weight[.., j] * x[t - kernel + 1 + j])`,
/// channel by channel, continuing from the cache.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv {
    /// Where it goes.
    pub out: Cols,
    /// The input; what reaches into the next step is kept as it is here.
    pub x: Cols,
    /// `(kernel, channels)`, row-major; the last row meets the newest input.
    pub weight: Vector,
    /// One a channel, where the family has them.
    pub bias: Option<Vector>,
    /// The last `kernel - 1` inputs: [rows](crate::StateShape::Rows) of the channels.
    pub cache: Cache,
}

/// Which key head the value heads of a delta rule read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueOrder {
    /// The value heads of a key head are adjacent: `h` reads `h / (n_v_heads / n_k_heads)`.
    #[default]
    Grouped,
    /// The value heads of a key head are `n_k_heads` apart: `h` reads `h % n_k_heads`.
    Tiled,
}

/// What decays of a delta rule's state are, of `z = a + dt_bias` and one `a_log` a value head.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Decay {
    /// One a value head, `exp(-exp(a_log) * softplus(z))` (gated delta net).
    #[default]
    Head,
    /// The same, one a column of a value head's state, so that each component of a key has its own
    /// (Kimi Team, 2025, "Kimi Linear").
    Columns,
    /// One a column, `exp(bound * sigmoid(exp(a_log) * z))`, which never falls below `exp(bound)`
    /// (GLM-5.3).
    Bounded {
        /// Below 0.
        bound: f32,
    },
}

impl Decay {
    /// Numbers of a value head whose keys have this many components.
    pub fn len(self, k_dim: usize) -> usize {
        match self {
            Decay::Head => 1,
            Decay::Columns | Decay::Bounded { .. } => k_dim,
        }
    }
}

/// The gated delta rule (Yang et al., 2024, "Gated Delta Networks"), head by
/// head: with `q` and `k` normalised to length one and `q` divided by
/// `sqrt(k_dim)`, and `beta = sigmoid(b)`,
///
/// ```text
/// S = decay * S;  d = (v - S k) * beta;  S = S + d k^T;  out = S q
/// ```
///
/// where [`decay`](Decay) multiplies the whole state, or column `i` by its component `i`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule {
    /// `(n_v_heads, v_dim)` a row.
    pub out: Heads,
    /// `(n_k_heads, k_dim)` a row.
    pub q: Heads,
    /// `(n_k_heads, k_dim)` a row.
    pub k: Heads,
    /// `(n_v_heads, v_dim)` a row.
    pub v: Heads,
    /// Which query and key a value head reads.
    pub order: ValueOrder,
    /// What the state's decays are.
    pub decay: Decay,
    /// `n_v_heads` a row, or `(n_v_heads, k_dim)` where columns decay.
    pub a: Cols,
    /// `n_v_heads` a row.
    pub b: Cols,
    /// `a_log`, `n_v_heads` numbers, then `dt_bias`, as many as `a` has columns: in one piece because
    /// devices bind few buffers.
    pub of_heads: Vector,
    /// `n_v_heads` [matrices](crate::StateShape::Matrices) of `(v_dim, k_dim)`.
    pub cache: Cache,
}

impl DeltaRule {
    /// The `nth` value head of a key head.
    pub fn value_head(&self, k_head: usize, nth: usize) -> usize {
        match self.order {
            ValueOrder::Grouped => k_head * (self.v.n_heads / self.k.n_heads) + nth,
            ValueOrder::Tiled => nth * self.k.n_heads + k_head,
        }
    }

    /// Value head `h` reads key head `h / divisor % n_k_heads`, with this divisor.
    pub fn head_divisor(&self) -> usize {
        match self.order {
            ValueOrder::Grouped => self.v.n_heads / self.k.n_heads,
            ValueOrder::Tiled => 1,
        }
    }
}

/// Mamba-2's state-space recurrence (Dao and Gu, 2024, "Transformers are SSMs"), head by head: with
/// `delta = softplus(dt + dt_bias)` and `decay = exp(-exp(a_log) * delta)`,
///
/// ```text
/// S = decay * S + b (delta * x)^T;  out = S^T c + skip * x
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StateSpace {
    /// `(n_heads, head_dim)` a row.
    pub out: Heads,
    /// `(n_heads, head_dim)` a row.
    pub x: Heads,
    /// `(n_groups, state_size)` a row: how inputs enter states. Head `h` reads group
    /// `h / (n_heads / n_groups)`.
    pub b: Heads,
    /// `(n_groups, state_size)` a row: how states are read.
    pub c: Heads,
    /// `n_heads` a row: the lengths of steps, before their bias and their activation.
    pub dt: Cols,
    /// `(3, n_heads)`: `dt_bias`, `a_log` and `skip`, in one piece because devices bind few buffers.
    pub of_heads: Vector,
    /// `n_heads` [matrices](crate::StateShape::Matrices) of `(state_size, head_dim)`: the columns of a
    /// head are independent of each other, so that no sum goes across them.
    pub cache: Cache,
}

impl StateSpace {
    /// The shape of its state.
    pub fn state_shape(&self) -> StateShape {
        let (n, rows, cols) = (self.x.n_heads, self.b.head_dim, self.x.head_dim);
        StateShape::Matrices { n, rows, cols }
    }

    /// The heads that read one group.
    pub fn heads_per_group(&self) -> usize {
        self.x.n_heads / self.b.n_heads
    }
}
