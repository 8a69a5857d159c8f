//! The choice of the positions that rows attend to.

use std::ops::Range;

use moeflux_backend::{SelectPositions, Span};

use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::attention as kernels;
use crate::kernels::kernel::Variant;
use crate::memory::caches::pages::PAGE;
use crate::ops::attention::inputs::{PART_WORDS, grow, pages};
use crate::ops::attention::pools;
use crate::ops::attention::store::{Vectors, store};
use crate::state::gpu::Wgpu;
use crate::words::{n_rows, word};

/// Pools of a workgroup of `attention/score_index.wgsl`, which has one row.
const POOLS: usize = 16;

/// Pools and rows of a workgroup of `attention/score_index_tiles.wgsl`.
const TILE: usize = 64;

/// Rows from which on tiles are worth it, though the last ones are in part empty.
const TILED_ROWS: usize = 16;

pub(crate) fn select_positions(b: &mut Wgpu, op: SelectPositions, spans: &[Span]) {
    op.assert_fits();
    let most = spans.iter().map(|span| {
        let size = pages(b, span.sequence, op.cache).0.size;
        (span.position + span.rows.len()) / size
    });
    let words = most.max().unwrap_or(0).div_ceil(32);
    let mut mask = std::mem::take(&mut b.selections[op.out.0 as usize]);
    let mem = mask.memory.words(&mut b.encoder, (n_rows(spans) * words).max(1));
    (mask.mem, mask.words) = (Some(mem.clone()), words);
    b.selections[op.out.0 as usize] = mask;
    let mask = PositionMask { mem, row_words: words };
    b.encoder.begin();
    if !grow(b, op.cache, spans) {
        return;
    }
    let key_len = op.k.map_or(op.q.head_dim, |k| k.len);
    for span in spans {
        let pages = pages(b, span.sequence, op.cache).1;
        assert!(
            pages.n_heads == 1 && pages.v.dim == 0 && key_len == pages.k.dim,
            "a cache of index keys has one head and no values"
        );
    }
    if let Some(k) = op.k {
        store(b, op.cache, Vectors { k: k.heads(1), v: None, prepared: None }, spans);
    }
    for span in spans {
        if let Some(pools) = &op.pools {
            pools::complete(b, &op, pools, span);
        }
        let per_part = (PART_WORDS / (span.position + span.rows.len()).max(1)).max(1);
        for first in (0..span.rows.len()).step_by(per_part) {
            let n = per_part.min(span.rows.len() - first);
            choose(b, &op, span, first..first + n, &mask);
        }
    }
}

/// A bit for each row and position.
struct PositionMask {
    mem: Mem,
    row_words: usize,
}

/// Scores the positions of some rows of a span, and writes their bits.
fn choose(
    b: &mut Wgpu,
    op: &SelectPositions,
    span: &Span,
    rows: Range<usize>,
    mask: &PositionMask,
) {
    b.encoder.begin();
    let (first, n) = (rows.start, rows.len());
    let position = span.position + first;
    let end = position + n;
    let row = span.rows.start + first;
    let size = op.pools.map_or(1, |pools| pools.size);
    // Of an entry, which has a place of its own; else of a position.
    let per_vector = pages(b, span.sequence, op.cache).0.size;
    let end = end / per_vector;
    let n_pools = end / size;
    let scores = b.scratch.index_scores.words(&mut b.encoder, (n * n_pools).max(1));
    let q = b.buf(op.q.buf).clone();
    let weights = op.weights.map(|weights| (weights.start, b.buf(weights.buf).clone()));
    let (weights_start, weights_width) =
        weights.as_ref().map_or((0, 0), |(start, buf)| (*start, buf.width));
    let weights = weights.map_or_else(|| q.mem.clone(), |(_, buf)| buf.mem);
    let lists = b.encoder.arena();
    let kind = pages(b, span.sequence, op.cache).1.kind();
    for Run { slab, first, words } in runs(b, op, span, end) {
        let (mem, k_words) = {
            let pages = pages(b, span.sequence, op.cache).1;
            (pages.mem(slab).clone(), pages.k.row_words)
        };
        let positions = first..end.min(first + words.len() * PAGE);
        let first_pool = (first + size) / size - 1;
        let len = (positions.end / size).saturating_sub(first_pool);
        if len == 0 {
            continue;
        }
        let params = [
            word(op.q.n_heads),
            word(op.q.head_dim),
            word(op.q.start),
            word(q.width),
            word(op.q.stride),
            word(weights_start),
            word(weights_width),
            op.scale.to_bits(),
            word(row),
            word(n),
            word(first),
            word(first_pool),
            word(len),
            word(k_words),
            word(n_pools),
            b.encoder.list(&words),
            word(PAGE),
            word(size),
        ];
        let (kernel, grid) = scoring(kind, op.weights.is_some(), n, len);
        b.encoder.dispatch(kernel, &params, &[&q.mem, &mem, &weights, &lists, &scores], grid);
    }
    let params = [op.top_k, row, position, n_pools, mask.row_words, size, per_vector, n].map(word);
    b.encoder.dispatch(kernels::ChooseIndex {}, &params, &[&scores, &mask.mem], Grid::Linear(n));
}

/// The kernel that scores `n_pools` for `n_rows`, and its workgroups.
fn scoring(kv: u32, is_weighted: bool, n_rows: usize, n_pools: usize) -> (Variant, Grid) {
    if n_rows < TILED_ROWS {
        let grid = Grid::Plane(n_rows, n_pools.div_ceil(POOLS));
        return (kernels::ScoreIndex { kv, is_weighted }.into(), grid);
    }
    let grid = Grid::Plane(n_rows.div_ceil(TILE), n_pools.div_ceil(TILE));
    (kernels::ScoreIndexTiles { kv, is_weighted }.into(), grid)
}

/// Pages one after the other in one slab.
struct Run {
    slab: usize,
    /// Its first position.
    first: usize,
    /// Where the keys of each begin.
    words: Vec<u32>,
}

/// The pages of the positions before `end`.
fn runs(b: &Wgpu, op: &SelectPositions, span: &Span, end: usize) -> Vec<Run> {
    let (kv, pages) = pages(b, span.sequence, op.cache);
    let mut runs: Vec<Run> = Vec::new();
    for first in (0..end).step_by(PAGE) {
        let page = kv.page(first);
        if runs.last().is_none_or(|run| run.slab != page.slab) {
            runs.push(Run { slab: page.slab, first, words: Vec::new() });
        }
        if let Some(run) = runs.last_mut() {
            run.words.push(word(pages.word(page, pages.k, first)));
        }
    }
    runs
}
