//! Many rows of a sequence that look at the same keys: `attention/rows.wgsl`.

use moeflux_backend::{Attention, Heads};

use crate::commands::grid::Grid;
use crate::ops::attention::inputs::{Given, Rows, Source, pages, tile_words};
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

/// What of one source a dispatch looks at.
struct Part {
    source: Source,
    run: Run,
    /// What is looked at ends here.
    seen_to: usize,
}

pub(crate) fn attend(b: &mut Wgpu, op: &Attention, gate: Option<Heads>, rows: Rows) {
    b.encoder.begin();
    let n_heads = op.q.n_heads;
    let size = n_heads * (op.out.head_dim + 2);
    let gathered = b.scratch.attention.words(&mut b.encoder, rows.n * size);
    let lists = b.encoder.arena();
    let sources = Source::all(b, op, rows.sequence);
    let parts: Vec<Part> = sources.flat_map(|source| parts(b, source, rows)).collect();
    for (i, Part { source, run, seen_to }) in parts.iter().enumerate() {
        let pages = pages(b, rows.sequence, source.cache).1;
        let given = Given::of(b, op, source, gate, pages);
        let n_queries = rows.n * n_heads / pages.n_heads;
        let (variant, per_group) = Shape::of(op, source, pages, n_queries, 0).of_rows();
        let n_blocks = n_queries.div_ceil(per_group);
        let n_groups = pages.n_heads * n_blocks;
        let keys = pages.mem(run.slab).clone();
        let list = b.encoder.list(&run.words);
        let own = [
            word(n_blocks),
            list,
            word(n_groups),
            word(rows.first),
            word(rows.position),
            word(n_queries),
            word(run.first),
            word(*seen_to),
            u32::from(i > 0),
            u32::from(i + 1 < parts.len()),
            word(rows.ahead_to),
        ];
        let Given { q, mask, sinks, y, gate, .. } = &given;
        b.encoder.dispatch(
            variant,
            &given.params(&own),
            &[q, &keys, mask, sinks, &lists, &gathered, y, gate],
            Grid::Linear(n_groups),
        );
    }
}

fn parts(b: &Wgpu, source: Source, rows: Rows) -> Vec<Part> {
    let (kv, pages) = pages(b, rows.sequence, source.cache);
    let mut parts: Vec<Part> = Vec::new();
    for first in source.tiles(&rows) {
        let page = kv.page(first);
        if parts.last().is_none_or(|part| part.run.slab != page.slab) {
            if let Some(before) = parts.last_mut() {
                before.seen_to = first;
            }
            let run = Run { slab: page.slab, first, words: Vec::new() };
            parts.push(Part { source, run, seen_to: source.end(&rows) });
        }
        let words = tile_words(pages, page, first);
        if let Some(part) = parts.last_mut() {
            part.run.words.extend(words);
        }
    }
    parts
}
