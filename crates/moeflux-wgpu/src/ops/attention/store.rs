//! Keys and values on their way into caches.

use crate::ops::rope::PlacedTable;
use std::collections::BTreeMap;

use moeflux_backend::{Cache, Heads, RmsNorm, Rope, Span};

use crate::commands::encoder::Encoder;
use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::attention::StoreKv;
use crate::ops::attention::inputs::pages;
use crate::ops::rope::place;
use crate::state::gpu::Wgpu;
use crate::words::{n_rows, norm_threads, word};

/// What is stored.
#[derive(Clone, Copy)]
pub(crate) struct Vectors {
    pub(crate) k: Heads,
    pub(crate) v: Option<Heads>,
    pub(crate) prepared: Option<Prepared>,
}

/// What queries, in place, and keys go through on the way.
#[derive(Clone, Copy)]
pub(crate) struct Prepared {
    pub(crate) q: Heads,
    /// Of a query's head and of a key's.
    pub(crate) norms: Option<(RmsNorm, RmsNorm)>,
    /// Of a value's, which are read where this reads.
    pub(crate) v_norm: Option<RmsNorm>,
    pub(crate) rope: Rope,
}

/// Whether heads may go through norm and rotation where they are stored: they
/// need a whole table of angles.
pub(crate) fn fits(b: &Wgpu, rope: Rope, spans: &[Span]) -> bool {
    let n_pairs = b.ropes[rope.0 as usize].n_pairs();
    2 * n_pairs * n_rows(spans) <= Encoder::list_limit()
}

/// Whether values of keys of this size may go through a norm where they are stored: both need the same
/// threads, those that `norm/norm.wgsl` has for them.
pub(crate) fn fits_values(k_dim: usize, v_dim: usize) -> bool {
    norm_threads(k_dim) == norm_threads(v_dim)
}

/// Words of a row in `attention/store_kv.wgsl`.
const ROW_WORDS: usize = 3;

/// Rows by the slabs that their positions are in.
fn rows(b: &Wgpu, cache: Cache, spans: &[Span]) -> Vec<(Mem, Vec<u32>)> {
    let mut rows: BTreeMap<usize, (Mem, Vec<u32>)> = BTreeMap::new();
    for span in spans {
        let (kv, pages) = pages(b, span.sequence, cache);
        for (row, position) in span.rows.clone().zip(span.position..) {
            let page = kv.page(position);
            let slab = rows.entry(page.slab);
            let (_, list) = slab.or_insert_with(|| (pages.mem(page.slab).clone(), Vec::new()));
            let places = [pages.k, pages.v].map(|plane| pages.word(page, plane, position));
            list.extend([row, places[0], places[1]].map(word));
        }
    }
    rows.into_values().collect()
}

/// Stores the rows of spans.
pub(crate) fn store(b: &mut Wgpu, cache: Cache, vectors: Vectors, spans: &[Span]) {
    let Some(one) = spans.first() else { return };
    let Vectors { k, v, prepared } = vectors;
    let unused_q = b.scratch.unused[0].words(&mut b.encoder, 4);
    // Keys and values in the queries' buffer are read through the binding of these.
    let is_one = prepared.is_some_and(|prepared| prepared.q.buf == k.buf);
    let lists = b.encoder.arena();
    let view = |b: &Wgpu, heads: Option<Heads>| match heads {
        Some(heads) => (
            b.buf(heads.buf).mem.clone(),
            [heads.n_heads, heads.start, b.buf(heads.buf).width, heads.stride],
        ),
        None => (lists.clone(), [0; 4]),
    };
    let read = |b: &Wgpu, heads: Option<Heads>| match view(b, heads) {
        (_, view) if is_one => (lists.clone(), view),
        other => other,
    };
    let (q_mem, q_view) = match prepared {
        Some(prepared) => view(b, Some(prepared.q)),
        None => (unused_q, [0; 4]),
    };
    let values = prepared.and_then(|prepared| prepared.v_norm).map(|norm| norm.x);
    let ((k_mem, k_view), (v_mem, v_view)) = (read(b, Some(k)), read(b, values.or(v)));
    let norms = prepared.and_then(|prepared| prepared.norms);
    let weight = |b: &Wgpu, norm: Option<RmsNorm>| {
        norm.map_or_else(|| lists.clone(), |norm| b.vector(norm.weight).clone())
    };
    let (q_norm, k_norm) = norms.unzip();
    let v_norm = prepared.and_then(|prepared| prepared.v_norm);
    let all = [q_norm, k_norm, v_norm];
    let [q_weight, k_weight, v_weight] = all.map(|norm| weight(b, norm));
    let eps = all.map(|norm| norm.map_or(0.0, |norm| norm.eps).to_bits());
    let table = match prepared {
        Some(prepared) => place(b, prepared.rope, spans),
        None => PlacedTable::default(),
    };
    let v_dim = v.map_or(0, |v| v.head_dim);
    let (kind, row_words) = {
        let pages = pages(b, one.sequence, cache).1;
        (pages.kind(), [pages.k, pages.v].map(|plane| word(plane.row_words)))
    };
    let kernel = StoreKv {
        kv: kind,
        k_dim: word(k.head_dim),
        v_dim: word(v_dim),
        dim: word(k.head_dim.max(v_dim)),
        is_normed: norms.is_some(),
        values_are_normed: v_norm.is_some(),
        threads: word(norm_threads(k.head_dim)),
        n_pairs: table.n_pairs,
        is_adjacent: table.is_adjacent,
        is_one_buffer: is_one,
    };
    let counts = [q_view[0], k_view[0], v_view[0]];
    let views = [&counts[..], &q_view[1..], &k_view[1..], &v_view[1..]].concat();
    for (slab, list) in rows(b, cache, spans) {
        let n = list.len() / ROW_WORDS * counts.iter().sum::<usize>();
        let mut params = vec![word(n)];
        params.extend(views.iter().map(|n| word(*n)));
        params.push(table.first);
        params.extend(eps);
        params.extend(row_words);
        params.push(b.encoder.list(&list));
        b.encoder.dispatch(
            kernel,
            &params,
            &[&q_mem, &k_mem, &v_mem, &slab, &q_weight, &k_weight, &v_weight, &lists],
            Grid::Linear(n),
        );
    }
}
