//! Ops on residuals of several streams.

use super::elementwise::add_scaled;
use super::isa::for_every_isa;
use super::math::{dot, exp, sigmoid};
use super::state::Cpu;
use crate::{
    BlendStreams, Cols, JoinStreams, MixStreams, SimilarityGate, StreamShares, WeighStreams,
};

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

pub(super) fn stream_shares(cpu: &mut Cpu, rows: usize, op: StreamShares) {
    op.assert_fits();
    let isa = cpu.isa;
    let cost = 64 * op.out.len * op.n_rounds;
    cpu.for_each_row(rows, op.out, cost, &|cpu, row, values| {
        values.copy_from_slice(cpu.buf(op.logits.buf).cols(row, op.logits));
        shares(isa, values, cpu.vector(op.of_logits), op);
    });
}

pub(super) fn weigh_streams(cpu: &mut Cpu, rows: usize, op: WeighStreams) {
    let WeighStreams { out, streams, shares } = op;
    let n = streams.n_heads;
    assert!(
        streams.head_dim == out.len && shares.is_none_or(|shares| shares.len == n),
        "a share for every stream"
    );
    let isa = cpu.isa;
    cpu.for_each_row(rows, out, 2 * out.len * n, &|cpu, row, values| {
        let shares = shares.map(|shares| cpu.buf(shares.buf).cols(row, shares));
        values.fill(0.0);
        for stream in 0..n {
            let share = shares.map_or(1.0, |shares| shares[stream]);
            add_scaled(isa, values, cpu.buf(streams.buf).head(row, streams, stream), share);
        }
        if shares.is_none() {
            divide(isa, values, n as f32);
        }
    });
}

pub(super) fn blend_streams(cpu: &mut Cpu, rows: usize, op: BlendStreams) {
    let BlendStreams { streams, x, shares } = op;
    let (n, dim) = (streams.n_heads, streams.head_dim);
    assert!(n <= StreamShares::MOST, "few streams");
    assert!(
        shares.len == n * (n + 1) && x.len == dim && streams.stride == dim,
        "shares of streams"
    );
    let isa = cpu.isa;
    let all = Cols { buf: streams.buf, start: streams.start, len: n * dim };
    cpu.for_each_row(rows, all, 2 * n * all.len, &|cpu, row, values| {
        let x = cpu.buf(x.buf).cols(row, x);
        blend(isa, values, x, cpu.buf(shares.buf).cols(row, shares));
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
    /// Turns the logits of a row into shares.
    fn shares(all: &mut [f32], of_logits: &[f32], op: StreamShares) {
        let n = op.n_streams;
        let (scales, base) = of_logits.split_at(op.n_parts());
        let (read, others) = all.split_at_mut(n);
        for (value, base) in read.iter_mut().zip(base) {
            *value = sigmoid(value.mul_add(scales[0], *base)) + op.eps;
        }
        if others.is_empty() {
            return;
        }
        let (write, mix) = others.split_at_mut(n);
        for (value, base) in write.iter_mut().zip(&base[n..]) {
            *value = 2.0 * sigmoid(value.mul_add(scales[1], *base));
        }
        for (value, base) in mix.iter_mut().zip(&base[2 * n..]) {
            *value = value.mul_add(scales[2], *base);
        }
        for row in mix.chunks_exact_mut(n) {
            softmax(row, op.eps);
        }
        divide_columns(mix, n, op.eps);
        for _ in 1..op.n_rounds {
            for row in mix.chunks_exact_mut(n) {
                let sum = row.iter().sum::<f32>() + op.eps;
                row.iter_mut().for_each(|value| *value /= sum);
            }
            divide_columns(mix, n, op.eps);
        }
    }
}

/// Probabilities of logits, and `eps`.
#[inline(always)]
fn softmax(row: &mut [f32], eps: f32) {
    // A comparison that lets NaN pass.
    let highest = row.iter().fold(row[0], |a, b| if *b < a { a } else { *b });
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = exp(*value - highest);
        sum += *value;
    }
    for value in row {
        *value = *value / sum + eps;
    }
}

/// Divides the columns of a matrix of `n` columns by their sums.
#[inline(always)]
fn divide_columns(mix: &mut [f32], n: usize, eps: f32) {
    for column in 0..n {
        let mut sum = 0.0;
        for row in 0..n {
            sum += mix[row * n + column];
        }
        sum += eps;
        for row in 0..n {
            mix[row * n + column] /= sum;
        }
    }
}

/// Columns that are blended together.
const BLOCK: usize = 64;

for_every_isa! {
    /// Mixes streams side by side, and adds `x` to each.
    fn blend(all: &mut [f32], x: &[f32], shares: &[f32]) {
        let dim = x.len();
        let n = all.len() / dim;
        let (write, mix) = shares.split_at(n);
        let mut before = [[0.0; BLOCK]; StreamShares::MOST];
        for start in (0..dim).step_by(BLOCK) {
            let block = start..dim.min(start + BLOCK);
            for (stream, before) in all.chunks_exact(dim).zip(&mut before) {
                before[..block.len()].copy_from_slice(&stream[block.clone()]);
            }
            for (j, stream) in all.chunks_exact_mut(dim).enumerate() {
                let out = &mut stream[block.clone()];
                for (out, x) in out.iter_mut().zip(&x[block.clone()]) {
                    *out = write[j] * x;
                }
                for (i, before) in before[..n].iter().enumerate() {
                    let share = mix[i * n + j];
                    for (out, x) in out.iter_mut().zip(before) {
                        *out = share.mul_add(*x, *out);
                    }
                }
            }
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
