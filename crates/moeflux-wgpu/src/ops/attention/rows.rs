//! Many rows of a sequence that look at the same keys: `attention/rows.wgsl`.

use moeflux_backend::{Attention, Heads};

use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::ops::attention::inputs::{Given, Rows, pages, tile_words};
use crate::ops::attention::shape::Shape;
use crate::state::gpu::Wgpu;
use crate::words::word;

/// Tiles one after the other in one slab.
struct Run {
    slab: usize,
    first: usize,
    /// Keys and values of each.
    words: Vec<u32>,
}

pub(crate) fn attend(b: &mut Wgpu, op: &Attention, gate: Option<Heads>, rows: Rows) {
    b.encoder.begin();
    let n_heads = op.q.n_heads;
    let size = n_heads * (op.out.head_dim + 2);
    let gathered = b.scratch.attention.words(&mut b.encoder, rows.n * size);
    let lists = b.encoder.arena();
    let runs = runs(b, op, rows);
    let pages = pages(b, rows.sequence, op.cache).1;
    let given = Given::of(b, op, gate, pages);
    let n_queries = rows.n * n_heads / pages.n_heads;
    let (variant, per_group) = Shape::of(op, pages, n_queries, 0).of_rows();
    let n_blocks = n_queries.div_ceil(per_group);
    let n_groups = pages.n_heads * n_blocks;
    let slabs: Vec<Mem> = runs.iter().map(|run| pages.mem(run.slab).clone()).collect();
    for (i, (run, keys)) in runs.iter().zip(&slabs).enumerate() {
        let behind = runs.get(i + 1);
        let seen_to = behind.map_or(rows.end(), |behind| behind.first);
        let list = b.encoder.list(&run.words);
        let own = [
            word(n_blocks),
            list,
            word(n_groups),
            word(rows.first),
            word(rows.position),
            word(n_queries),
            word(run.first),
            word(seen_to),
            u32::from(i > 0),
            u32::from(behind.is_some()),
            word(rows.ahead_to),
        ];
        let Given { q, mask, sinks, y, gate, .. } = &given;
        b.encoder.dispatch(
            variant,
            &given.params(&own),
            &[q, keys, mask, sinks, &lists, &gathered, y, gate],
            Grid::Linear(n_groups),
        );
    }
}

fn runs(b: &Wgpu, op: &Attention, rows: Rows) -> Vec<Run> {
    let (kv, pages) = pages(b, rows.sequence, op.cache);
    let mut runs: Vec<Run> = Vec::new();
    for first in rows.tiles(op.window) {
        let page = kv.page(first);
        if runs.last().is_none_or(|run| run.slab != page.slab) {
            runs.push(Run { slab: page.slab, first, words: Vec::new() });
        }
        let words = tile_words(pages, page, first);
        if let Some(run) = runs.last_mut() {
            run.words.extend(words);
        }
    }
    runs
}
