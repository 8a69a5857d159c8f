//! Grouped-query attention, with what families add to it: biases, normalised
//! queries and keys, an output gate, sinks, windows.

use moeflux_backend::{
    Attention, Cache, Cols, GatedAttention, Heads, KeysValues, RmsNorm, Rope, RopePairs, Vector,
};
use moeflux_core::checkpoint::Config;

use super::linear::{Linear, project};
use super::norm::Norm;
use super::pool_indexer::PoolIndexer;
use super::sections::Sections;
use crate::layers::builder::Builder;
use crate::layers::mixer::Mixer;
use crate::load::LoadError;
use crate::step::Step;

/// What the attention layers of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    /// What `q_norm` and `k_norm` normalise.
    pub(crate) norms: QkNorm,
    /// Whether `q_proj` gives, head by head, a query and a gate of the output.
    pub(crate) is_gated: bool,
    /// Whether `q_proj`, `k_proj` and `v_proj` have biases.
    pub(crate) has_qkv_bias: bool,
    /// Whether `o_proj` has one.
    pub(crate) has_output_bias: bool,
    /// Number of positions that a token attends to, its own included; all where absent.
    pub(crate) window: Option<usize>,
    pub(crate) values: Values,
    /// Multiplies every score.
    pub(crate) scale: f32,
    /// Which rotated columns of a head form a pair.
    pub(crate) pairs: RopePairs,
    /// Where positions have three parts.
    pub(crate) sections: Option<Sections>,
    /// Whether rows of a picture see those after them.
    pub(crate) looks_ahead: bool,
    /// What checkpoints call the parts.
    pub(crate) names: AttentionNames,
}

/// Where values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// `v_proj`.
    Projected,
    /// `v_proj`; each head is divided by its root mean square.
    Normalised,
    /// `k_proj`, before the norm of keys; each head is divided by its root mean square.
    NormalisedKeys,
}

/// What checkpoints call the parts of attention layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionNames {
    /// The attention of a layer.
    pub(crate) block: &'static str,
    /// The projection of queries, keys and values, where one matrix has all of its rows in this order.
    pub(crate) joined: Option<&'static str>,
    /// The projection of the output.
    pub(crate) output: &'static str,
    /// The norm of queries.
    pub(crate) q_norm: &'static str,
    /// The norm of keys.
    pub(crate) k_norm: &'static str,
}

impl AttentionNames {
    /// As most families have them.
    pub(crate) const USUAL: AttentionNames = AttentionNames {
        block: "self_attn",
        joined: None,
        output: "o_proj",
        q_norm: "q_norm",
        k_norm: "k_norm",
    };
}

/// What the norms of queries and keys span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QkNorm {
    /// There are none.
    None,
    /// A head; all heads share the weight.
    PerHead,
    /// All heads together.
    Whole,
}

impl AttentionShape {
    /// From the keys that all families use, without additions.
    pub(crate) fn read(config: &Config) -> Result<AttentionShape, LoadError> {
        let n_heads = config.usize("num_attention_heads")?;
        let n_kv_heads = match config.get("num_key_value_heads") {
            Some(_) => config.usize("num_key_value_heads")?,
            None => n_heads,
        };
        let head_dim = match config.get("head_dim") {
            Some(_) => config.usize("head_dim")?,
            None => (config.usize("hidden_size")? / n_heads).max(1),
        };
        if !n_heads.is_multiple_of(n_kv_heads) {
            return Err(config.refuse("num_key_value_heads", "divide num_attention_heads").into());
        }
        Ok(AttentionShape {
            n_heads,
            n_kv_heads,
            head_dim,
            norms: QkNorm::None,
            is_gated: false,
            has_qkv_bias: false,
            has_output_bias: false,
            window: None,
            pairs: RopePairs::Halves,
            sections: None,
            looks_ahead: false,
            names: AttentionNames::USUAL,
            values: Values::Projected,
            scale: 1.0 / (head_dim as f32).sqrt(),
        })
    }
}

/// Loads attention layers that share their activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionBlocks {
    shape: AttentionShape,
    rope: Rope,
    scratch: AttentionScratch,
}

/// Activations of attention layers; one set serves all of them.
#[derive(Clone, Copy, Debug)]
struct AttentionScratch {
    /// The columns of `q` and `gate` together.
    q_cols: Cols,
    /// Queries and, interleaved head by head, their gates.
    q: Heads,
    /// Gates of the output, where the family has them.
    gate: Option<Heads>,
    /// `(n_kv_heads, head_dim)`.
    k: Heads,
    /// `(n_kv_heads, head_dim)`.
    v: Heads,
    /// `(n_heads, head_dim)`.
    mixed: Heads,
}

/// One attention layer.
#[derive(Debug)]
pub(crate) struct AttentionLayer {
    input: InputProjections,
    o_proj: Linear,
    norms: Option<Norms>,
    v_norm: Option<Norm>,
    pub(crate) rope: Rope,
    /// Multiplies every score.
    scale: f32,
    /// Number of positions that a token attends to, its own included; all where absent.
    window: Option<usize>,
    /// Whether rows of a picture see those after them.
    looks_ahead: bool,
    /// Logits that take part in the softmax and have no value, one a head.
    pub(crate) sinks: Option<Vector>,
    /// Chooses the positions that are seen; all are where it is absent.
    pub(crate) indexer: Option<PoolIndexer>,
    cache: Cache,
    scratch: AttentionScratch,
}

/// What queries, keys and values are projected with.
#[derive(Clone, Copy, Debug)]
enum InputProjections {
    Separate {
        q: Linear,
        k: Linear,
        /// Absent where values are keys.
        v: Option<Linear>,
    },
    /// The rows of queries, then those of keys, then those of values.
    Joined(Linear),
}

impl InputProjections {
    fn has_values(&self) -> bool {
        !matches!(self, InputProjections::Separate { v: None, .. })
    }
}

#[derive(Clone, Copy, Debug)]
struct Norms {
    q: Norm,
    k: Norm,
    span: QkNorm,
}

impl AttentionBlocks {
    /// Allocates what the attention layers of a model share.
    pub(crate) fn new(
        shape: AttentionShape,
        rope: Rope,
        builder: &mut Builder<'_, '_>,
    ) -> AttentionBlocks {
        let AttentionShape { n_heads, n_kv_heads, head_dim, is_gated, .. } = shape;
        builder.positions.have_parts |= shape.sections.is_some();
        builder.positions.look_ahead |= shape.looks_ahead;
        let stride = if is_gated { 2 * head_dim } else { head_dim };
        let kv_cols = n_kv_heads * head_dim;
        let [q_cols, k, v] = if shape.values == Values::NormalisedKeys {
            let [q_cols, k] = builder.build.cols_together([n_heads * stride, kv_cols]);
            // No op reads the buffer that it writes.
            [q_cols, k, builder.build.cols(kv_cols)]
        } else {
            builder.build.cols_together([n_heads * stride, kv_cols, kv_cols])
        };
        let part =
            |at| Heads { buf: q_cols.buf, start: q_cols.start + at, n_heads, head_dim, stride };
        let scratch = AttentionScratch {
            q_cols,
            q: part(0),
            gate: is_gated.then(|| part(head_dim)),
            k: k.heads(n_kv_heads),
            v: v.heads(n_kv_heads),
            mixed: builder.build.cols(n_heads * head_dim).heads(n_heads),
        };
        AttentionBlocks { shape, rope, scratch }
    }

    /// The layer called `name`, without sinks.
    pub(crate) fn load(
        &self,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<AttentionLayer, LoadError> {
        self.load_with_window(name, self.shape.window, builder)
    }

    /// The same where a layer has a window of its own, or none.
    pub(crate) fn load_with_window(
        &self,
        name: &str,
        window: Option<usize>,
        builder: &mut Builder<'_, '_>,
    ) -> Result<AttentionLayer, LoadError> {
        let AttentionShape { n_kv_heads, head_dim, has_qkv_bias, has_output_bias, names, .. } =
            self.shape;
        let AttentionScratch { q_cols, k, mixed, .. } = self.scratch;
        let (hidden, kv_cols, mixed) = (builder.outline.hidden, columns(k).len, columns(mixed).len);
        let values = self.shape.values;
        // Checkpoints may have the three apart that others join.
        let are_apart = builder.build.weights.holds(&format!("{name}.q_proj.weight"));
        let mut linear = |part: &str, rows, cols, has_bias| {
            let name = format!("{name}.{part}");
            Linear::load(&name, rows, cols, has_bias, builder)
        };
        let input = match names.joined.filter(|_| !are_apart) {
            Some(joined) => {
                let rows = self.scratch.joined_cols().len;
                InputProjections::Joined(linear(joined, rows, hidden, has_qkv_bias)?)
            }
            None => InputProjections::Separate {
                q: linear("q_proj", q_cols.len, hidden, has_qkv_bias)?,
                k: linear("k_proj", kv_cols, hidden, has_qkv_bias)?,
                v: (values != Values::NormalisedKeys)
                    .then(|| linear("v_proj", kv_cols, hidden, has_qkv_bias))
                    .transpose()?,
            },
        };
        Ok(AttentionLayer {
            input,
            o_proj: linear(names.output, hidden, mixed, has_output_bias)?,
            norms: self.norms(name, builder)?,
            v_norm: (values != Values::Projected).then(|| builder.plain_norm(head_dim)),
            rope: self.rope,
            scale: self.shape.scale,
            window,
            looks_ahead: self.shape.looks_ahead,
            sinks: None,
            indexer: None,
            cache: builder.kv_cache(n_kv_heads, head_dim, head_dim, window),
            scratch: self.scratch,
        })
    }

    fn norms(&self, name: &str, builder: &mut Builder<'_, '_>) -> Result<Option<Norms>, LoadError> {
        let AttentionShape { n_heads, n_kv_heads, head_dim, norms: span, names, .. } = self.shape;
        let (q_len, k_len) = match span {
            QkNorm::None => return Ok(None),
            QkNorm::PerHead => (head_dim, head_dim),
            QkNorm::Whole => (n_heads * head_dim, n_kv_heads * head_dim),
        };
        let q = builder.norm(&format!("{name}.{}", names.q_norm), q_len)?;
        let k = builder.norm(&format!("{name}.{}", names.k_norm), k_len)?;
        Ok(Some(Norms { q, k, span }))
    }
}

impl AttentionScratch {
    /// The columns of queries, keys and values, which are adjacent.
    fn joined_cols(&self) -> Cols {
        let (k, v) = (columns(self.k), columns(self.v));
        Cols { len: self.q_cols.len + k.len + v.len, ..self.q_cols }
    }
}

impl Norms {
    fn ops(self, q: Heads, k: Heads) -> (RmsNorm, RmsNorm) {
        let op = |norm: Norm, x: Heads| {
            let x = if self.span == QkNorm::Whole { columns(x).heads(1) } else { x };
            norm.op(x, x)
        };
        (op(self.q, q), op(self.k, k))
    }
}

impl Mixer for AttentionLayer {
    fn forward(&self, step: &mut Step<'_>, out: Cols, x: Cols) {
        let AttentionScratch { q_cols, q, gate, k, v, mixed } = self.scratch;
        match self.input {
            InputProjections::Separate { q, k: k_proj, v: v_proj } => {
                let (q, k_proj) = (q.onto(q_cols), k_proj.onto(columns(k)));
                match v_proj {
                    Some(v_proj) => project(step, x, &[q, k_proj, v_proj.onto(columns(v))]),
                    None => project(step, x, &[q, k_proj]),
                }
            }
            InputProjections::Joined(qkv) => {
                project(step, x, &[qkv.onto(self.scratch.joined_cols())]);
            }
        }
        let selection = self.indexer.as_ref().map(|indexer| indexer.forward(step, x));
        let attention = Attention {
            out: mixed,
            q,
            append: Some(KeysValues { k, v: Some(v) }),
            cache: self.cache,
            scale: self.scale,
            window: self.window,
            sinks: self.sinks,
            selection,
            looks_ahead: self.looks_ahead,
            entries: None,
        };
        let (q_norm, k_norm) = self.norms.map(|norms| norms.ops(q, k)).unzip();
        let values = if self.input.has_values() { v } else { k };
        let v_norm = self.v_norm.map(|norm| norm.op(v, values));
        let op = GatedAttention { v_norm, q_norm, k_norm, rope: self.rope, attention, gate };
        step.backend.gated_attention(op, step.spans);
        project(step, columns(mixed), &[self.o_proj.onto(out)]);
    }
}

/// The columns of adjacent heads.
pub(crate) fn columns(heads: Heads) -> Cols {
    assert_eq!(heads.stride, heads.head_dim, "only adjacent heads are one run of columns");
    Cols { buf: heads.buf, start: heads.start, len: heads.n_heads * heads.head_dim }
}
