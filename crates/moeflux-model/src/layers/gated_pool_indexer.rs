//! An indexer of latent attention that chooses pools of positions by learned means of their keys, as in
//! transformers' `modeling_glm5_next`.

use moeflux_backend::{
    Cache, CacheSpec, Cols, Heads, KvType, LayerNorm, PoolFunction, PoolKeys, Projection,
    SelectPositions, Selection, Vector, Weight,
};
use moeflux_core::checkpoint::Config;

use crate::layers::builder::Builder;
use crate::load::LoadError;
use crate::step::Step;

/// The reference's norm of index keys does not follow the config.
const NORM_EPS: f32 = 1e-6;

/// What the indexers of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedPoolShape {
    pub(crate) n_heads: usize,
    pub(crate) head_dim: usize,
    /// Pools that a token sees.
    pub(crate) top_k: usize,
    /// Positions of a pool.
    pub(crate) pool: usize,
    /// Columns of the queries' latent.
    pub(crate) q_rank: usize,
}

impl GatedPoolShape {
    /// Of a model whose queries have a latent of `q_rank` columns.
    pub(crate) fn read(config: &Config, q_rank: usize) -> Result<GatedPoolShape, LoadError> {
        let pool = config.usize_in("index_kpool", 1..=4096)?;
        let positions = config.usize_in("index_topk", 1..=1 << 30)?;
        if !positions.is_multiple_of(pool) {
            return Err(config.refuse("index_topk", "be divisible by index_kpool").into());
        }
        Ok(GatedPoolShape {
            n_heads: config.usize_in("index_n_heads", 1..=4096)?,
            head_dim: config.usize_in("index_head_dim", 1..=1 << 14)?,
            top_k: positions / pool,
            pool,
            q_rank,
        })
    }
}

/// Loads indexers that share their activations, and their choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedPoolBlocks {
    shape: GatedPoolShape,
    scratch: GatedPoolScratch,
    /// What the last indexer chose.
    pub(crate) selection: Selection,
}

/// Activations of indexers; one set serves all of them.
#[derive(Clone, Copy, Debug)]
struct GatedPoolScratch {
    q: Heads,
    /// A key, then a gate for each of its columns.
    key_gates: Cols,
    /// One a head.
    weights: Cols,
}

/// One indexer.
#[derive(Debug)]
pub(crate) struct GatedPoolIndexer {
    wq_b: Weight,
    wk: Weight,
    gates: Weight,
    weights_proj: Weight,
    norm_weight: Vector,
    norm_bias: Vector,
    pools: PoolKeys,
    cache: Cache,
    top_k: usize,
    selection: Selection,
    scratch: GatedPoolScratch,
}

impl GatedPoolBlocks {
    /// Allocates what the indexers of a model share.
    pub(crate) fn new(shape: GatedPoolShape, builder: &mut Builder<'_, '_>) -> GatedPoolBlocks {
        let GatedPoolShape { n_heads, head_dim, .. } = shape;
        let build = &mut *builder.build;
        let [key_gates, weights] = build.cols_together([2 * head_dim, n_heads]);
        let q = build.cols(n_heads * head_dim).heads(n_heads);
        let scratch = GatedPoolScratch { q, key_gates, weights };
        GatedPoolBlocks { shape, scratch, selection: build.backend().new_selection() }
    }

    /// The indexer called `name`. Its keys are cached as they are: a rounded one could choose
    /// other pools.
    pub(crate) fn load(
        &self,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<GatedPoolIndexer, LoadError> {
        let GatedPoolShape { n_heads, head_dim, top_k, pool, q_rank } = self.shape;
        let hidden = builder.outline.hidden;
        let part = |part: &str| format!("{name}.{part}");
        let weights = &mut *builder.build.weights;
        let bias = weights.vector(&part("index_kpool_compress_ape"), &[vec![pool, head_dim]])?;
        let bias = weights.backend().load_vector(&bias.values);
        Ok(GatedPoolIndexer {
            wq_b: builder.projection(&part("wq_b"), n_heads * head_dim, q_rank)?,
            wk: builder.projection(&part("wk"), head_dim, hidden)?,
            gates: builder.gate(&part("index_kpool_compress_gate"), head_dim, hidden)?,
            weights_proj: builder.gate(&part("weights_proj"), n_heads, hidden)?,
            norm_weight: builder.vector(&part("k_norm.weight"), head_dim)?,
            norm_bias: builder.vector(&part("k_norm.bias"), head_dim)?,
            pools: PoolKeys { size: pool, function: PoolFunction::Gated { bias } },
            cache: builder.cache(CacheSpec::Pages {
                n_heads: 1,
                k_dim: self.scratch.key_gates.len,
                v_dim: 0,
                dtype: KvType::F32,
                window: None,
            }),
            top_k,
            selection: self.selection,
            scratch: self.scratch,
        })
    }
}

impl GatedPoolIndexer {
    /// Chooses positions for every row, from the attention's input and the latent of its queries.
    ///
    /// The reference also divides weights by `sqrt(n_heads)`, which changes no choice.
    pub(crate) fn forward(&self, step: &mut Step<'_>, x: Cols, q_latent: Cols) -> Selection {
        let rows = step.rows();
        let GatedPoolScratch { q, key_gates, weights } = self.scratch;
        let Step { backend, spans, .. } = step;
        let (k, gates) = (key_gates.slice(0, q.head_dim), key_gates.slice(q.head_dim, q.head_dim));
        let from_input = [
            Projection { weight: self.wk, out: k },
            Projection { weight: self.gates, out: gates },
            Projection { weight: self.weights_proj, out: weights },
        ];
        backend.project(rows, x, &from_input);
        let q_cols = Cols { buf: q.buf, start: q.start, len: q.n_heads * q.head_dim };
        backend.project(rows, q_latent, &[Projection { weight: self.wq_b, out: q_cols }]);
        let key = k.heads(1);
        let norm = LayerNorm {
            out: key,
            x: key,
            weight: self.norm_weight,
            bias: self.norm_bias,
            eps: NORM_EPS,
        };
        backend.layer_norm(rows, norm);
        let op = SelectPositions {
            out: self.selection,
            q,
            k: Some(key_gates),
            weights: Some(weights),
            cache: self.cache,
            scale: (q.head_dim as f32).powf(-0.5),
            top_k: self.top_k,
            pools: Some(self.pools),
        };
        backend.select_positions(op, spans);
        self.selection
    }
}
