//! Recurrent ops: they read and replace a sequence's states.

use super::memory::CacheState;
use super::parallel::for_each_chunk;
use super::pool::SharedMut;
use super::{Cpu, delta, math, n_rows};
use crate::{Cache, CausalConv, DeltaRule, Sequence, Span};

impl Cpu {
    /// Takes a cache out, so that it can be written beside the buffers.
    pub(super) fn take_cache(&mut self, sequence: Sequence, cache: Cache) -> CacheState {
        let slot = self.cache_slot(sequence, cache);
        std::mem::replace(slot, CacheState::Delta(Vec::new()))
    }

    pub(super) fn cache_slot(&mut self, sequence: Sequence, cache: Cache) -> &mut CacheState {
        let caches = self.sequences[sequence.0 as usize].as_mut();
        &mut caches.expect("the sequence exists")[cache.0 as usize]
    }
}

pub(super) fn causal_conv(cpu: &mut Cpu, op: CausalConv, spans: &[Span]) {
    let mut out = cpu.take(op.out.buf);
    for span in spans {
        let state = cpu.take_cache(span.sequence, op.cache);
        let CacheState::Conv(mut conv) = state else { panic!("a convolution needs its history") };
        let (x, weight) = (cpu.buf(op.x.buf), cpu.vector(op.weight));
        for row in span.rows.clone() {
            let start = row * out.width + op.out.start;
            let out = &mut out.data[start..start + op.out.len];
            conv.step(cpu.isa, out, x.cols(row, op.x), weight);
        }
        *cpu.cache_slot(span.sequence, op.cache) = CacheState::Conv(conv);
    }
    cpu.put(op.out.buf, out);
}

pub(super) fn delta_rule(cpu: &mut Cpu, op: DeltaRule, spans: &[Span]) {
    let (q, k) = normalised_keys(cpu, &op, n_rows(spans));
    let mut out = cpu.take(op.out.buf);
    for span in spans {
        let state = cpu.take_cache(span.sequence, op.cache);
        let CacheState::Delta(mut state) = state else { panic!("a delta rule needs its state") };
        let head_state = op.v.head_dim * op.k.head_dim;
        let width = out.width;
        let shared = SharedMut::new(&mut out.data);
        let cost = span.rows.len() * head_state * 2;
        for_each_chunk(&cpu.pool, &mut state, head_state, cost, &|head, state| {
            let k_head = head / (op.v.n_heads / op.k.n_heads);
            for row in span.rows.clone() {
                let gates = gates(cpu, &op, row, head);
                let at = (row * op.k.n_heads + k_head) * op.k.head_dim;
                let start = row * width + op.out.start + head * op.out.stride;
                // SAFETY: a head is worked on by one task, and the columns of
                // different heads and rows do not overlap.
                let out = unsafe { shared.slice(start..start + op.out.head_dim) };
                let step = delta::Step {
                    out,
                    q: &q[at..at + op.k.head_dim],
                    k: &k[at..at + op.k.head_dim],
                    v: cpu.buf(op.v.buf).head(row, op.v, head),
                    decay: gates.0,
                    beta: gates.1,
                };
                delta::step(cpu.isa, state, step);
            }
        });
        *cpu.cache_slot(span.sequence, op.cache) = CacheState::Delta(state);
    }
    cpu.put(op.out.buf, out);
}

/// Queries and keys of length one, `(rows, n_k_heads, k_dim)`, queries divided
/// by `sqrt(k_dim)`.
fn normalised_keys(cpu: &Cpu, op: &DeltaRule, rows: usize) -> (Vec<f32>, Vec<f32>) {
    let (n_heads, k_dim) = (op.k.n_heads, op.k.head_dim);
    let normalise = |heads: crate::Heads, factor: f32| {
        let mut out = vec![0.0; rows * n_heads * k_dim];
        for_each_chunk(&cpu.pool, &mut out, k_dim, 2 * k_dim, &|i, out| {
            let x = cpu.buf(heads.buf).head(i / n_heads, heads, i % n_heads);
            delta::l2_normalise(cpu.isa, out, x, factor);
        });
        out
    };
    (normalise(op.q, 1.0 / (k_dim as f32).sqrt()), normalise(op.k, 1.0))
}

/// Decay and beta of one head at one row.
fn gates(cpu: &Cpu, op: &DeltaRule, row: usize, head: usize) -> (f32, f32) {
    let a = cpu.buf(op.a.buf).cols(row, op.a)[head];
    let b = cpu.buf(op.b.buf).cols(row, op.b)[head];
    let rate = math::exp(cpu.vector(op.a_log)[head]);
    let decay = math::exp(-rate * math::softplus(a + cpu.vector(op.dt_bias)[head]));
    (decay, math::sigmoid(b))
}
