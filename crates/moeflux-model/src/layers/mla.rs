//! Multi-head latent attention (DeepSeek-AI, 2024, "DeepSeek-V2"; as in
//! transformers' `modeling_deepseek_v3`) in its absorbed form: what is cached
//! is one latent vector and one rotated key a position, shared by all heads,
//! and queries and outputs go through the halves of `kv_b_proj` instead.

use moeflux_backend::{
    Attention, Cache, Cols, HeadProduct, Heads, KeysValues, Rope, RopePairs, Selection, Weight,
};
use moeflux_core::checkpoint::Config;

use super::attention::columns;
use super::gated_pool_indexer::GatedPoolIndexer;
use super::indexer::Indexer;
use super::linear::{Linear, project};
use super::norm::{Norm, NormWeights};
use super::rope;
use crate::layers::builder::Builder;
use crate::layers::mixer::Mixer;
use crate::load::LoadError;
use crate::step::Step;

/// The reference's latent norms do not follow `rms_norm_eps`.
const LATENT_EPS: f32 = 1e-6;

/// The largest believable dimension of a head or a latent.
const MAX_DIM: usize = 1 << 14;

/// What the attention layers of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MlaShape {
    pub(crate) n_heads: usize,
    /// Columns between the two projections of queries, where there are two.
    pub(crate) q_rank: Option<usize>,
    /// Columns of the latent that keys and values are made of.
    pub(crate) kv_rank: usize,
    /// Columns of a head's query that meet the latent.
    pub(crate) nope_dim: usize,
    /// And those that meet the key of all heads, rotated but in families without rotation.
    pub(crate) rope_dim: usize,
    /// Columns of a head's value.
    pub(crate) v_dim: usize,
    /// Which rotated columns form a pair.
    pub(crate) pairs: RopePairs,
    /// Whether the projections from and to the residual stream have biases.
    pub(crate) has_bias: bool,
    /// Multiplies every score.
    pub(crate) scale: f32,
    /// Added to the mean squares of latents.
    pub(crate) latent_eps: f32,
}

impl MlaShape {
    pub(crate) fn read(config: &Config) -> Result<MlaShape, LoadError> {
        MlaShape::with_keys_of_all(config, 1)
    }

    /// The shape where no column is rotated, and nothing follows from the length of the context. Keys
    /// may have no columns that all heads share.
    pub(crate) fn unrotated(config: &Config) -> Result<MlaShape, LoadError> {
        let shape = MlaShape::with_keys_of_all(config, 0)?;
        let scale = 1.0 / (shape.query_dim() as f32).sqrt();
        Ok(MlaShape { scale, ..shape })
    }

    /// With at least this many columns of keys that all heads share.
    fn with_keys_of_all(config: &Config, least: usize) -> Result<MlaShape, LoadError> {
        let dim = |key| config.usize_in(key, 1..=MAX_DIM);
        let n_heads = config.usize("num_attention_heads")?;
        let q_rank = config.get("q_lora_rank").map(|_| dim("q_lora_rank")).transpose()?;
        let nope_dim = dim("qk_nope_head_dim")?;
        let rope_dim = config.usize_in("qk_rope_head_dim", least..=MAX_DIM)?;
        let has_kv_heads = config.get("num_key_value_heads").is_some();
        if has_kv_heads && config.usize("num_key_value_heads")? != n_heads {
            return Err(config.refuse("num_key_value_heads", "equal num_attention_heads").into());
        }
        if !rope_dim.is_multiple_of(2) {
            return Err(config.refuse("qk_rope_head_dim", "be even").into());
        }
        if config.rope_f32("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
            return Err(config.refuse("partial_rotary_factor", "be 1").into());
        }
        let is_interleaved = config.bool("rope_interleave")?;
        Ok(MlaShape {
            n_heads,
            q_rank,
            kv_rank: dim("kv_lora_rank")?,
            nope_dim,
            rope_dim,
            v_dim: dim("v_head_dim")?,
            pairs: if is_interleaved { RopePairs::Adjacent } else { RopePairs::Halves },
            has_bias: config.bool("attention_bias")?,
            scale: rope::latent_score_factor(config)? / ((nope_dim + rope_dim) as f32).sqrt(),
            latent_eps: LATENT_EPS,
        })
    }

    fn query_dim(&self) -> usize {
        self.nope_dim + self.rope_dim
    }

    /// Columns of what is cached for a position.
    fn key_dim(&self) -> usize {
        self.kv_rank + self.rope_dim
    }
}

/// Loads attention layers that share their activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MlaBlocks {
    shape: MlaShape,
    rope: Option<Rope>,
    scratch: MlaScratch,
}

/// Activations of attention layers; one set serves all of them.
#[derive(Clone, Copy, Debug)]
struct MlaScratch {
    /// What queries are made of, where two projections make them.
    q_latent: Option<Cols>,
    /// `(n_heads, nope_dim + rope_dim)`.
    q: Cols,
    /// Queries of latents, `(n_heads, kv_rank + rope_dim)`.
    absorbed: Heads,
    /// A latent and a rotated key.
    key: Cols,
    /// Mixed latents, `(n_heads, kv_rank)`.
    mixed: Heads,
    /// `(n_heads, v_dim)`.
    values: Heads,
}

/// One attention layer.
#[derive(Debug)]
pub(crate) struct MlaLayer {
    shape: MlaShape,
    queries: Queries,
    kv_a_proj: Linear,
    kv_norm: Norm,
    /// Makes queries of latents from queries of keys.
    key_heads: HeadWeights,
    /// Makes values from latents.
    value_heads: HeadWeights,
    o_proj: Linear,
    rope: Option<Rope>,
    cache: Cache,
    /// Which positions are seen.
    pub(crate) positions: Positions,
    scratch: MlaScratch,
}

/// How queries are made.
#[derive(Clone, Copy, Debug)]
enum Queries {
    Direct(Linear),
    Latent { a_proj: Linear, norm: Norm, b_proj: Linear },
}

/// A matrix for every head.
#[derive(Clone, Copy, Debug)]
struct HeadWeights {
    weight: Weight,
    first_row: usize,
    row_stride: usize,
    transposed: bool,
}

/// Which positions an attention layer sees.
#[derive(Debug)]
pub(crate) enum Positions {
    /// All up to the token's own.
    All,
    /// Those that an earlier layer chose.
    Chosen(Selection),
    /// Those that it chooses.
    Indexed(Indexer),
    /// Those of the pools that it chooses.
    Pooled(GatedPoolIndexer),
}

impl MlaBlocks {
    /// Allocates what the attention layers of a model share.
    pub(crate) fn new(
        shape: MlaShape,
        rope: Option<Rope>,
        builder: &mut Builder<'_, '_>,
    ) -> MlaBlocks {
        let MlaShape { n_heads, kv_rank, v_dim, .. } = shape;
        let build = &mut *builder.build;
        let scratch = MlaScratch {
            q_latent: shape.q_rank.map(|rank| build.cols(rank)),
            q: build.cols(n_heads * shape.query_dim()),
            absorbed: build.cols(n_heads * shape.key_dim()).heads(n_heads),
            key: build.cols(shape.key_dim()),
            mixed: build.cols(n_heads * kv_rank).heads(n_heads),
            values: build.cols(n_heads * v_dim).heads(n_heads),
        };
        MlaBlocks { shape, rope, scratch }
    }

    /// The layer called `name`, seeing all positions.
    pub(crate) fn load(
        &self,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<MlaLayer, LoadError> {
        let MlaShape { n_heads, kv_rank, v_dim, has_bias, .. } = self.shape;
        let (hidden, key_dim) = (builder.outline.hidden, self.shape.key_dim());
        let kv_a_proj = format!("{name}.kv_a_proj_with_mqa");
        let (key_heads, value_heads) = self.head_weights(name, builder)?;
        Ok(MlaLayer {
            shape: self.shape,
            queries: self.queries(name, builder)?,
            kv_a_proj: Linear::load(&kv_a_proj, key_dim, hidden, has_bias, builder)?,
            kv_norm: self.latent_norm(&format!("{name}.kv_a_layernorm"), kv_rank, builder)?,
            key_heads,
            value_heads,
            o_proj: Linear::load(
                &format!("{name}.o_proj"),
                hidden,
                n_heads * v_dim,
                has_bias,
                builder,
            )?,
            rope: self.rope,
            cache: builder.kv_cache(1, key_dim, 0, None),
            positions: Positions::All,
            scratch: self.scratch,
        })
    }

    fn queries(&self, name: &str, builder: &mut Builder<'_, '_>) -> Result<Queries, LoadError> {
        let (hidden, has_bias) = (builder.outline.hidden, self.shape.has_bias);
        let q_cols = self.scratch.q.len;
        let Some(rank) = self.shape.q_rank else {
            let q_proj = format!("{name}.q_proj");
            return Ok(Queries::Direct(Linear::load(&q_proj, q_cols, hidden, false, builder)?));
        };
        let part = |part: &str| format!("{name}.{part}");
        Ok(Queries::Latent {
            a_proj: Linear::load(&part("q_a_proj"), rank, hidden, has_bias, builder)?,
            norm: self.latent_norm(&part("q_a_layernorm"), rank, builder)?,
            b_proj: Linear::load(&part("q_b_proj"), q_cols, rank, false, builder)?,
        })
    }

    fn latent_norm(
        &self,
        name: &str,
        len: usize,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Norm, LoadError> {
        let (name, eps) = (format!("{name}.weight"), self.shape.latent_eps);
        Norm::load(builder.build.weights, &name, len, NormWeights::Plain, eps)
    }

    /// Every head's halves of `kv_b_proj`, or the two stacks that newer MLX
    /// conversions store instead, the first of them transposed.
    fn head_weights(
        &self,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<(HeadWeights, HeadWeights), LoadError> {
        let MlaShape { n_heads, kv_rank, nope_dim, v_dim, .. } = self.shape;
        let stack = |weight, rows| HeadWeights {
            weight,
            first_row: 0,
            row_stride: rows,
            transposed: false,
        };
        let embed_q = format!("{name}.embed_q");
        if builder.build.weights.holds(&format!("{embed_q}.weight")) {
            let embed_q = builder.projection(&embed_q, n_heads * kv_rank, nope_dim)?;
            let unembed_out = format!("{name}.unembed_out");
            let unembed_out = builder.projection(&unembed_out, n_heads * v_dim, kv_rank)?;
            return Ok((stack(embed_q, kv_rank), stack(unembed_out, v_dim)));
        }
        let row_stride = nope_dim + v_dim;
        let kv_b_proj = format!("{name}.kv_b_proj");
        let weight = builder.projection(&kv_b_proj, n_heads * row_stride, kv_rank)?;
        let keys = HeadWeights { weight, first_row: 0, row_stride, transposed: true };
        Ok((keys, HeadWeights { first_row: nope_dim, transposed: false, ..keys }))
    }
}

impl HeadWeights {
    fn op(self, out: Heads, x: Heads) -> HeadProduct {
        let HeadWeights { weight, first_row, row_stride, transposed } = self;
        HeadProduct { out, x, weight, first_row, row_stride, transposed }
    }
}

impl MlaLayer {
    /// Projects the input, queries to the end.
    fn project(&self, step: &mut Step<'_>, x: Cols) {
        let MlaScratch { q_latent, q, key, .. } = self.scratch;
        let (first, out) = match self.queries {
            Queries::Direct(q_proj) => (q_proj, q),
            Queries::Latent { a_proj, .. } => (a_proj, q_latent.expect("queries have a latent")),
        };
        project(step, x, &[first.onto(out), self.kv_a_proj.onto(key)]);
        if let Queries::Latent { norm, b_proj, .. } = self.queries {
            norm.forward(step, out, out);
            project(step, out, &[b_proj.onto(q)]);
        }
        let latent = key.slice(0, self.shape.kv_rank);
        self.kv_norm.forward(step, latent, latent);
    }

    /// Rotates what is rotated, and writes queries of latents.
    fn absorb(&self, step: &mut Step<'_>) {
        let rows = step.rows();
        let MlaShape { kv_rank, nope_dim, rope_dim, .. } = self.shape;
        let MlaScratch { q, absorbed, key, .. } = self.scratch;
        let q = q.heads(self.shape.n_heads);
        let rotated = part(q, nope_dim, rope_dim);
        let Step { backend, spans, .. } = step;
        if let Some(rope) = self.rope {
            backend.rope(rotated, rope, spans);
            backend.rope(key.slice(kv_rank, rope_dim).heads(1), rope, spans);
        }
        let latent = part(absorbed, 0, kv_rank);
        backend.head_product(rows, self.key_heads.op(latent, part(q, 0, nope_dim)));
        if rope_dim > 0 {
            backend.copy(rows, part(absorbed, kv_rank, rope_dim), rotated);
        }
    }
}

impl Mixer for MlaLayer {
    fn forward(&self, step: &mut Step<'_>, out: Cols, x: Cols) {
        let rows = step.rows();
        let MlaScratch { q_latent, absorbed, key, mixed, values, .. } = self.scratch;
        self.project(step, x);
        self.absorb(step);
        let selection = match &self.positions {
            Positions::All => None,
            Positions::Chosen(selection) => Some(*selection),
            Positions::Indexed(indexer) => {
                let q_latent = q_latent.expect("indexers read a latent");
                Some(indexer.forward(step, x, q_latent))
            }
            Positions::Pooled(indexer) => {
                let q_latent = q_latent.expect("indexers read a latent");
                Some(indexer.forward(step, x, q_latent))
            }
        };
        let op = Attention {
            out: mixed,
            q: absorbed,
            append: Some(KeysValues { k: key.heads(1), v: None }),
            cache: self.cache,
            scale: self.shape.scale,
            window: None,
            sinks: None,
            selection,
            looks_ahead: false,
            entries: None,
        };
        let Step { backend, spans, .. } = step;
        backend.attention(op, spans);
        backend.head_product(rows, self.value_heads.op(values, mixed));
        project(step, columns(values), &[self.o_proj.onto(out)]);
    }
}

/// The columns `start..start + len` of every head.
fn part(heads: Heads, start: usize, len: usize) -> Heads {
    assert!(start + len <= heads.head_dim, "a part lies inside its head");
    Heads { start: heads.start + start, head_dim: len, ..heads }
}
