//! Attention over caches of keys and values, and the choice of positions.

use moeflux_backend::{
    Attention, Backend, GatedAttention, Heads, KvType, RmsNorm, SelectPositions, Span,
};

use super::rounding::{Beside, Share, beside};
use super::store::{self, Prepared, Vectors, store};
use super::{ELEMENTS, Grown, n_rows, word};
use crate::backend::Wgpu;
use crate::caches::{CacheState, Kv, Plane};
use crate::encoder::{Grid, Mem};
use crate::shader::{Shader, Variant};

/// Positions whose softmax is computed together. Tiles begin at its multiples
/// whatever else is asked for, so that a row's bits follow from its position alone.
const TILE: usize = 64;

/// Queries of a workgroup of `attention_rows.wgsl`.
const ROWS_QUERIES: usize = 32;

/// Queries of all heads from which on `attention_rows.wgsl` has workgroups enough
/// to fill a device.
pub(crate) const MANY_QUERIES: usize = 2048;

/// Floats of a value that its threads have room for.
const MOST_VALUES: usize = 1024;

/// Most queries of a workgroup of `attention.wgsl`, its threads, the fours of
/// their columns that it has room for, and sixteens of columns of a key that it
/// reads at once.
const QUERIES: usize = 8;
const THREADS: usize = 256;
const QUERY_FOURS: usize = 640;
const STEPS: usize = 16;

/// Workgroups up to which fewer queries share one: half of an H200's multiprocessors.
const ENOUGH: usize = 64;

/// Words of what tiles gathered, and of scores, at a time.
const PART_WORDS: usize = 16 << 20;

/// The positions that each row of a batch attends to, as bits.
#[derive(Debug, Default)]
pub(crate) struct Mask {
    memory: Grown,
    mem: Option<Mem>,
    /// Words of a row.
    words: usize,
}

/// Takes a cache of keys out of its sequence.
fn take(b: &mut Wgpu, span: &Span, cache: moeflux_backend::Cache) -> Kv {
    let slot = b.cache(span.sequence, cache);
    assert!(matches!(slot, CacheState::Kv(_)), "attention needs a key-value cache");
    let empty = CacheState::Kv(Kv::empty());
    match std::mem::replace(slot, empty) {
        CacheState::Kv(kv) => kv,
        other => unreachable!("{other:?} is no cache of keys"),
    }
}

pub(crate) fn attention(b: &mut Wgpu, op: Attention, spans: &[Span]) {
    attend_spans(b, op, spans, None, None);
}

/// The whole mixer, with what queries and keys need first done where keys are
/// stored, and the gate where outputs are written.
pub(crate) fn gated_attention(b: &mut Wgpu, op: GatedAttention, spans: &[Span]) {
    let GatedAttention { norms, rope, attention, gate } = op;
    let (q, k) = (attention.q, attention.k);
    // Keys and values both lie beside the queries, or neither.
    let writes_nothing_that_it_reads =
        attention.v.is_none_or(|it| (it.buf == q.buf) == (k.buf == q.buf))
            && gate.is_none_or(|it| it.buf != attention.out.buf);
    if !writes_nothing_that_it_reads || !store::fits(b, k.head_dim, rope, spans) {
        return op.run_parts(b, spans);
    }
    // A norm over all heads is not one that a head can have by itself.
    let are_of_heads =
        |(of_q, of_k): &(RmsNorm, RmsNorm)| (of_q.x, of_q.out, of_k.x, of_k.out) == (q, q, k, k);
    let fused = norms.filter(are_of_heads);
    if let (Some((of_q, of_k)), None) = (norms, fused) {
        b.rms_norm(n_rows(spans), of_q);
        b.rms_norm(n_rows(spans), of_k);
    }
    b.written(q.buf);
    attend_spans(b, attention, spans, Some(Prepared { q, norms: fused, rope }), gate);
}

fn attend_spans(
    b: &mut Wgpu,
    op: Attention,
    spans: &[Span],
    prepared: Option<Prepared>,
    gate: Option<Heads>,
) {
    assert!(op.out.buf != op.q.buf, "an op writes a buffer that it also reads");
    b.written(op.out.buf);
    let beside = match are_merged(b, &op, spans) {
        true => beside(b, op.out, n_rows(spans), Share::Elements),
        false => None,
    };
    for span in spans {
        if span.rows.is_empty() {
            continue;
        }
        b.encoder.begin();
        let mut kv = take(b, span, op.cache);
        check(b, &op, &kv);
        kv.grow(&mut b.encoder, span.position + span.rows.len());
        let vectors = Vectors { k: op.k, v: op.v, prepared };
        store(b, &kv, vectors, (span, spans));
        attend(b, &op, (gate, beside.as_ref()), span, &kv);
        *b.cache(span.sequence, op.cache) = CacheState::Kv(kv);
    }
}

/// Whether `merge_attention.wgsl` writes all rows, whole groups of columns a
/// workgroup.
fn are_merged(b: &Wgpu, op: &Attention, spans: &[Span]) -> bool {
    let is_merged = |it: &Span| it.position >= TILE && !is_shared(b, op, it.rows.len());
    op.window.is_none()
        && op.out.head_dim.is_multiple_of(TILE)
        && spans.iter().all(|it| it.rows.is_empty() || is_merged(it))
}

fn check(b: &Wgpu, op: &Attention, kv: &Kv) {
    let Attention { out, q, k, v, sinks, window, .. } = op;
    assert!(q.n_heads == out.n_heads && q.n_heads.is_multiple_of(kv.n_heads), "query heads");
    assert!(k.n_heads == kv.n_heads, "key heads");
    assert!(q.head_dim == kv.k.dim && k.head_dim == kv.k.dim, "floats of a key");
    match v {
        Some(v) => assert!(
            v.n_heads == k.n_heads && v.head_dim == kv.v.dim && out.head_dim == kv.v.dim,
            "heads and floats of a value"
        ),
        None => assert!(kv.v.dim == 0 && out.head_dim <= kv.k.dim, "values are parts of keys"),
    }
    let n_sinks = sinks.map(|it| b.vector(it).bytes() / 4);
    assert!(n_sinks.is_none_or(|it| it == q.n_heads as u64), "one sink a query head");
    assert!(*window != Some(0), "a window holds the row's own position");
}

/// Attends for the rows of a span, some at a time.
fn attend(b: &mut Wgpu, op: &Attention, last: Last<'_>, span: &Span, kv: &Kv) {
    let n_heads = op.q.n_heads;
    let size = op.out.head_dim + 2;
    let mut row = 0;
    while row < span.rows.len() {
        let left = span.rows.len() - row;
        let end = span.position + span.rows.len();
        let seen = op.window.map_or(end, |it| end.min(it + left));
        // Where queries share all their keys nothing but a piece's end is gathered.
        let is_shared = is_shared(b, op, left);
        let n_parts = if is_shared { 1 } else { seen.div_ceil(TILE) + 1 };
        let n = left.min((PART_WORDS / (n_heads * n_parts * size)).max(1));
        rows(b, op, span, kv, Rows { first: row, n, is_shared, last });
        row += n;
    }
}

/// What outputs are multiplied with, and what is rounded beside them.
type Last<'a> = (Option<Heads>, Option<&'a Beside>);

/// Some rows of a span.
struct Rows<'a> {
    first: usize,
    n: usize,
    /// Whether they go through `attention_rows.wgsl`; the bits are the same.
    is_shared: bool,
    last: Last<'a>,
}

fn is_shared(b: &Wgpu, op: &Attention, n: usize) -> bool {
    n * op.q.n_heads >= b.least_shared_queries && op.out.head_dim <= MOST_VALUES
}

fn rows(b: &mut Wgpu, op: &Attention, span: &Span, kv: &Kv, it: Rows<'_>) {
    b.encoder.begin();
    let Rows { first, n, is_shared, last: (gate, beside) } = it;
    let Attention { out, q, window, sinks, selection, scale, .. } = *op;
    let (n_heads, v_dim) = (q.n_heads, out.head_dim);
    let position = span.position + first;
    let end = position + n;
    let start = window.map_or(0, |it| (position + 1).saturating_sub(it)) / TILE * TILE;
    let parts: Vec<_> = kv.parts(start..end).collect();
    let tiles = |len: usize| len.div_ceil(TILE);
    let all_tiles: usize = parts.iter().map(|it| tiles(it.positions.len())).sum();
    let n_parts = if is_shared { 1 } else { all_tiles };
    let gathered = b.scratch.attention.words(&mut b.encoder, n * n_heads * n_parts * (v_dim + 2));
    let (q_buf, y) = (b.buf(q.buf).clone(), b.buf(out.buf).clone());
    let mask = selection.map(|it| &b.selections[it.0 as usize]);
    let mask_words = mask.map_or(0, |it| it.words);
    let mask_mem = mask.and_then(|it| it.mem.clone()).unwrap_or_else(|| q_buf.mem.clone());
    let sink_mem = sinks.map_or_else(|| q_buf.mem.clone(), |it| b.vector(it).clone());
    let (gate_mem, gate_view) = match gate {
        Some(it) => {
            let buf = b.buf(it.buf);
            (buf.mem.clone(), [word(it.start), word(buf.width), word(it.stride)])
        }
        None => (q_buf.mem.clone(), [0; 3]),
    };
    let values = if op.v.is_some() { &kv.v } else { &kv.k };
    let row = span.rows.start + first;
    let n_queries = n * n_heads / kv.n_heads;
    let n_tiles = kv.n_heads * all_tiles;
    let variant = Shape { kv, values, v_dim, is_masked: selection.is_some(), n_queries, n_tiles };
    let variant = if is_shared { variant.of_rows() } else { variant.of_tiles() };
    let n_blocks = n_queries.div_ceil(variant.1);
    let mut first_tile = 0;
    for (i, part) in parts.iter().enumerate() {
        let n_tiles = tiles(part.positions.len());
        let n_groups = kv.n_heads * n_blocks * if is_shared { 1 } else { n_tiles };
        let params = [
            word(n_heads),
            word(n_heads / kv.n_heads),
            word(q.start),
            word(q_buf.width),
            word(q.stride),
            scale.to_bits(),
            word(row),
            word(position),
            word(window.unwrap_or(0)),
            word(part.start),
            word(part.positions.start),
            word(part.positions.end),
            word(n_blocks),
            word(all_tiles),
            word(first_tile),
            word(kv.k.row_words),
            word(values.row_words),
            word(mask_words),
            word(n_queries),
            word(out.start),
            word(y.width),
            word(out.stride),
            u32::from(sinks.is_some()),
            gate_view[0],
            gate_view[1],
            gate_view[2],
            u32::from(gate.is_some()),
            u32::from(i + 1 < parts.len()),
            word(n_groups),
        ];
        let (keys, values) = (&kv.k.pieces[part.piece], &values.pieces[part.piece]);
        b.encoder.dispatch(
            variant.0,
            &params,
            &[&q_buf.mem, keys, values, &mask_mem, &sink_mem, &gathered, &y.mem, &gate_mem],
            Grid::Linear(n_groups),
        );
        first_tile += n_tiles;
    }
    if is_shared || all_tiles == 1 {
        return;
    }
    let n_groups = n * n_heads * v_dim.div_ceil(TILE);
    let params = [
        word(n_heads),
        word(v_dim),
        word(all_tiles),
        word(row),
        word(out.start),
        word(y.width),
        word(out.stride),
        gate_view[0],
        gate_view[1],
        gate_view[2],
        word(n_groups),
    ];
    let (rounding, rounded, sums) = Beside::or_unused(beside, b);
    let consts = [u32::from(sinks.is_some()), u32::from(gate.is_some())];
    b.encoder.dispatch(
        Variant::new(Shader::MergeAttention, &[&consts[..], &rounding].concat()),
        &params,
        &[&gathered, &sink_mem, &y.mem, &gate_mem, &rounded, &sums],
        Grid::Linear(n_groups),
    );
}

/// What the kernels of attention are compiled for.
struct Shape<'a> {
    kv: &'a Kv,
    values: &'a Plane,
    v_dim: usize,
    is_masked: bool,
    /// Those that share their keys.
    n_queries: usize,
    /// Tiles of all key heads.
    n_tiles: usize,
}

/// Of at most so many queries, a power of two, those that share a workgroup: as many
/// as leave workgroups enough, and two, which have the threads for their values.
fn shared_by(most: usize, n_queries: usize, n_tiles: usize) -> usize {
    let leaves_enough = |it: &usize| n_tiles * n_queries.div_ceil(*it) >= ENOUGH;
    let halves = std::iter::successors(Some(most), |it| Some(it / 2)).take_while(|it| *it > 2);
    halves.into_iter().find(leaves_enough).unwrap_or(most.min(2))
}

impl Shape<'_> {
    /// Words that are read at once: four columns, where vectors consist of such.
    fn width(&self) -> u32 {
        let are_fours = [self.kv.k.dim, self.values.dim].iter().all(|it| it.is_multiple_of(4));
        match self.kv.dtype {
            KvType::F32 if are_fours => 4,
            KvType::Bf16 if are_fours => 2,
            _ => 1,
        }
    }

    fn consts(&self) -> [u32; 5] {
        let Shape { kv, v_dim, is_masked, .. } = self;
        [kv.kind(), self.width(), u32::from(*is_masked), word(kv.k.dim), word(*v_dim)]
    }

    /// The kernel for many queries, and how many a workgroup has.
    fn of_rows(&self) -> (Variant, usize) {
        let fours = self.v_dim.div_ceil(4 * ROWS_QUERIES);
        let at_once = 1 << (8 / fours).ilog2();
        let consts = [&self.consts()[..], &[word(fours), at_once]].concat();
        (Variant::new(Shader::AttentionRows, &consts), ROWS_QUERIES)
    }

    /// The kernel for a tile, and how many queries a workgroup has.
    fn of_tiles(&self) -> (Variant, usize) {
        let sixteens = self.kv.k.dim.div_ceil(16);
        let n_bursts = sixteens.div_ceil(STEPS);
        let steps = sixteens.div_ceil(n_bursts).next_multiple_of(4);
        let fit = (QUERY_FOURS / (4 * steps * n_bursts)).max(1);
        let queries = self.n_queries.next_power_of_two().min(1 << fit.ilog2()).min(QUERIES);
        let queries = shared_by(queries, self.n_queries, self.n_tiles);
        let fours = self.v_dim.div_ceil(4).next_power_of_two();
        let (fours, cols) = (fours.min(THREADS), fours.div_ceil(THREADS));
        let parts = queries.min(THREADS / fours);
        let own = [queries, steps, n_bursts - 1, fours, parts, cols].map(word);
        let consts = [&self.consts()[..], &own].concat();
        (Variant::new(Shader::Attention, &consts), queries)
    }
}

pub(crate) fn select_positions(b: &mut Wgpu, op: SelectPositions, spans: &[Span]) {
    assert!(op.top_k > 0, "a row sees a position");
    assert!(op.weights.len == op.q.n_heads, "one weight an index head");
    let longest = spans.iter().map(|it| it.position + it.rows.len()).max().unwrap_or(0);
    let words = longest.div_ceil(32);
    let mut mask = std::mem::take(&mut b.selections[op.out.0 as usize]);
    let mem = mask.memory.words(&mut b.encoder, n_rows(spans) * words);
    (mask.mem, mask.words) = (Some(mem.clone()), words);
    b.selections[op.out.0 as usize] = mask;
    for span in spans {
        if span.rows.is_empty() {
            continue;
        }
        b.encoder.begin();
        let mut kv = take(b, span, op.cache);
        assert!(
            kv.n_heads == 1 && kv.v.dim == 0 && op.q.head_dim == kv.k.dim,
            "a cache of index keys has one head and no values"
        );
        let end = span.position + span.rows.len();
        kv.grow(&mut b.encoder, end);
        let vectors = Vectors { k: op.k.heads(1), v: None, prepared: None };
        store(b, &kv, vectors, (span, spans));
        let per_part = (PART_WORDS / end).max(1);
        for first in (0..span.rows.len()).step_by(per_part) {
            let n = per_part.min(span.rows.len() - first);
            choose(b, &op, span, &kv, (first, n), (&mem, words));
        }
        *b.cache(span.sequence, op.cache) = CacheState::Kv(kv);
    }
}

/// Scores the positions of some rows of a span, and writes their bits.
fn choose(
    b: &mut Wgpu,
    op: &SelectPositions,
    span: &Span,
    kv: &Kv,
    (first, n): (usize, usize),
    (mask, mask_words): (&Mem, usize),
) {
    b.encoder.begin();
    let position = span.position + first;
    let end = position + n;
    let row = span.rows.start + first;
    let scores = b.scratch.index_scores.words(&mut b.encoder, n * end);
    let (q, weights) = (b.buf(op.q.buf).clone(), b.buf(op.weights.buf).clone());
    for part in kv.parts(0..end) {
        let len = part.positions.len();
        let params = [
            word(op.q.n_heads),
            word(op.q.head_dim),
            word(op.q.start),
            word(q.width),
            word(op.q.stride),
            word(op.weights.start),
            word(weights.width),
            op.scale.to_bits(),
            word(row),
            word(part.start),
            word(len),
            word(kv.k.row_words),
            word(end),
            word(n * len),
        ];
        b.encoder.dispatch(
            Variant::new(Shader::ScoreIndex, &[kv.kind()]),
            &params,
            &[&q.mem, &kv.k.pieces[part.piece], &weights.mem, &scores],
            Grid::Linear((n * len).div_ceil(ELEMENTS)),
        );
    }
    let params = [word(op.top_k), word(row), word(position), word(end), word(mask_words), word(n)];
    b.encoder.dispatch(
        Variant::new(Shader::ChooseIndex, &[]),
        &params,
        &[&scores, mask],
        Grid::Linear(n),
    );
}

#[cfg(test)]
mod tests {
    use super::shared_by;

    #[test]
    fn queries_share_workgroups_where_there_are_enough_of_these() {
        assert_eq!(shared_by(8, 8, 64), 8);
        assert_eq!(shared_by(8, 8, 32), 4);
        assert_eq!(shared_by(8, 8, 20), 2);
        assert_eq!(shared_by(8, 8, 1), 2);
        assert_eq!(shared_by(1, 1, 1), 1);
    }
}
