//! Recurrent ops: they read and replace a sequence's states.

use moeflux_backend::{Backend, CausalConv, DeltaNet, DeltaRule, Span};

use super::{ELEMENTS, word};
use crate::backend::Wgpu;
use crate::caches::CacheState;
use crate::encoder::Grid;
use crate::shader::{Shader, Variant};

/// Rows whose queries and keys are prepared together.
const DELTA_ROWS: usize = 1024;

/// Rows of a span up to which a kernel goes through them one by one, where it
/// takes the place of several.
const FEW_ROWS: usize = 8;

/// Fours of a state that a thread of `delta_step.wgsl` has room for.
const MOST_KEPT: usize = 24;

pub(crate) fn causal_conv(b: &mut Wgpu, op: CausalConv, spans: &[Span]) {
    let CausalConv { out, x, weight, cache } = op;
    assert!(out.buf != x.buf, "an op writes a buffer that it also reads");
    let (y, x_buf) = (b.written(out.buf), b.buf(x.buf).clone());
    assert!(out.start + out.len <= y.width, "columns lie inside their buffer");
    let weight = b.vector(weight).clone();
    for span in spans {
        if span.rows.is_empty() {
            continue;
        }
        b.encoder.begin();
        let (history, channels, kernel) = match b.cache(span.sequence, cache) {
            CacheState::Conv { history, channels, kernel } => (history.clone(), *channels, *kernel),
            _ => panic!("a convolution needs its history"),
        };
        assert!(x.len == channels && out.len == channels, "channels");
        if span.rows.len() <= FEW_ROWS {
            let params = [
                word(channels),
                word(span.rows.start),
                word(span.rows.len()),
                word(x.start),
                word(x_buf.width),
                word(out.start),
                word(y.width),
            ];
            b.encoder.dispatch(
                Variant::new(Shader::ConvStep, &[word(kernel - 1)]),
                &params,
                &[&y.mem, &x_buf.mem, &weight, &history],
                Grid::Linear(channels.div_ceil(ELEMENTS)),
            );
            continue;
        }
        let n = span.rows.len() * channels;
        let params = [
            word(n),
            word(channels),
            word(kernel),
            word(span.rows.start),
            word(x.start),
            word(x_buf.width),
            word(out.start),
            word(y.width),
        ];
        b.encoder.dispatch(
            Variant::new(Shader::Conv, &[]),
            &params,
            &[&y.mem, &x_buf.mem, &weight, &history],
            Grid::Linear(n.div_ceil(ELEMENTS)),
        );
        let params = [
            word(channels),
            word(kernel - 1),
            word(span.rows.start),
            word(span.rows.len()),
            word(x.start),
            word(x_buf.width),
        ];
        b.encoder.dispatch(
            Variant::new(Shader::ConvHistory, &[]),
            &params,
            &[&history, &x_buf.mem],
            Grid::Linear(channels.div_ceil(ELEMENTS)),
        );
    }
}

pub(crate) fn delta_rule(b: &mut Wgpu, op: DeltaRule, spans: &[Span]) {
    assert!(op.out.buf != op.v.buf, "an op writes a buffer that it also reads");
    b.written(op.out.buf);
    for span in spans {
        let rows = span.rows.clone();
        for first in rows.clone().step_by(DELTA_ROWS) {
            let n = DELTA_ROWS.min(rows.end - first);
            delta_rows(b, &op, span, first, n);
        }
    }
}

fn delta_rows(b: &mut Wgpu, op: &DeltaRule, span: &Span, first: usize, n: usize) {
    b.encoder.begin();
    let CacheState::Delta(state) = b.cache(span.sequence, op.cache) else {
        panic!("a delta rule needs its state")
    };
    let state = state.clone();
    let DeltaRule { out, q, k, v, a, b: beta, a_log, dt_bias, .. } = *op;
    let (n_k_heads, n_v_heads) = (k.n_heads, v.n_heads);
    let (k_dim, v_dim) = (k.head_dim, v.head_dim);
    assert!(state.bytes() as usize >= 4 * n_v_heads * v_dim * k_dim, "a state of that shape");
    let normalised = b.scratch.delta[0].words(&mut b.encoder, n * n_k_heads * 2 * k_dim);
    let gates = b.scratch.delta[1].words(&mut b.encoder, n * n_v_heads * 2);
    let [q_buf, k_buf, v_buf, a_buf, b_buf, y] =
        [q.buf, k.buf, v.buf, a.buf, beta.buf, out.buf].map(|it| b.buf(it).clone());
    let (a_log, dt_bias) = (b.vector(a_log).clone(), b.vector(dt_bias).clone());
    let params = [
        word(n_k_heads),
        word(n_v_heads),
        word(k_dim),
        word(first),
        word(q.start),
        word(q_buf.width),
        word(q.stride),
        word(k.start),
        word(k_buf.width),
        word(k.stride),
        word(a.start),
        word(a_buf.width),
        word(beta.start),
        word(b_buf.width),
        word(n * n_k_heads),
    ];
    b.encoder.dispatch(
        Variant::new(Shader::PrepareDelta, &[]),
        &params,
        &[&q_buf.mem, &k_buf.mem, &a_buf.mem, &b_buf.mem, &a_log, &dt_bias, &normalised, &gates],
        Grid::Linear(n * n_k_heads),
    );
    let params = [
        word(n_k_heads),
        word(n_v_heads),
        word(v_dim),
        word(first),
        word(n),
        word(v.start),
        word(v_buf.width),
        word(v.stride),
        word(out.start),
        word(y.width),
        word(out.stride),
    ];
    b.encoder.dispatch(
        Variant::new(Shader::Delta, &state_consts(k_dim)),
        &params,
        &[&y.mem, &normalised, &gates, &v_buf.mem, &state],
        Grid::Linear((4 * n_v_heads * v_dim).div_ceil(ELEMENTS)),
    );
}

/// Floats of a state that are read at once, those of a row, and how many fours of
/// these a lane has.
fn state_consts(k_dim: usize) -> [u32; 3] {
    let width = if k_dim.is_multiple_of(4) { 4 } else { 1 };
    [width, word(k_dim), word(k_dim.div_ceil(16))]
}

/// The whole mixer: spans of a few rows in two kernels each.
pub(crate) fn delta_net(b: &mut Wgpu, op: DeltaNet, spans: &[Span]) {
    if !spans.iter().all(|it| it.rows.len() <= FEW_ROWS) || !fits_step(&op) {
        return op.run_parts(b, spans);
    }
    b.causal_conv(op.conv, spans);
    b.written(op.norm.norm.out.buf);
    for span in spans.iter().filter(|it| !it.rows.is_empty()) {
        delta_step(b, &op, span);
    }
}

/// Whether `delta_step.wgsl` has bindings and room for it.
fn fits_step(op: &DeltaNet) -> bool {
    let DeltaRule { out, q, k, v, a, b, .. } = op.delta;
    let (norm, gate) = (op.norm.norm, op.norm.gate);
    let n_kept = k.head_dim.div_ceil(16) * v.head_dim.div_ceil(64);
    n_kept <= MOST_KEPT
        && q.buf == k.buf
        && k.buf == v.buf
        && a.buf == b.buf
        && norm.x == out
        && ![v.buf, a.buf, gate.buf].contains(&norm.out.buf)
}

fn delta_step(b: &mut Wgpu, op: &DeltaNet, span: &Span) {
    b.encoder.begin();
    let DeltaRule { q, k, v, a, b: beta, a_log, dt_bias, cache, .. } = op.delta;
    let (norm, gate) = (op.norm.norm, op.norm.gate);
    let CacheState::Delta(state) = b.cache(span.sequence, cache) else {
        panic!("a delta rule needs its state")
    };
    let state = state.clone();
    let (k_dim, v_dim) = (k.head_dim, v.head_dim);
    assert!(state.bytes() as usize >= 4 * v.n_heads * v_dim * k_dim, "a state of that shape");
    let [x, decays, z, y] = [v.buf, a.buf, gate.buf, norm.out.buf].map(|it| b.buf(it).clone());
    let [a_log, dt_bias, weight] = [a_log, dt_bias, norm.weight].map(|it| b.vector(it).clone());
    let params = [
        word(k.n_heads),
        word(v.n_heads),
        word(span.rows.start),
        word(span.rows.len()),
        word(x.width),
        word(q.start),
        word(q.stride),
        word(k.start),
        word(k.stride),
        word(v.start),
        word(v.stride),
        word(a.start),
        word(beta.start),
        word(decays.width),
        word(gate.start),
        word(z.width),
        word(gate.stride),
        word(norm.out.start),
        word(y.width),
        word(norm.out.stride),
        norm.eps.to_bits(),
        word(k_dim),
        word(v_dim),
    ];
    let own = [word(v_dim), word(v_dim.div_ceil(ELEMENTS))];
    let consts = [&state_consts(k_dim)[..], &own].concat();
    b.encoder.dispatch(
        Variant::new(Shader::DeltaStep, &consts),
        &params,
        &[&y.mem, &x.mem, &decays.mem, &a_log, &dt_bias, &z.mem, &weight, &state],
        Grid::Linear(v.n_heads),
    );
}
