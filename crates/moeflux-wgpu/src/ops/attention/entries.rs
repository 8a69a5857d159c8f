//! Entries of pools of positions.

use std::ops::Range;

use moeflux_backend::{KvType, PoolEntries, Span};

use crate::commands::encoder::Encoder;
use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::attention as kernels;
use crate::ops::attention::inputs::{grow, pages};
use crate::ops::attention::places::{Angles, NONE, Place, Run, place, runs};
use crate::ops::attention::store::{Vectors, store};
use crate::state::gpu::Wgpu;
use crate::words::{PER_ELEMENT, word};

pub(crate) fn pool_entries(b: &mut Wgpu, op: PoolEntries, spans: &[Span]) {
    b.encoder.begin();
    if !grow(b, op.rows, spans) || !grow(b, op.entries, spans) {
        return;
    }
    store(b, op.rows, Vectors { k: op.x.heads(1), v: None, prepared: None }, spans);
    for span in spans {
        complete(b, &op, span);
    }
}

/// Makes entries of the pools that end in a span, whose rows are stored.
fn complete(b: &mut Wgpu, op: &PoolEntries, span: &Span) {
    let shape = EntryShape::of(b, op, span);
    let n_pairs = b.ropes[op.rope.0 as usize].n_pairs();
    let all = span.position / shape.size..(span.position + span.rows.len()) / shape.size;
    // Lists of an op are bounded.
    let of_pool = shape.n_slots() + 2 * n_pairs + 1;
    let at_once = (Encoder::list_limit() / of_pool).max(1);
    for first in all.clone().step_by(at_once) {
        let pools = first..all.end.min(first + at_once);
        b.encoder.begin();
        let n_sums = 3 * pools.len() * shape.dim;
        let sums = b.scratch.pool_sums.words(&mut b.encoder, n_sums);
        mix(b, op, span, shape, &pools, &sums);
        put(b, op, span, shape, &pools, &sums);
    }
}

/// What pools are, and their entries.
#[derive(Clone, Copy)]
struct EntryShape {
    /// Columns of an entry.
    dim: usize,
    /// Columns of values, as many as of gates.
    width: usize,
    /// Positions of a pool.
    size: usize,
}

impl EntryShape {
    /// # Panics
    /// Where widths do not fit each other.
    fn of(b: &Wgpu, op: &PoolEntries, span: &Span) -> EntryShape {
        let rows = pages(b, span.sequence, op.rows).1;
        let is_plain = rows.n_heads == 1 && rows.v.dim == 0 && rows.dtype == KvType::F32;
        assert!(is_plain && rows.k.dim == op.x.len, "rows are stored as floats");
        let (entries, of_entries) = pages(b, span.sequence, op.entries);
        assert!(of_entries.dtype != KvType::Q8, "entries are floats");
        let (dim, width) = (of_entries.k.dim, op.x.len / 2);
        assert!(
            width == dim || width == 2 * dim,
            "values are as wide as entries, or twice as wide"
        );
        EntryShape { dim, width, size: entries.size }
    }

    /// Slots of the pool before.
    fn n_before(self) -> usize {
        if self.width > self.dim { self.size } else { 0 }
    }

    fn n_slots(self) -> usize {
        self.n_before() + self.size
    }
}

/// Sums of shares, and of values by their shares.
fn mix(
    b: &mut Wgpu,
    op: &PoolEntries,
    span: &Span,
    shape: EntryShape,
    pools: &Range<usize>,
    sums: &Mem,
) {
    let place_of =
        |pool: usize, slot: usize| match (pool * shape.size + slot).checked_sub(shape.n_before()) {
            Some(position) => place(b, op.rows, span.sequence, position),
            // The first pool has none before it.
            None => Place { word: NONE, ..place(b, op.rows, span.sequence, pool * shape.size) },
        };
    let slots = || 0..shape.n_slots();
    let places: Vec<Place> = pools
        .clone()
        .flat_map(|pool| slots().map(move |slot| (pool, slot)))
        .map(|(pool, slot)| place_of(pool, slot))
        .collect();
    let (bias, lists) = (b.vector(op.bias).clone(), b.encoder.arena());
    let n = pools.len() * shape.dim;
    for run in runs(&places) {
        let words: Vec<u32> = run.words(&places).collect();
        let params = [
            word(n),
            word(shape.dim),
            word(shape.n_slots()),
            b.encoder.list(&words),
            u32::from(run.positions.start == 0),
            word(shape.width),
            word(shape.n_before()),
            word(shape.size),
        ];
        let mem = pages(b, span.sequence, op.rows).1.mem(run.slab).clone();
        let grid = Grid::Linear(n.div_ceil(PER_ELEMENT));
        b.encoder.dispatch(kernels::GatePools {}, &params, &[sums, &mem, &lists, &bias], grid);
    }
}

/// Entries in their places.
fn put(
    b: &mut Wgpu,
    op: &PoolEntries,
    span: &Span,
    shape: EntryShape,
    pools: &Range<usize>,
    sums: &Mem,
) {
    let firsts = pools.clone().map(|pool| pool * shape.size);
    let angles = Angles::of(b, op.rope, span, firsts);
    let places: Vec<Place> =
        pools.clone().map(|pool| place(b, op.entries, span.sequence, pool)).collect();
    let (weight, lists) = (b.vector(op.weight).clone(), b.encoder.arena());
    let kind = pages(b, span.sequence, op.entries).1.kind();
    let all: Vec<Run> = runs(&places);
    for run in &all {
        let words: Vec<u32> = run.words(&places).collect();
        let params = [
            word(pools.len()),
            word(shape.dim),
            word(angles.n_pairs),
            op.eps.to_bits(),
            b.encoder.list(&words),
            angles.list,
        ];
        let mem = pages(b, span.sequence, op.entries).1.mem(run.slab).clone();
        let kernel = kernels::PutEntries { kv: kind, is_adjacent: angles.is_adjacent };
        let buffers = [&mem, sums, &weight, &lists];
        b.encoder.dispatch(kernel, &params, &buffers, Grid::Linear(pools.len()));
    }
}
