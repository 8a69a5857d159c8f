//! Few rows of several sequences, tile by tile: `attention/tiles.wgsl` and what puts tiles
//! together.

use std::collections::BTreeMap;

use moeflux_backend::Attention;

use crate::commands::encoder::Encoder;
use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::attention::MergeAttention;
use crate::ops::attention::inputs::{Given, Last, Rows, Source, TILE, pages, tile_words};
use crate::ops::attention::shape::Shape;
use crate::ops::matmul::quantize::FusedQuant;
use crate::state::gpu::Wgpu;
use crate::words::word;

/// Words of a tile in `attention/tiles.wgsl`, and of a row in `attention/merge.wgsl`.
const TILE_WORDS: usize = 8;
const ROW_WORDS: usize = 3;

/// Tiles of a dispatch.
pub(crate) fn most() -> usize {
    Encoder::list_limit() / TILE_WORDS
}

/// What is to be done, of each source by slabs, and rows that consist of several tiles.
struct Work {
    tiles: [BTreeMap<usize, Vec<u32>>; 2],
    n_tiles: usize,
    rows: Vec<u32>,
    /// Vectors that tiles gather.
    n_parts: usize,
}

pub(crate) fn attend(b: &mut Wgpu, op: &Attention, last: Last<'_>, all: &[Rows]) {
    let Some(one) = all.first() else { return };
    b.encoder.begin();
    let size = op.out.head_dim + 2;
    let work = work(b, op, all);
    let gathered = b.scratch.attention.words(&mut b.encoder, work.n_parts * size);
    let lists = b.encoder.arena();
    let most_rows = all.iter().map(|rows| rows.n).max().unwrap_or(0);
    let sources: Vec<Source> = Source::all(b, op, one.sequence).collect();
    for (source, tiles) in sources.iter().zip(work.tiles) {
        let pages = pages(b, one.sequence, source.cache).1;
        let given = Given::of(b, op, source, last.gate, pages);
        let n_heads = pages.n_heads;
        let n_queries = most_rows * op.q.n_heads / n_heads;
        let shape = Shape::of(op, source, pages, n_queries, n_heads * work.n_tiles);
        let (variant, per_group) = shape.of_tiles();
        let n_blocks = n_queries.div_ceil(per_group);
        let slabs: Vec<(Mem, Vec<u32>)> =
            tiles.into_iter().map(|(slab, list)| (pages.mem(slab).clone(), list)).collect();
        for (keys, list) in slabs {
            let n_groups = n_heads * n_blocks * (list.len() / TILE_WORDS);
            let own = [word(n_blocks), b.encoder.list(&list), word(n_groups)];
            let Given { q, mask, sinks, y, gate, .. } = &given;
            b.encoder.dispatch(
                variant,
                &given.params(&own),
                &[q, &keys, mask, sinks, &lists, &gathered, y, gate],
                Grid::Linear(n_groups),
            );
        }
    }
    if !work.rows.is_empty() {
        let positions = pages(b, one.sequence, op.cache).1;
        let given = Given::of(b, op, &sources[0], last.gate, positions);
        merge(b, op, last, &given, &gathered, &work.rows);
    }
}

fn work(b: &Wgpu, op: &Attention, all: &[Rows]) -> Work {
    let n_heads = op.q.n_heads;
    let mut work = Work { tiles: Default::default(), n_tiles: 0, rows: Vec::new(), n_parts: 0 };
    for rows in all {
        let (n_tiles, mut nth) = (rows.n_tiles(b, op), 0);
        for (source, of_slabs) in Source::all(b, op, rows.sequence).zip(&mut work.tiles) {
            let (kv, pages) = pages(b, rows.sequence, source.cache);
            let n_queries = rows.n * n_heads / pages.n_heads;
            for first in source.tiles(rows) {
                let page = kv.page(first);
                let [keys, values] = tile_words(pages, page, first);
                of_slabs.entry(page.slab).or_default().extend([
                    word(first),
                    keys,
                    values,
                    word(rows.first),
                    word(rows.position),
                    word(n_queries),
                    word(work.n_parts + nth),
                    word(n_tiles),
                ]);
                nth += 1;
            }
        }
        work.n_tiles += n_tiles;
        if n_tiles > 1 {
            let row = |i| [rows.first + i, work.n_parts + i * n_heads * n_tiles, n_tiles].map(word);
            work.rows.extend((0..rows.n).flat_map(row));
        }
        work.n_parts += rows.n * n_heads * n_tiles;
    }
    work
}

/// Puts the tiles of rows together.
fn merge(
    b: &mut Wgpu,
    op: &Attention,
    Last { gate, fused_quant }: Last<'_>,
    given: &Given,
    gathered: &Mem,
    rows: &[u32],
) {
    let Attention { out, q, sinks, .. } = *op;
    let n_groups = rows.len() / ROW_WORDS * q.n_heads * out.head_dim.div_ceil(TILE);
    let (lists, list) = (b.encoder.arena(), b.encoder.list(rows));
    let gate_view =
        gate.map_or([0; 3], |gate| [gate.start, b.buf(gate.buf).width, gate.stride].map(word));
    let mut params = vec![
        word(q.n_heads),
        word(out.head_dim),
        word(out.start),
        word(b.buf(out.buf).width),
        word(out.stride),
    ];
    params.extend(gate_view);
    params.extend([list, word(n_groups)]);
    let (quant, quantized, sums) = FusedQuant::or_unused(fused_quant, b);
    let kernel = MergeAttention { quant, has_sinks: sinks.is_some(), is_gated: gate.is_some() };
    let Given { sinks, y, gate, .. } = given;
    b.encoder.dispatch(
        kernel,
        &params,
        &[gathered, sinks, y, gate, &lists, &quantized, &sums],
        Grid::Linear(n_groups),
    );
}
