//! An indexer that chooses pools of positions by the means of their keys, as in transformers'
//! `modeling_qwen4_exp`.

use moeflux_backend::{
    Cache, CacheSpec, Cols, KvType, PoolFunction, PoolKeys, Projection, Rope, SelectPositions,
    Selection, Weight,
};
use moeflux_core::checkpoint::Config;

use super::norm::Norm;
use crate::layers::builder::Builder;
use crate::load::LoadError;
use crate::step::Step;

/// What the indexers of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolIndexerShape {
    pub(crate) n_heads: usize,
    pub(crate) head_dim: usize,
    /// Pools that a token sees.
    pub(crate) top_k: usize,
    /// Positions of a pool.
    pub(crate) pool: usize,
}

impl PoolIndexerShape {
    /// Of heads whose first `rope_dim` columns are rotated.
    pub(crate) fn read(config: &Config, rope_dim: usize) -> Result<PoolIndexerShape, LoadError> {
        let head_dim = config.usize_in("indexer_head_dim", 1..=1 << 14)?;
        if head_dim < rope_dim {
            let rule = format!("be at least the {rope_dim} rotated columns of attention heads");
            return Err(config.refuse("indexer_head_dim", &rule).into());
        }
        config.usize_in("indexer_kv_heads", 1..=1)?;
        let pool = config.usize_in("indexer_compress_ratio", 1..=4096)?;
        let budget = config.usize_in("indexer_budget", 1..=1 << 30)?;
        if !budget.is_multiple_of(pool) {
            let rule = "be divisible by indexer_compress_ratio";
            return Err(config.refuse("indexer_budget", rule).into());
        }
        let n_heads = config.usize_in("indexer_n_heads", 1..=4096)?;
        Ok(PoolIndexerShape { n_heads, head_dim, top_k: budget / pool, pool })
    }
}

/// Loads indexers that share their activations, and their choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolIndexerBlocks {
    shape: PoolIndexerShape,
    rope: Rope,
    /// Queries, then the key.
    qk: Cols,
    selection: Selection,
}

/// One indexer.
#[derive(Debug)]
pub(crate) struct PoolIndexer {
    shape: PoolIndexerShape,
    qk_proj: QkProjections,
    q_norm: Norm,
    pools: PoolKeys,
    rope: Rope,
    cache: Cache,
    qk: Cols,
    selection: Selection,
}

/// What makes queries and the key.
#[derive(Clone, Copy, Debug)]
enum QkProjections {
    /// The rows of queries, then those of the key.
    Joined(Weight),
    /// GGUF files have them apart.
    Apart { q: Weight, k: Weight },
}

impl QkProjections {
    fn load(
        name: &str,
        shape: PoolIndexerShape,
        builder: &mut Builder<'_, '_>,
    ) -> Result<QkProjections, LoadError> {
        let PoolIndexerShape { n_heads, head_dim, .. } = shape;
        let hidden = builder.outline.hidden;
        let [q, k] = ["q_proj", "k_proj"].map(|part| format!("{name}.{part}"));
        if builder.build.weights.holds(&format!("{q}.weight")) {
            let q = builder.projection(&q, n_heads * head_dim, hidden)?;
            return Ok(QkProjections::Apart { q, k: builder.projection(&k, head_dim, hidden)? });
        }
        let rows = (n_heads + 1) * head_dim;
        let joined = builder.projection(&format!("{name}.index_qk_proj"), rows, hidden)?;
        Ok(QkProjections::Joined(joined))
    }
}

impl PoolIndexerBlocks {
    /// Allocates what the indexers of a model share.
    pub(crate) fn new(
        shape: PoolIndexerShape,
        rope: Rope,
        builder: &mut Builder<'_, '_>,
    ) -> PoolIndexerBlocks {
        let qk = builder.build.cols((shape.n_heads + 1) * shape.head_dim);
        let selection = builder.build.backend().new_selection();
        // A pool's key is rotated as its first row is, which may be in an earlier step.
        builder.positions.n_before = builder.positions.n_before.max(shape.pool - 1);
        PoolIndexerBlocks { shape, rope, qk, selection }
    }

    /// The indexer called `name`. Its keys are cached as they are: a rounded one could choose
    /// other pools.
    pub(crate) fn load(
        &self,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<PoolIndexer, LoadError> {
        let PoolIndexerShape { head_dim, pool, .. } = self.shape;
        let qk_proj = QkProjections::load(name, self.shape, builder)?;
        let q_norm = builder.norm(&format!("{name}.q_layernorm"), head_dim)?;
        let k_norm = builder.norm(&format!("{name}.k_layernorm"), head_dim)?;
        let (weight, eps) = (k_norm.weight(), builder.outline.eps);
        Ok(PoolIndexer {
            shape: self.shape,
            qk_proj,
            q_norm,
            pools: PoolKeys {
                size: pool,
                function: PoolFunction::Mean { weight, eps, rope: self.rope },
            },
            rope: self.rope,
            cache: builder.cache(CacheSpec::Pages {
                n_heads: 1,
                k_dim: head_dim,
                v_dim: 0,
                dtype: KvType::F32,
                window: None,
            }),
            qk: self.qk,
            selection: self.selection,
        })
    }
}

impl PoolIndexer {
    /// Chooses positions for every row, from the attention's input.
    pub(crate) fn forward(&self, step: &mut Step<'_>, x: Cols) -> Selection {
        let rows = step.rows();
        let PoolIndexerShape { n_heads, head_dim, top_k, .. } = self.shape;
        let Step { backend, spans, .. } = step;
        let q_cols = self.qk.slice(0, n_heads * head_dim);
        let k = self.qk.slice(n_heads * head_dim, head_dim);
        match self.qk_proj {
            QkProjections::Joined(weight) => {
                backend.project(rows, x, &[Projection { weight, out: self.qk }]);
            }
            QkProjections::Apart { q, k: key } => {
                let q = Projection { weight: q, out: q_cols };
                backend.project(rows, x, &[q, Projection { weight: key, out: k }]);
            }
        }
        let q = q_cols.heads(n_heads);
        backend.rms_norm(rows, self.q_norm.op(q, q));
        backend.rope(q, self.rope, spans);
        let op = SelectPositions {
            out: self.selection,
            q,
            k: Some(k),
            weights: None,
            cache: self.cache,
            scale: (head_dim as f32).powf(-0.5),
            top_k,
            pools: Some(self.pools),
        };
        backend.select_positions(op, spans);
        self.selection
    }
}
