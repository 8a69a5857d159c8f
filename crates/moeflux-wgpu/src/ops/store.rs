//! Keys and values on their way into caches.

use moeflux_backend::{Heads, RmsNorm, Rope, Span};

use super::elementwise::WIDE;
use super::{n_rows, word};
use crate::backend::Wgpu;
use crate::caches::Kv;
use crate::encoder::{Encoder, Grid};
use crate::shader::{Shader, Variant};

/// What is stored.
#[derive(Clone, Copy)]
pub(super) struct Vectors {
    pub(super) k: Heads,
    pub(super) v: Option<Heads>,
    pub(super) prepared: Option<Prepared>,
}

/// What queries, in place, and keys go through on the way.
#[derive(Clone, Copy)]
pub(super) struct Prepared {
    pub(super) q: Heads,
    /// Of a query's head and of a key's.
    pub(super) norms: Option<(RmsNorm, RmsNorm)>,
    pub(super) rope: Rope,
}

/// Whether heads may go through norm and rotation where they are stored: they
/// need the threads that `norm.wgsl` has for them, and a whole table of angles.
pub(super) fn fits(b: &Wgpu, head_dim: usize, rope: Rope, spans: &[Span]) -> bool {
    let n_pairs = b.ropes[rope.0 as usize].n_pairs();
    head_dim < WIDE && 2 * n_pairs * n_rows(spans) <= Encoder::list_limit()
}

/// Stores the rows of one of some spans.
pub(super) fn store(b: &mut Wgpu, kv: &Kv, vectors: Vectors, (span, spans): (&Span, &[Span])) {
    let Vectors { k, v, prepared } = vectors;
    let [unused_q, unused_v] = [0, 1].map(|i| b.scratch.unused[i].words(&mut b.encoder, 4));
    // Keys and values beside queries are read through the binding of these.
    let is_one = prepared.is_some_and(|it| it.q.buf == k.buf);
    let none = b.encoder.arena();
    let view = |b: &Wgpu, it: Option<Heads>| match it {
        Some(it) => {
            (b.buf(it.buf).mem.clone(), [it.n_heads, it.start, b.buf(it.buf).width, it.stride])
        }
        None => (none.clone(), [0; 4]),
    };
    let read = |b: &Wgpu, it: Option<Heads>| match view(b, it) {
        (_, view) if is_one => (none.clone(), view),
        other => other,
    };
    let (q_mem, q_view) = match prepared {
        Some(it) => view(b, Some(it.q)),
        None => (unused_q, [0; 4]),
    };
    let ((k_mem, k_view), (v_mem, v_view)) = (read(b, Some(k)), read(b, v));
    let norms = prepared.and_then(|it| it.norms);
    let weight = |b: &Wgpu, norm: Option<RmsNorm>| {
        norm.map_or_else(|| none.clone(), |it| b.vector(it.weight).clone())
    };
    let (q_weight, k_weight) = (weight(b, norms.map(|it| it.0)), weight(b, norms.map(|it| it.1)));
    let (q_eps, k_eps) = norms.map_or((0.0, 0.0), |it| (it.0.eps, it.1.eps));
    let (table, pairs) = match prepared {
        Some(it) => super::elementwise::place(b, it.rope, spans),
        None => (0, [0, 0]),
    };
    let v_dim = v.map_or(0, |it| it.head_dim);
    let consts = [
        kv.kind(),
        word(k.head_dim),
        word(v_dim),
        word(k.head_dim.max(v_dim)),
        u32::from(norms.is_some()),
        pairs[0],
        pairs[1],
        u32::from(is_one),
    ];
    let end = span.position + span.rows.len();
    for part in kv.parts(span.position..end) {
        let first = part.positions.start - span.position;
        let n = part.positions.len() * (q_view[0] + kv.n_heads + v_view[0]);
        let counts = [n, q_view[0], kv.n_heads, v_view[0]];
        let views = [&q_view[1..], &k_view[1..], &v_view[1..]].concat();
        let places = [
            span.rows.start + first,
            part.positions.start - part.start,
            kv.k.row_words,
            kv.v.row_words,
        ];
        let mut params: Vec<u32> =
            counts.iter().chain(&views).chain(&places).map(|it| word(*it)).collect();
        params.extend([table, q_eps.to_bits(), k_eps.to_bits()]);
        let values = if v.is_some() { &kv.v.pieces[part.piece] } else { &unused_v };
        b.encoder.dispatch(
            Variant::new(Shader::StoreKv, &consts),
            &params,
            &[
                &q_mem,
                &k_mem,
                &v_mem,
                &kv.k.pieces[part.piece],
                values,
                &q_weight,
                &k_weight,
                &none,
            ],
            Grid::Linear(n),
        );
    }
}
