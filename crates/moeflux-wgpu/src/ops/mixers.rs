//! Recurrent ops: they read and replace a sequence's states.

use moeflux_backend::{Backend, CausalConv, Cols, DeltaNet, DeltaRule, Span};

use super::rounding::{Beside, Share, beside};
use super::{ELEMENTS, n_rows, word};
use crate::ahead;
use crate::backend::Wgpu;
use crate::caches::CacheState;
use crate::encoder::{Grid, Mem};
use crate::shader::{Shader, Variant};

/// Rows whose queries and keys are prepared together.
const DELTA_ROWS: usize = 1024;

/// Rows of a span up to which a kernel goes through them one by one, where it
/// takes the place of several.
const FEW_ROWS: usize = 8;

/// Fours of a state that a thread of `delta_step.wgsl` has room for.
const MOST_KEPT: usize = 24;

/// Its threads.
const MIXER_THREADS: usize = 256;

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
            CacheState::Conv { history, channels, kernel, .. } => {
                (history.clone(), *channels, *kernel)
            }
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

/// The whole mixer: spans of a few rows in one kernel each, or in two.
pub(crate) fn delta_net(b: &mut Wgpu, op: DeltaNet, spans: &[Span]) {
    if !spans.iter().all(|it| it.rows.len() <= FEW_ROWS) || !fits_step(&op) {
        return op.run_parts(b, spans);
    }
    let is_one = b.fuses && fits_one(&op);
    if !is_one {
        b.causal_conv(op.conv, spans);
    }
    let out = op.norm.norm.out;
    b.written(out.buf);
    let beside = if is_one { beside(b, out, n_rows(spans), Share::Head) } else { None };
    for span in spans.iter().filter(|it| !it.rows.is_empty()) {
        b.encoder.begin();
        if is_one {
            delta_mixer(b, &op, span, beside.as_ref());
        } else {
            delta_step(b, &op, span);
        }
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

/// Whether it may convolve too: all that it reads lies in one buffer, and heads
/// have all channels.
fn fits_one(op: &DeltaNet) -> bool {
    let DeltaRule { q, k, v, a, .. } = op.delta;
    let (x, out) = (op.conv.x, op.conv.out);
    let columns = |start, n_heads, head_dim| Cols { buf: out.buf, start, len: n_heads * head_dim };
    let k_cols = k.n_heads * k.head_dim;
    let are_all = q == columns(out.start, k.n_heads, k.head_dim).heads(k.n_heads)
        && k == columns(out.start + k_cols, k.n_heads, k.head_dim).heads(k.n_heads)
        && v == columns(out.start + 2 * k_cols, v.n_heads, v.head_dim).heads(v.n_heads)
        && out.len == 2 * k_cols + v.n_heads * v.head_dim;
    are_all && x.buf == a.buf && x.buf == op.norm.gate.buf
}

/// The parameters of `delta_step.wgsl` but for the convolution's, its constants
/// but for these, and the state.
fn step_parts(b: &mut Wgpu, op: &DeltaNet, span: &Span) -> (Vec<u32>, [u32; 5], Mem) {
    let DeltaRule { q, k, v, a, b: beta, cache, .. } = op.delta;
    let (norm, gate) = (op.norm.norm, op.norm.gate);
    let CacheState::Delta(state) = b.cache(span.sequence, cache) else {
        panic!("a delta rule needs its state")
    };
    let state = state.clone();
    let (k_dim, v_dim) = (k.head_dim, v.head_dim);
    assert!(state.bytes() as usize >= 4 * v.n_heads * v_dim * k_dim, "a state of that shape");
    let width = |b: &Wgpu, buf| word(b.buf(buf).width);
    let params = vec![
        word(k.n_heads),
        word(v.n_heads),
        word(span.rows.start),
        word(span.rows.len()),
        width(b, v.buf),
        word(q.start),
        word(q.stride),
        word(k.start),
        word(k.stride),
        word(v.start),
        word(v.stride),
        word(a.start),
        word(beta.start),
        width(b, a.buf),
        word(gate.start),
        width(b, gate.buf),
        word(gate.stride),
        word(norm.out.start),
        width(b, norm.out.buf),
        word(norm.out.stride),
        norm.eps.to_bits(),
        word(k_dim),
        word(v_dim),
    ];
    let [width, k_words, kept] = state_consts(k_dim);
    (params, [width, k_words, kept, word(v_dim), word(v_dim.div_ceil(ELEMENTS))], state)
}

fn delta_step(b: &mut Wgpu, op: &DeltaNet, span: &Span) {
    let (params, consts, state) = step_parts(b, op, span);
    let DeltaRule { v, a, a_log, dt_bias, .. } = op.delta;
    let (norm, gate) = (op.norm.norm, op.norm.gate);
    let [x, decays, z, y] = [v.buf, a.buf, gate.buf, norm.out.buf].map(|it| b.buf(it).mem.clone());
    let [a_log, dt_bias, weight] = [a_log, dt_bias, norm.weight].map(|it| b.vector(it).clone());
    b.encoder.dispatch(
        Variant::new(Shader::DeltaStep, &consts),
        &params,
        &[&y, &x, &decays, &a_log, &dt_bias, &z, &weight, &state],
        Grid::Linear(v.n_heads),
    );
}

fn delta_mixer(b: &mut Wgpu, op: &DeltaNet, span: &Span, beside: Option<&Beside>) {
    let (mut params, own, state) = step_parts(b, op, span);
    let DeltaRule { k, v, a_log, dt_bias, .. } = op.delta;
    let CausalConv { x, weight: taps, cache, .. } = op.conv;
    let CacheState::Conv { history, spare, channels, kernel } = b.cache(span.sequence, cache)
    else {
        panic!("a convolution needs its history")
    };
    let (n_taps, n_channels) = (*kernel - 1, *channels);
    let histories = [history.clone(), spare.clone()];
    ahead::turn(b, span.sequence, cache);
    assert_eq!(x.len, n_channels, "channels");
    params[4] = word(b.buf(x.buf).width);
    params.extend([word(x.start), word(n_channels)]);
    let (rounding, rounded, sums) = Beside::or_unused(beside, b);
    let n_own = 2 * k.head_dim + v.head_dim;
    let conv = [word(n_taps), word(n_own), word(n_own.div_ceil(MIXER_THREADS))];
    let consts = [&own[..], &rounding, &conv].concat();
    let [x, y] = [x.buf, op.norm.norm.out.buf].map(|it| b.buf(it).mem.clone());
    let vectors = [a_log, dt_bias, op.norm.norm.weight, taps];
    let [a_log, dt_bias, weight, taps] = vectors.map(|it| b.vector(it).clone());
    let [before, after] = &histories;
    b.encoder.dispatch(
        Variant::new(Shader::DeltaMixer, &consts),
        &params,
        &[&y, &x, &a_log, &dt_bias, &weight, &state, &taps, before, after, &rounded, &sums],
        Grid::Linear(v.n_heads),
    );
}
