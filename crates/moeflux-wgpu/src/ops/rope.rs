//! Rotary position embedding.

use crate::ops::operand::heads;
use moeflux_backend::{Heads, Rope, RopePairs, Span};

use crate::commands::grid::Grid;
use crate::kernels::basic as kernels;
use crate::state::gpu::Wgpu;
use crate::words::{PER_ELEMENT, n_rows, word};

/// A table of sines and cosines in the arena, valid for the op that has begun.
#[derive(Clone, Copy, Default)]
pub(crate) struct PlacedTable {
    /// Its first word.
    pub(crate) first: u32,
    /// Pairs of a row.
    pub(crate) n_pairs: u32,
    /// The elements of a pair are adjacent.
    pub(crate) is_adjacent: bool,
}

/// Puts the table of some spans into the arena.
pub(crate) fn place(b: &mut Wgpu, rope: Rope, spans: &[Span]) -> PlacedTable {
    let table = &mut b.ropes[rope.0 as usize];
    table.set(spans);
    let generation = b.encoder.generation();
    let place = match table.place {
        Some((since, place)) if since == generation => place,
        _ => b.encoder.list(&table.table),
    };
    table.place = Some((generation, place));
    let is_adjacent = table.spec.pairs == RopePairs::Adjacent;
    PlacedTable { first: place, n_pairs: word(table.n_pairs()), is_adjacent }
}

pub(crate) fn rope(b: &mut Wgpu, x: Heads, rope: Rope, spans: &[Span]) {
    let y = heads(b, x);
    b.written(x.buf);
    let table = &mut b.ropes[rope.0 as usize];
    table.set(spans);
    let n_pairs = table.spec.inv_freq.len();
    let is_adjacent = table.spec.pairs == RopePairs::Adjacent;
    // Long chunks have tables that exceed a list: they are rotated in parts.
    let per_part = (crate::commands::encoder::Encoder::list_limit() / (2 * n_pairs)).max(1);
    let rows = n_rows(spans);
    for first in (0..rows).step_by(per_part) {
        let n_now = per_part.min(rows - first);
        b.encoder.begin();
        let table = &mut b.ropes[rope.0 as usize];
        let place = match table.place {
            Some((generation, place)) if generation == b.encoder.generation() => place,
            _ => b.encoder.list(&table.table[2 * n_pairs * first..2 * n_pairs * (first + n_now)]),
        };
        table.place = (per_part >= rows).then_some((b.encoder.generation(), place));
        let n = n_now * x.n_heads * n_pairs;
        let [start, width, stride, _] = y.view;
        let start = start + word(first) * width;
        let params = [word(n), word(x.n_heads), word(n_pairs), start, width, stride, place];
        let arena = b.encoder.arena();
        b.encoder.dispatch(
            kernels::Rope { is_adjacent },
            &params,
            &[&y.mem, &arena],
            Grid::Linear(n.div_ceil(PER_ELEMENT)),
        );
    }
}
