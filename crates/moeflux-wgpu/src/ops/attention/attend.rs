//! Attention over caches of keys and values, and the choice of positions.
//!
//! Rows that look at few keys together go tile by tile, those of all sequences in one kernel
//! (`tiles.rs`); where many rows look at the same keys, workgroups read these once for several
//! (`rows.rs`). The bits are the same. On cooperative matrices of f16 (`halves.rs`) they are not,
//! as with products of many rows.

use crate::ops::attention::coop_matrix;
use crate::ops::attention::rows;
use crate::ops::attention::tiles;
use moeflux_backend::{Attention, Cache, GatedAttention, Heads, KeysValues, Ops, RmsNorm, Span};

use crate::memory::caches::pages::Pages;
use crate::ops::attention::inputs::{Last, PART_WORDS, Rows, TILE, grow, have_room, pages};
use crate::ops::attention::store::{Prepared, Vectors, fits, fits_values, store};
use crate::ops::matmul::jobs::holds_rows;
use crate::ops::matmul::quantize::{QuantSpan, fused_quant};
use crate::state::gpu::Wgpu;
use crate::words::n_rows;

/// Floats of a value that its threads have room for.
const MOST_VALUES: usize = 1024;

pub(crate) fn append(b: &mut Wgpu, cache: Cache, KeysValues { k, v }: KeysValues, spans: &[Span]) {
    b.encoder.begin();
    if grow(b, cache, spans) {
        store(b, cache, Vectors { k, v, prepared: None }, spans);
    }
}

pub(crate) fn attention(b: &mut Wgpu, op: Attention, spans: &[Span]) {
    attend_spans(b, op, spans, None, None);
}

/// The whole mixer, with what queries and keys need first done where keys are
/// stored, and the gate where outputs are written.
pub(crate) fn gated_attention(b: &mut Wgpu, op: GatedAttention, spans: &[Span]) {
    let GatedAttention { v_norm, q_norm, k_norm, rope, attention, gate } = op;
    // Queries are prepared where keys are stored.
    let Some(KeysValues { k, v }) = attention.append else { return op.run_parts(b, spans) };
    let q = attention.q;
    let is_of_heads = |norm: &RmsNorm| b.vector(norm.weight).bytes() / 4 == norm.x.head_dim as u64;
    // A norm over all heads is not one that a head can have by itself.
    let norms = q_norm.zip(k_norm).filter(|(of_q, of_k)| {
        (of_q.x, of_q.out, of_k.x, of_k.out) == (q, q, k, k)
            && is_of_heads(of_q)
            && is_of_heads(of_k)
    });
    let keys_are_as_projected = norms.is_some() || k_norm.is_none();
    let of_values = v_norm.filter(|norm| {
        let (x, out) = (norm.x, norm.out);
        keys_are_as_projected
            && Some(out) == v
            && (x.n_heads, x.head_dim) == (out.n_heads, out.head_dim)
            && fits_values(k.head_dim, x.head_dim)
            && is_of_heads(norm)
    });
    let v = of_values.map_or(v, |norm| Some(norm.x));
    // Keys and values both are in the queries' buffer, or neither.
    let writes_nothing_that_it_reads = v.is_none_or(|v| (v.buf == q.buf) == (k.buf == q.buf))
        && gate.is_none_or(|gate| gate.buf != attention.out.buf);
    if !writes_nothing_that_it_reads || !fits(b, rope, spans) {
        return op.run_parts(b, spans);
    }
    let v_apart = v_norm.filter(|_| of_values.is_none());
    let [q_apart, k_apart] = [q_norm, k_norm].map(|norm| norm.filter(|_| norms.is_none()));
    for norm in [v_apart, q_apart, k_apart].into_iter().flatten() {
        b.rms_norm(n_rows(spans), norm);
    }
    b.written(q.buf);
    attend_spans(b, attention, spans, Some(Prepared { q, norms, v_norm: of_values, rope }), gate);
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
    let fused_quant = if are_merged(b, &op, spans) {
        fused_quant(b, op.out, n_rows(spans), QuantSpan::Elements)
    } else {
        None
    };
    b.encoder.begin();
    let have_pages = match op.append {
        Some(_) => grow(b, op.cache, spans),
        None => have_room(b, op.cache, spans),
    };
    if !have_pages {
        return;
    }
    spans.iter().for_each(|span| check(b, &op, pages(b, span.sequence, op.cache).1));
    if let Some(entries) = op.entries {
        if !have_room(b, entries, spans) {
            return;
        }
        let fits = |span: &Span| {
            let pages = pages(b, span.sequence, entries).1;
            (pages.n_heads, pages.k.dim, pages.v.dim) == (1, op.q.head_dim, 0)
        };
        assert!(spans.iter().all(fits), "entries are keys");
    }
    if let Some(KeysValues { k, v }) = op.append {
        store(b, op.cache, Vectors { k, v, prepared }, spans);
    }
    attend(b, &op, Last { gate, fused_quant: fused_quant.as_ref() }, spans);
}

/// Whether `attention/merge.wgsl` writes all rows, whole groups of columns a
/// workgroup.
fn are_merged(b: &Wgpu, op: &Attention, spans: &[Span]) -> bool {
    let is_merged = |span: &Span| {
        let looks_ahead = op.looks_ahead && span.ahead_to > 0;
        span.position >= TILE && !looks_ahead && !is_shared(b, op, span.rows.len())
    };
    // With more positions than a tile has, a window is never inside one.
    op.entries.is_none()
        && op.window.is_none_or(|window| window > TILE)
        && op.out.head_dim.is_multiple_of(TILE)
        && spans.iter().all(|span| span.rows.is_empty() || is_merged(span))
}

fn check(b: &Wgpu, op: &Attention, pages: &Pages) {
    let Attention { out, q, append, sinks, window, .. } = op;
    assert!(q.n_heads == out.n_heads && q.n_heads.is_multiple_of(pages.n_heads), "query heads");
    assert!(q.head_dim == pages.k.dim, "floats of a key");
    match pages.v.dim {
        0 => assert!(out.head_dim <= pages.k.dim, "values are parts of keys"),
        v_dim => assert!(out.head_dim == v_dim, "floats of a value"),
    }
    if let Some(KeysValues { k, v }) = append {
        assert!(k.n_heads == pages.n_heads && k.head_dim == pages.k.dim, "appended keys");
        let (heads, dim) = v.map_or((k.n_heads, 0), |v| (v.n_heads, v.head_dim));
        assert!(heads == k.n_heads && dim == pages.v.dim, "appended values");
    }
    let n_sinks = sinks.map(|sinks| b.vector(sinks).bytes() / 4);
    assert!(n_sinks.is_none_or(|n_sinks| n_sinks == q.n_heads as u64), "one sink a query head");
    assert!(*window != Some(0), "a window holds the row's own position");
}

/// Attends for the rows of spans, some at a time.
fn attend(b: &mut Wgpu, op: &Attention, last: Last<'_>, spans: &[Span]) {
    let words = op.q.n_heads * (op.out.head_dim + 2);
    let mut group = Vec::new();
    let (mut n_words, mut n_tiles) = (0, 0);
    // Steps of few rows give each the bits that it has alone.
    let may_use_units = !holds_rows(n_rows(spans));
    for span in spans {
        let mut row = 0;
        while row < span.rows.len() {
            let n = span.rows.len() - row;
            let (first, position) = (span.rows.start + row, span.position + row);
            let ahead_to = if op.looks_ahead { span.ahead_to } else { 0 };
            let left = Rows { sequence: span.sequence, first, position, n, ahead_to };
            // Where queries share all their keys nothing but a slab's end is gathered. Only kernels for
            // these look ahead.
            let is_shared = ahead_to > 0 || is_shared(b, op, n);
            let of_row = if is_shared { 1 } else { left.n_tiles(b, op) };
            let most = (PART_WORDS / (words * of_row)).max(1);
            // Parts of the same size, of which none is too small to be shared.
            let n_parts = b.encoder.n_parts(left.work(op)).min(most_parts(b, op, n, is_shared));
            let n = n.div_ceil(n.div_ceil(most).max(n_parts));
            row += n;
            let rows = Rows { n, ..left };
            b.encoder.go_on(rows.work(op));
            if is_shared {
                if !(may_use_units && coop_matrix::attend(b, op, last.gate, rows)) {
                    rows::attend(b, op, last.gate, rows);
                }
                continue;
            }
            let (its_words, its_tiles) = (n * of_row * words, rows.n_tiles(b, op));
            if n_words + its_words > PART_WORDS || n_tiles + its_tiles > tiles::most() {
                tiles::attend(b, op, last, &std::mem::take(&mut group));
                (n_words, n_tiles) = (0, 0);
            }
            (n_words, n_tiles) = (n_words + its_words, n_tiles + its_tiles);
            group.push(rows);
        }
    }
    tiles::attend(b, op, last, &group);
}

/// In how many parts rows may attend.
fn most_parts(b: &Wgpu, op: &Attention, n: usize, is_shared: bool) -> usize {
    let least = if is_shared { b.least_shared_queries.div_ceil(op.q.n_heads) } else { 1 };
    (n / least.max(1)).max(1)
}

fn is_shared(b: &Wgpu, op: &Attention, n: usize) -> bool {
    n * op.q.n_heads >= b.least_shared_queries && op.out.head_dim <= MOST_VALUES
}
