//! Recurrent ops: they read and replace a sequence's states.

use moeflux_backend::{CausalConv, DeltaRule, Span};

use super::{ELEMENTS, word};
use crate::backend::Wgpu;
use crate::caches::CacheState;
use crate::encoder::Grid;
use crate::shader::{Shader, Variant};

/// Rows whose queries and keys are prepared together.
const DELTA_ROWS: usize = 1024;

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
    let lanes = word(k_dim.next_power_of_two()).min(b.encoder.context().lanes);
    let kept = k_dim.div_ceil(lanes as usize);
    let params = [
        word(n_k_heads),
        word(n_v_heads),
        word(k_dim),
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
    let per_group = ELEMENTS / lanes as usize;
    b.encoder.dispatch(
        Variant::new(Shader::Delta, &[lanes, word(kept)]),
        &params,
        &[&y.mem, &normalised, &gates, &v_buf.mem, &state],
        Grid::Linear((n_v_heads * v_dim).div_ceil(per_group)),
    );
}
