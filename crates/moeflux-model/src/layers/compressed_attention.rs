//! Attention to a window of positions and to entries that stand for pools of them: of all pools before a
//! row, or of those that an indexer chooses. One vector is key and value of all heads. As in transformers'
//! `modeling_deepseek_v4`.

use std::ops::Range;

use moeflux_backend::{
    Attention, Cache, CacheSpec, Cols, Heads, KeysValues, KvType, PoolEntries, Projection, Rope,
    SelectPositions, Selection, Vector, Weight,
};
use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::{MatrixDecl, Role};

use super::attention::columns;
use super::norm::Norm;
use crate::layers::builder::Builder;
use crate::layers::mixer::Mixer;
use crate::load::LoadError;
use crate::step::Step;

/// The largest believable dimension of a head or a latent.
const MAX_DIM: usize = 1 << 14;

/// The most positions of a pool.
pub(crate) const MAX_POOL: usize = 4096;

/// What the attention layers of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompressedShape {
    n_heads: usize,
    /// Columns of a query, and of the vector that is key and value.
    head_dim: usize,
    /// The last columns of a head that are rotated.
    rope_dim: usize,
    /// Columns between the two projections of queries.
    q_rank: usize,
    /// Groups of heads whose outputs are projected apart from each other.
    n_groups: usize,
    /// Columns that a group is projected to.
    group_rank: usize,
    /// Positions that a row sees, its own included.
    window: usize,
    index: IndexShape,
}

/// What indexers have in common.
#[derive(Clone, Copy, Debug)]
struct IndexShape {
    n_heads: usize,
    head_dim: usize,
    /// Entries that a row sees.
    top_k: usize,
}

/// What a layer sees besides its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    /// Nothing.
    None,
    /// Entries of all pools, which have this number of positions.
    All(usize),
    /// Entries of the best of pools, which overlap and have this number of positions.
    Chosen(usize),
}

impl CompressedShape {
    /// The shape of heads whose last `rope_dim` columns are rotated.
    pub(crate) fn read(config: &Config, rope_dim: usize) -> Result<CompressedShape, LoadError> {
        let dim = |key| config.usize_in(key, 1..=MAX_DIM);
        let refuse = |key, rule: &str| Err(config.refuse(key, rule).into());
        let (n_heads, head_dim) = (config.usize("num_attention_heads")?, dim("head_dim")?);
        let n_groups = dim("o_groups")?;
        let index = IndexShape {
            n_heads: config.usize_in("index_n_heads", 1..=4096)?,
            head_dim: dim("index_head_dim")?,
            top_k: config.usize_in("index_topk", 1..=1 << 30)?,
        };
        if !n_heads.is_multiple_of(n_groups) {
            return refuse("o_groups", "divide num_attention_heads");
        }
        if index.head_dim < rope_dim {
            return refuse("index_head_dim", "be at least the rotated columns of a head");
        }
        Ok(CompressedShape {
            n_heads,
            head_dim,
            rope_dim,
            q_rank: dim("q_lora_rank")?,
            n_groups,
            group_rank: dim("o_lora_rank")?,
            window: config.usize_in("sliding_window", 1..=1 << 30)?,
            index,
        })
    }
}

/// A rotation, and the one that undoes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnAndBack {
    pub(crate) turn: Rope,
    pub(crate) back: Rope,
}

/// Loads attention layers that share their activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompressedBlocks {
    shape: CompressedShape,
    /// Rotates in layers without entries.
    plain: TurnAndBack,
    /// Rotates in layers with entries, and these too.
    stretched: TurnAndBack,
    /// Divides heads by their root mean square.
    unweighted: Norm,
    scratch: CompressedScratch,
    index: IndexScratch,
    selection: Selection,
}

/// Activations of attention layers; one set serves all of them.
#[derive(Clone, Copy, Debug)]
struct CompressedScratch {
    q_latent: Cols,
    /// Key and value.
    kv: Cols,
    /// Values, then gates, of which entries are made.
    pooled: Cols,
    q: Heads,
    /// What attention gives, and then, rotated back, what groups of it are projected from.
    mixed: Heads,
    /// Of all groups of heads.
    groups: Heads,
}

/// Activations of indexers; one set serves all of them.
#[derive(Clone, Copy, Debug)]
struct IndexScratch {
    q: Heads,
    /// Values, then gates, of which entries are made.
    pooled: Cols,
    /// One a head.
    weights: Cols,
}

/// One attention layer.
#[derive(Debug)]
pub(crate) struct CompressedLayer {
    shape: CompressedShape,
    q_a: Weight,
    q_norm: Norm,
    q_b: Weight,
    unweighted: Norm,
    kv_proj: Weight,
    kv_norm: Norm,
    /// Of each group of heads.
    o_a: Vec<Weight>,
    o_b: Weight,
    sinks: Vector,
    rope: TurnAndBack,
    cache: Cache,
    entries: Option<Entries>,
    indexer: Option<Indexer>,
    scratch: CompressedScratch,
}

/// What makes entries.
#[derive(Clone, Copy, Debug)]
struct Entries {
    values: Weight,
    gates: Weight,
    op: PoolEntries,
}

/// Chooses among entries.
#[derive(Clone, Copy, Debug)]
struct Indexer {
    q_b: Weight,
    weights_proj: Weight,
    entries: Entries,
    op: SelectPositions,
    scratch: IndexScratch,
}

/// Which entries something makes of pools.
#[derive(Clone, Copy, Debug)]
struct EntryShape {
    pool: usize,
    overlaps: bool,
    dim: usize,
    dtype: KvType,
    rope: Rope,
}

impl CompressedBlocks {
    /// Allocates what the attention layers of a model share.
    pub(crate) fn new(
        shape: CompressedShape,
        [plain, stretched]: [TurnAndBack; 2],
        builder: &mut Builder<'_, '_>,
    ) -> CompressedBlocks {
        let CompressedShape { n_heads, head_dim, q_rank, n_groups, group_rank, index, .. } = shape;
        let unweighted = builder.plain_norm(head_dim);
        let build = &mut *builder.build;
        let scratch = {
            // Overlapping pools have values and gates of two halves.
            let [q_latent, kv, pooled] = build.cols_together([q_rank, head_dim, 4 * head_dim]);
            CompressedScratch {
                q_latent,
                kv,
                pooled,
                q: build.cols(n_heads * head_dim).heads(n_heads),
                mixed: build.cols(n_heads * head_dim).heads(n_heads),
                groups: build.cols(n_groups * group_rank).heads(n_groups),
            }
        };
        let [pooled, weights] = build.cols_together([4 * index.head_dim, index.n_heads]);
        let q = build.cols(index.n_heads * index.head_dim).heads(index.n_heads);
        let index = IndexScratch { q, pooled, weights };
        let selection = build.backend().new_selection();
        CompressedBlocks { shape, plain, stretched, unweighted, scratch, index, selection }
    }

    /// The layer called `name`.
    pub(crate) fn load(
        &self,
        name: &str,
        compression: Compression,
        builder: &mut Builder<'_, '_>,
    ) -> Result<CompressedLayer, LoadError> {
        let CompressedShape { n_heads, head_dim, q_rank, n_groups, group_rank, window, .. } =
            self.shape;
        let hidden = builder.outline.hidden;
        let part = |part: &str| format!("{name}.{part}");
        let dtype = builder.build.variant.kv_type;
        let rope = if compression == Compression::None { self.plain } else { self.stretched };
        let shape =
            |pool, overlaps| EntryShape { pool, overlaps, dim: head_dim, dtype, rope: rope.turn };
        let cache = builder.kv_cache(1, head_dim, 0, Some(window));
        let (pooled, compressor) = (self.scratch.pooled, part("compressor"));
        let (entries, indexer) = match compression {
            Compression::None => (None, None),
            Compression::All(pool) => {
                (Some(Entries::load(&compressor, shape(pool, false), pooled, builder)?), None)
            }
            Compression::Chosen(pool) => {
                let entries = Entries::load(&compressor, shape(pool, true), pooled, builder)?;
                (Some(entries), Some(self.indexer(&part("indexer"), pool, builder)?))
            }
        };
        Ok(CompressedLayer {
            shape: self.shape,
            q_a: builder.projection(&part("wq_a"), q_rank, hidden)?,
            q_norm: builder.norm(&part("q_norm"), q_rank)?,
            q_b: builder.projection(&part("wq_b"), n_heads * head_dim, q_rank)?,
            unweighted: self.unweighted,
            kv_proj: builder.projection(&part("wkv"), head_dim, hidden)?,
            kv_norm: builder.norm(&part("kv_norm"), head_dim)?,
            o_a: self.group_weights(&part("wo_a"), builder)?,
            o_b: builder.projection(&part("wo_b"), hidden, n_groups * group_rank)?,
            sinks: builder.vector(&part("attn_sink"), n_heads)?,
            rope,
            cache,
            entries,
            indexer,
            scratch: self.scratch,
        })
    }

    /// The projection of each group of heads, from the matrix called `name` that has the rows of all.
    fn group_weights(
        &self,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Vec<Weight>, LoadError> {
        let CompressedShape { n_heads, head_dim, n_groups, group_rank, .. } = self.shape;
        let group = |group: usize| group * group_rank..(group + 1) * group_rank;
        let load = |rows: Range<usize>| {
            let whole = MatrixDecl {
                name: name.to_owned(),
                rows: n_groups * group_rank,
                cols: n_heads / n_groups * head_dim,
                role: Role::Projection,
            };
            builder.build.weights.matrix_rows(whole, &[rows])
        };
        (0..n_groups).map(group).map(load).collect()
    }

    /// The indexer called `name`. Its entries are cached as they are: a rounded one could choose others.
    fn indexer(
        &self,
        name: &str,
        pool: usize,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Indexer, LoadError> {
        let IndexShape { n_heads, head_dim, top_k } = self.shape.index;
        let IndexScratch { q, pooled, weights } = self.index;
        let (hidden, rope) = (builder.outline.hidden, self.stretched.turn);
        let shape = EntryShape { pool, overlaps: true, dim: head_dim, dtype: KvType::F32, rope };
        let entries = Entries::load(&format!("{name}.compressor"), shape, pooled, builder)?;
        let q_rank = self.shape.q_rank;
        Ok(Indexer {
            q_b: builder.projection(&format!("{name}.wq_b"), n_heads * head_dim, q_rank)?,
            weights_proj: builder.gate(&format!("{name}.weights_proj"), n_heads, hidden)?,
            entries,
            op: SelectPositions {
                out: self.selection,
                q,
                k: None,
                weights: Some(weights),
                cache: entries.op.entries,
                // The reference also divides weights by `sqrt(n_heads)`, which changes no choice.
                scale: (head_dim as f32).powf(-0.5),
                top_k,
                pools: None,
            },
            scratch: self.index,
        })
    }
}

impl Entries {
    /// What is called `name`, and writes values and gates to the first of `pooled`.
    fn load(
        name: &str,
        shape: EntryShape,
        pooled: Cols,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Entries, LoadError> {
        let EntryShape { pool, overlaps, dim, dtype, rope } = shape;
        let n_halves = if overlaps { 2 } else { 1 };
        let (width, hidden) = (n_halves * dim, builder.outline.hidden);
        let values = builder.projection(&format!("{name}.wkv"), width, hidden)?;
        let gates = builder.gate(&format!("{name}.wgate"), width, hidden)?;
        let norm = builder.norm(&format!("{name}.norm"), dim)?;
        let weights = &mut *builder.build.weights;
        let bias = weights.vector(&format!("{name}.ape"), &[vec![pool, width]])?;
        let bias = weights.backend().load_vector(&bias.values);
        let rows = builder.cache(CacheSpec::Pages {
            n_heads: 1,
            k_dim: 2 * width,
            v_dim: 0,
            dtype: KvType::F32,
            window: Some(n_halves * pool),
        });
        let entries = builder.cache(CacheSpec::Entries { pool, dim, dtype });
        let (weight, eps) = (norm.weight(), builder.outline.eps);
        let x = pooled.slice(0, 2 * width);
        Ok(Entries { values, gates, op: PoolEntries { x, rows, entries, bias, weight, eps, rope } })
    }

    /// What it projects from the input.
    fn projections(&self) -> [Projection; 2] {
        let (x, width) = (self.op.x, self.op.x.len / 2);
        [
            Projection { weight: self.values, out: x.slice(0, width) },
            Projection { weight: self.gates, out: x.slice(width, width) },
        ]
    }
}

impl CompressedLayer {
    /// Projects the input, queries to the end, and normalises what it gives.
    fn project(&self, step: &mut Step<'_>, x: Cols) {
        let rows = step.rows();
        let CompressedScratch { q_latent, kv, q, .. } = self.scratch;
        let mut from_input = vec![
            Projection { weight: self.q_a, out: q_latent },
            Projection { weight: self.kv_proj, out: kv },
        ];
        from_input.extend(self.entries.iter().flat_map(Entries::projections));
        step.backend.project(rows, x, &from_input);
        if let Some(Indexer { weights_proj, entries, scratch, .. }) = &self.indexer {
            let [values, gates] = entries.projections();
            let weights = Projection { weight: *weights_proj, out: scratch.weights };
            step.backend.project(rows, x, &[values, gates, weights]);
        }
        self.q_norm.forward(step, q_latent, q_latent);
        self.kv_norm.forward(step, kv, kv);
        let mut from_latent = vec![Projection { weight: self.q_b, out: columns(q) }];
        from_latent.extend(
            self.indexer
                .as_ref()
                .map(|indexer| Projection { weight: indexer.q_b, out: columns(indexer.scratch.q) }),
        );
        step.backend.project(rows, q_latent, &from_latent);
        step.backend.rms_norm(rows, self.unweighted.op(q, q));
    }

    /// The rotated columns of heads.
    fn rotated(&self, heads: Heads) -> Heads {
        let n = self.shape.rope_dim;
        Heads { start: heads.start + heads.head_dim - n, head_dim: n, ..heads }
    }
}

impl Mixer for CompressedLayer {
    fn forward(&self, step: &mut Step<'_>, out: Cols, x: Cols) {
        let rows = step.rows();
        let CompressedShape { head_dim, group_rank, n_groups, window, .. } = self.shape;
        let CompressedScratch { kv, q, mixed, groups, .. } = self.scratch;
        self.project(step, x);
        let Step { backend, spans, .. } = step;
        for heads in [q, kv.heads(1)] {
            backend.rope(self.rotated(heads), self.rope.turn, spans);
        }
        if let Some(entries) = &self.entries {
            backend.pool_entries(entries.op, spans);
        }
        if let Some(indexer) = &self.indexer {
            backend.rope(self.rotated(indexer.scratch.q), self.rope.turn, spans);
            backend.pool_entries(indexer.entries.op, spans);
            backend.select_positions(indexer.op, spans);
        }
        let op = Attention {
            out: mixed,
            q,
            append: Some(KeysValues { k: kv.heads(1), v: None }),
            cache: self.cache,
            scale: (head_dim as f32).powf(-0.5),
            window: Some(window),
            sinks: Some(self.sinks),
            selection: self.indexer.as_ref().map(|indexer| indexer.op.out),
            looks_ahead: false,
            entries: self.entries.map(|entries| entries.op.entries),
        };
        backend.attention(op, spans);
        // Values were rotated, as they are keys.
        backend.rope(self.rotated(mixed), self.rope.back, spans);
        let (mixed, groups) = (columns(mixed), columns(groups));
        let len = mixed.len / n_groups;
        for (group, weight) in self.o_a.iter().enumerate() {
            let out = groups.slice(group * group_rank, group_rank);
            let x = mixed.slice(group * len, len);
            backend.project(rows, x, &[Projection { weight: *weight, out }]);
        }
        backend.project(rows, groups, &[Projection { weight: self.o_b, out }]);
    }
}
