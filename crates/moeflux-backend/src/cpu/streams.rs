//! Ops on residuals of several streams.

use super::elementwise::add_scaled;
use super::isa::for_every_isa;
use super::math::{dot, sigmoid};
use super::state::Cpu;
use crate::{JoinStreams, MixStreams, SimilarityGate};

pub(super) fn mix_streams(cpu: &mut Cpu, rows: usize, op: MixStreams) {
    let MixStreams { out, streams, gates } = op;
    assert!(
        gates.n_heads == streams.n_heads
            && [streams, gates].iter().all(|heads| heads.head_dim == out.len),
        "a gate for every element of a stream"
    );
    let isa = cpu.isa;
    let cost = 8 * out.len * streams.n_heads;
    cpu.for_each_row(rows, out, cost, &|cpu, row, values| {
        values.fill(0.0);
        for stream in 0..streams.n_heads {
            let x = cpu.buf(streams.buf).head(row, streams, stream);
            add_gated(isa, values, x, cpu.buf(gates.buf).head(row, gates, stream));
        }
        divide(isa, values, streams.n_heads as f32);
    });
}

pub(super) fn join_streams(cpu: &mut Cpu, rows: usize, op: JoinStreams) {
    let JoinStreams { streams, x, gates, scale } = op;
    assert!(gates.len == streams.n_heads && x.len == streams.head_dim, "a gate for every stream");
    let isa = cpu.isa;
    cpu.for_each_head(rows, streams, &|cpu, row, stream, values| {
        let gate = cpu.buf(gates.buf).cols(row, gates)[stream];
        let mut factor = [0.0];
        join_factor(isa, &mut factor, gate * scale);
        add_scaled(isa, values, cpu.buf(x.buf).cols(row, x), factor[0]);
    });
}

pub(super) fn similarity_gate(cpu: &mut Cpu, rows: usize, op: SimilarityGate) {
    let SimilarityGate { out, a, b, x, scale } = op;
    assert!(
        a.n_heads == out.n_heads && b.n_heads == out.n_heads && a.head_dim == b.head_dim,
        "streams that are compared"
    );
    assert!(x.len == out.head_dim, "as many columns as a stream");
    let isa = cpu.isa;
    cpu.for_each_head(rows, out, &|cpu, row, stream, values| {
        let a = cpu.buf(a.buf).head(row, a, stream);
        let b = cpu.buf(b.buf).head(row, b, stream);
        gate_by_similarity(isa, values, a, b, cpu.buf(x.buf).cols(row, x), scale);
    });
}

for_every_isa! {
    /// `acc += sigmoid(gate) * x`, rounded once.
    fn add_gated(acc: &mut [f32], x: &[f32], gate: &[f32]) {
        for ((acc, x), gate) in acc.iter_mut().zip(x).zip(gate) {
            *acc = sigmoid(*gate).mul_add(*x, *acc);
        }
    }
}

for_every_isa! {
    fn divide(x: &mut [f32], divisor: f32) {
        for x in x {
            *x /= divisor;
        }
    }
}

for_every_isa! {
    fn join_factor(out: &mut [f32], gate: f32) {
        out[0] = 2.0 * sigmoid(gate);
    }
}

for_every_isa! {
    fn gate_by_similarity(out: &mut [f32], a: &[f32], b: &[f32], x: &[f32], scale: f32) {
        let similarity = dot(a, b) * scale;
        let magnitude = similarity.abs();
        // Comparisons that let NaN pass.
        let magnitude = if magnitude < 1e-6 { 1e-6 } else { magnitude };
        let root = magnitude.sqrt().copysign(similarity);
        let factor = sigmoid(if similarity == 0.0 { 0.0 } else { root });
        for (out, x) in out.iter_mut().zip(x) {
            *out = factor * x;
        }
    }
}
