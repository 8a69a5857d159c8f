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
    let tables = &mut b.ropes[rope.0 as usize];
    let (n_pairs, is_adjacent) = (tables.n_pairs(), tables.spec.pairs == RopePairs::Adjacent);
    let first = tables.of(spans).place(&mut b.encoder);
    PlacedTable { first, n_pairs: word(n_pairs), is_adjacent }
}

pub(crate) fn rope(b: &mut Wgpu, x: Heads, rope: Rope, spans: &[Span]) {
    let y = heads(b, x);
    b.written(x.buf);
    let tables = &mut b.ropes[rope.0 as usize];
    let (n_pairs, is_adjacent) = (tables.n_pairs(), tables.spec.pairs == RopePairs::Adjacent);
    let n = n_rows(spans) * x.n_heads * n_pairs;
    if n == 0 {
        return;
    }
    let table = tables.of(spans);
    let buffer = table.buffer(&mut b.encoder);
    b.encoder.begin();
    let (angles, place) = match buffer {
        Some(buffer) => (buffer, 0),
        None => (b.encoder.arena(), table.place(&mut b.encoder)),
    };
    let [start, width, stride, _] = y.view;
    let params = [word(n), word(x.n_heads), word(n_pairs), start, width, stride, place];
    b.encoder.dispatch(
        kernels::Rope { is_adjacent },
        &params,
        &[&y.mem, &angles],
        Grid::Linear(n.div_ceil(PER_ELEMENT)),
    );
}
