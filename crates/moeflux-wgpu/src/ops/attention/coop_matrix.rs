//! Many rows of a sequence that look at the same keys, on cooperative matrices of f16:
//! `attention/split_f16_qkv.wgsl` and `attention/coop_matrix.wgsl`.

use crate::ops::attention::shape::CoopAttention;
use moeflux_backend::{Attention, Heads};

use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::attention::SplitF16Qkv;
use crate::layouts::product::Tiles;
use crate::ops::attention::inputs::{Given, Rows, Source, TILE, pages, tile_words, values};
use crate::ops::attention::shape::Shape;
use crate::state::gpu::Wgpu;
use crate::words::word;

/// Words of keys and values as halves at a time; few in tests, so that rows look at more.
const F16_WORDS: usize = if cfg!(test) { 40 << 10 } else { 16 << 20 };

/// Tiles one after the other in one slab.
struct Run {
    slab: Mem,
    /// Of its segment's tiles.
    first: usize,
    /// Where keys and values of each begin.
    words: Vec<u32>,
}

/// Tiles that are looked at together.
struct Segment {
    /// The position of the first.
    from: usize,
    n_tiles: usize,
    runs: Vec<Run>,
}

/// Vectors as halves: queries, keys with values, and factors.
struct F16Vectors {
    layout: F16Layout,
    mems: [Mem; 3],
}

/// How vectors are stored as halves, those of a key head one after the other.
struct F16Layout {
    n_kv_heads: usize,
    /// Of a key head.
    n_queries: usize,
    /// Columns of keys and of values in their caches.
    dims: [usize; 2],
    /// And here, with zeros behind these.
    k_dim: usize,
    v_dim: usize,
    /// Halves that an element of queries, and of keys and values, is the sum of.
    q_parts: usize,
    parts: usize,
    /// Tiles of keys there is room for.
    n_tiles: usize,
}

impl F16Layout {
    fn query_places(&self) -> usize {
        self.n_queries.next_multiple_of(TILE)
    }

    fn places(&self) -> usize {
        self.n_tiles * TILE
    }

    fn key_words(&self) -> usize {
        self.n_kv_heads * self.places() * self.k_dim * self.parts / 2
    }

    /// Where factors of keys and of values begin, and how many there are of all.
    fn factors(&self) -> [usize; 3] {
        let of_keys = self.n_kv_heads * self.query_places() / TILE;
        [0, 1, 2].map(|i| of_keys + i * self.n_kv_heads * self.n_tiles)
    }

    /// Words of queries, of keys and values, and of factors.
    fn words(&self) -> [usize; 3] {
        let queries = self.n_kv_heads * self.query_places() * self.k_dim * self.q_parts / 2;
        let values = self.n_kv_heads * self.places() * self.v_dim * self.parts / 2;
        [queries, self.key_words() + values, self.factors()[2]]
    }
}

/// Attends for these rows; false where vectors do not suit units, or there are none.
pub(crate) fn attend(b: &mut Wgpu, op: &Attention, gate: Option<Heads>, rows: Rows) -> bool {
    if b.tiles == Tiles::F32 || op.entries.is_some() {
        return false;
    }
    let source = Source::positions(op);
    let cached = pages(b, rows.sequence, op.cache).1;
    let n_kv_heads = cached.n_heads;
    let n_queries = rows.n * op.q.n_heads / n_kv_heads;
    let dims = [cached.k.dim, op.out.head_dim];
    let shape = Shape::of(op, &source, cached, n_queries, 0);
    let units = shape.of_coop_matrix(b.tiles == Tiles::Emulated, b.attention_inputs);
    let Some(units) = units else { return false };
    let CoopAttention { kernel, queries: per_group, k_dim, v_dim, v_parts, q_parts, parts } = units;
    b.encoder.begin();
    let tile_words = n_kv_heads * (k_dim + v_dim) * TILE * parts / 2;
    let segments = segments(b, op, rows, (F16_WORDS / tile_words).max(1));
    let n_tiles = segments.iter().map(|segment| segment.n_tiles).max().unwrap_or(0);
    let layout = F16Layout { n_kv_heads, n_queries, dims, k_dim, v_dim, q_parts, parts, n_tiles };
    let words = layout.words();
    let mems = [0, 1, 2].map(|i| b.scratch.f16[i].words(&mut b.encoder, words[i]));
    let f16 = F16Vectors { layout, mems };
    // Between segments, maximum, total and sums of each row, head and part of values.
    let state = rows.n * op.q.n_heads * (v_dim + 2 * v_parts);
    let state = if segments.len() > 1 { state } else { 1 };
    let gathered = b.scratch.attention.words(&mut b.encoder, state);
    let given = Given::of(b, op, &source, gate, pages(b, rows.sequence, op.cache).1);
    split_queries(b, op, &given, rows.first, &f16);
    let n_blocks = n_queries.div_ceil(per_group);
    let n_groups = n_kv_heads * n_blocks * v_parts;
    let F16Vectors { layout, mems } = &f16;
    let [key_factors, value_factors, _] = layout.factors();
    for (i, segment) in segments.iter().enumerate() {
        let behind = segments.get(i + 1);
        let seen_to = behind.map_or(rows.end(), |behind| behind.from);
        split_cached(b, op, rows, segment, seen_to, &f16);
        let own = [
            word(rows.first),
            word(rows.position),
            word(n_queries),
            word(segment.from),
            word(seen_to),
            u32::from(i > 0),
            u32::from(behind.is_some()),
            word(rows.ahead_to),
            word(n_blocks),
            word(layout.query_places()),
            word(layout.places()),
            // In eights.
            word(layout.key_words() / 4),
            word(key_factors),
            word(value_factors),
            word(n_groups),
        ];
        let params: Vec<u32> =
            std::iter::once(word(n_kv_heads)).chain(given.of_rows()).chain(own).collect();
        let Given { mask, sinks, y, gate, .. } = &given;
        b.encoder.dispatch(
            kernel,
            &params,
            &[&mems[0], &mems[1], &mems[2], mask, sinks, &gathered, y, gate],
            Grid::Linear(n_groups),
        );
    }
    true
}

fn split_queries(
    b: &mut Wgpu,
    op: &Attention,
    given: &Given,
    first_row: usize,
    F16Vectors { layout, mems }: &F16Vectors,
) {
    let F16Layout { n_kv_heads, n_queries, .. } = *layout;
    let n_tiles = n_queries.div_ceil(TILE);
    let group = op.q.n_heads / n_kv_heads;
    let width = b.buf(op.q.buf).width;
    let params = [
        [n_tiles, n_kv_heads, n_queries, layout.query_places(), 0, 0, 0],
        [first_row, group, op.q.start, width, op.q.stride, 0, 0],
    ];
    let lists = b.encoder.arena();
    b.encoder.dispatch(
        SplitF16Qkv {
            kv: 0,
            is_cached: false,
            dim: word(layout.dims[0]),
            places: word(layout.k_dim),
            parts: word(layout.q_parts),
        },
        &params.concat().into_iter().map(word).collect::<Vec<u32>>(),
        &[&given.q, &lists, &mems[0], &mems[2]],
        Grid::Linear(n_tiles * n_kv_heads),
    );
}

/// Halves keys and values of a segment up to a position.
fn split_cached(
    b: &mut Wgpu,
    op: &Attention,
    rows: Rows,
    segment: &Segment,
    seen_to: usize,
    F16Vectors { layout, mems }: &F16Vectors,
) {
    let cached = pages(b, rows.sequence, op.cache).1;
    let (kind, of_values) = (cached.kind(), values(cached));
    let row_words = [cached.k.row_words, of_values.row_words];
    let F16Layout { n_kv_heads, parts, .. } = *layout;
    let [key_factors, value_factors, _] = layout.factors();
    // Where they go: in fours.
    let planes =
        [(layout.k_dim, key_factors, 0), (layout.v_dim, value_factors, layout.key_words() / 2)];
    let lists = b.encoder.arena();
    for run in &segment.runs {
        let list = b.encoder.list(&run.words);
        let first = run.first * TILE;
        let n_tiles = run.words.len() / 2;
        let n = (n_tiles * TILE).min(seen_to - segment.from - first);
        for (nth, (places, factors, to)) in planes.into_iter().enumerate() {
            let mut params =
                [n_tiles, n_kv_heads, n, layout.places(), first, factors, to].map(word).to_vec();
            params.extend([0, 0, 0, 0, 0, list + word(nth), word(row_words[nth])]);
            b.encoder.dispatch(
                SplitF16Qkv {
                    kv: kind,
                    is_cached: true,
                    dim: word(layout.dims[nth]),
                    places: word(places),
                    parts: word(parts),
                },
                &params,
                &[&run.slab, &lists, &mems[1], &mems[2]],
                Grid::Linear(n_tiles * n_kv_heads),
            );
        }
    }
}

/// What rows look at, at most this many tiles at a time.
fn segments(b: &Wgpu, op: &Attention, rows: Rows, most: usize) -> Vec<Segment> {
    let (kv, pages) = pages(b, rows.sequence, op.cache);
    let tiles: Vec<usize> = Source::positions(op).tiles(&rows).collect();
    let segment = |firsts: &[usize]| {
        let of_slab = |a: &usize, b: &usize| kv.page(*a).slab == kv.page(*b).slab;
        let mut n_tiles = 0;
        let mut run = |firsts: &[usize]| {
            let page = kv.page(firsts[0]);
            let words = firsts.iter().flat_map(|first| tile_words(pages, kv.page(*first), *first));
            let slab = pages.mem(page.slab).clone();
            let run = Run { slab, first: n_tiles, words: words.collect() };
            n_tiles += firsts.len();
            run
        };
        let runs = firsts.chunk_by(of_slab).map(&mut run).collect();
        Segment { from: firsts[0], n_tiles, runs }
    };
    tiles.chunks(most).map(segment).collect()
}
