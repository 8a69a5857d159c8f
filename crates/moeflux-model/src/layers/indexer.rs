//! The lightning indexer of DeepSeek Sparse Attention: small queries and keys
//! of their own choose which positions an attention layer sees (as in
//! transformers' `modeling_deepseek_v32`). Its Hadamard rotation of both is
//! left out: it changes no product.

use moeflux_backend::{
    Cache, CacheSpec, Cols, Heads, KvType, LayerNorm, Projection, Rope, SelectPositions, Selection,
    Vector, Weight,
};
use moeflux_core::checkpoint::Config;

use crate::layers::builder::Builder;
use crate::load::LoadError;
use crate::step::Step;

/// The reference's norm of index keys does not follow the config.
const NORM_EPS: f32 = 1e-6;

/// What the indexers of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexerShape {
    pub(crate) n_heads: usize,
    pub(crate) head_dim: usize,
    /// Positions that a token sees.
    pub(crate) top_k: usize,
    /// Columns of the queries' latent.
    pub(crate) q_rank: usize,
}

impl IndexerShape {
    /// Of a model whose queries have a latent of `q_rank` columns; the first
    /// `rope_dim` of a head are rotated.
    pub(crate) fn read(
        config: &Config,
        q_rank: usize,
        rope_dim: usize,
    ) -> Result<IndexerShape, LoadError> {
        let head_dim = config.usize_in("index_head_dim", 1..=1 << 14)?;
        if head_dim < rope_dim {
            return Err(config.refuse("index_head_dim", "be at least qk_rope_head_dim").into());
        }
        let n_heads = config.usize_in("index_n_heads", 1..=4096)?;
        let top_k = config.usize_in("index_topk", 1..=1 << 30)?;
        Ok(IndexerShape { n_heads, head_dim, top_k, q_rank })
    }
}

/// Loads indexers that share their activations, and their choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexerBlocks {
    shape: IndexerShape,
    rope: Rope,
    scratch: IndexerScratch,
    /// What the last indexer chose.
    pub(crate) selection: Selection,
}

/// Activations of indexers; one set serves all of them.
#[derive(Clone, Copy, Debug)]
struct IndexerScratch {
    q: Heads,
    k: Cols,
    /// One a head.
    weights: Cols,
}

/// One indexer.
#[derive(Debug)]
pub(crate) struct Indexer {
    wq_b: Weight,
    wk: Weight,
    weights_proj: Weight,
    norm_weight: Vector,
    norm_bias: Vector,
    rope: Rope,
    cache: Cache,
    top_k: usize,
    selection: Selection,
    scratch: IndexerScratch,
}

impl IndexerBlocks {
    /// Allocates what the indexers of a model share.
    pub(crate) fn new(
        shape: IndexerShape,
        rope: Rope,
        builder: &mut Builder<'_, '_>,
    ) -> IndexerBlocks {
        let IndexerShape { n_heads, head_dim, .. } = shape;
        let build = &mut *builder.build;
        let scratch = IndexerScratch {
            q: build.cols(n_heads * head_dim).heads(n_heads),
            k: build.cols(head_dim),
            weights: build.cols(n_heads),
        };
        IndexerBlocks { shape, rope, scratch, selection: build.backend().new_selection() }
    }

    /// The indexer called `name`. Its keys are cached as they are: a rounded
    /// one could choose other positions.
    pub(crate) fn load(
        &self,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Indexer, LoadError> {
        let IndexerShape { n_heads, head_dim, top_k, q_rank } = self.shape;
        let hidden = builder.outline.hidden;
        let dtype = KvType::F32;
        Ok(Indexer {
            wq_b: builder.projection(&format!("{name}.wq_b"), n_heads * head_dim, q_rank)?,
            wk: builder.projection(&format!("{name}.wk"), head_dim, hidden)?,
            weights_proj: builder.gate(&format!("{name}.weights_proj"), n_heads, hidden)?,
            norm_weight: builder.vector(&format!("{name}.k_norm.weight"), head_dim)?,
            norm_bias: builder.vector(&format!("{name}.k_norm.bias"), head_dim)?,
            rope: self.rope,
            cache: builder.cache(CacheSpec::Pages {
                n_heads: 1,
                k_dim: head_dim,
                v_dim: 0,
                dtype,
                window: None,
            }),
            top_k,
            selection: self.selection,
            scratch: self.scratch,
        })
    }
}

impl Indexer {
    /// Chooses positions for every row, from the attention's input and the
    /// latent of its queries.
    ///
    /// The reference also divides weights by `sqrt(n_heads)`, which changes
    /// no choice.
    pub(crate) fn forward(&self, step: &mut Step<'_>, x: Cols, q_latent: Cols) -> Selection {
        let rows = step.rows();
        let IndexerScratch { q, k, weights } = self.scratch;
        let Step { backend, spans, .. } = step;
        let from_input = [
            Projection { weight: self.wk, out: k },
            Projection { weight: self.weights_proj, out: weights },
        ];
        backend.project(rows, x, &from_input);
        let q_cols = Cols { buf: q.buf, start: q.start, len: q.n_heads * q.head_dim };
        backend.project(rows, q_latent, &[Projection { weight: self.wq_b, out: q_cols }]);
        let key = k.heads(1);
        backend.layer_norm(
            rows,
            LayerNorm {
                out: key,
                x: key,
                weight: self.norm_weight,
                bias: self.norm_bias,
                eps: NORM_EPS,
            },
        );
        backend.rope(q, self.rope, spans);
        backend.rope(key, self.rope, spans);
        let op = SelectPositions {
            out: self.selection,
            q,
            k: Some(k),
            weights: Some(weights),
            cache: self.cache,
            scale: (q.head_dim as f32).powf(-0.5),
            top_k: self.top_k,
            pools: None,
        };
        backend.select_positions(op, spans);
        self.selection
    }
}
