//! Causal convolution with a history per sequence.

use crate::ops::spans::FEW_ROWS;
use crate::ops::spans::Together;
use crate::ops::spans::keeping;
use crate::ops::spans::together;
use crate::ops::spans::with_spans;
use moeflux_backend::{CacheSpec, CausalConv, Span, StateShape};

use crate::commands::grid::Grid;
use crate::kernels::recurrent as kernels;
use crate::memory::caches::state_slots::State;
use crate::state::gpu::Wgpu;
use crate::words::{ELEMENTS, PER_ELEMENT, word};

/// Channels and rows that a workgroup of `conv/rows.wgsl` has.
const CHANNELS: usize = 256;
const ROWS: usize = 8;

/// The taps of a convolution but for the newest, and its channels.
pub(crate) fn conv_dims(state: &State) -> (usize, usize) {
    let CacheSpec::State(StateShape::Rows { n, cols }) = state.spec else {
        panic!("a convolution needs the rows before its input")
    };
    (n, cols)
}

pub(crate) fn causal_conv(b: &mut Wgpu, op: CausalConv, spans: &[Span]) {
    let CausalConv { out, x, cache, .. } = op;
    assert!(out.buf != x.buf, "an op writes a buffer that it also reads");
    let y = b.written(out.buf);
    assert!(out.start + out.len <= y.width, "columns are inside their buffer");
    if b.take_state_slots(spans, &[cache]) {
        keeping(b, cache, spans, &|b, spans| convolve(b, &op, spans));
    }
}

fn convolve(b: &mut Wgpu, op: &CausalConv, spans: &[Span]) {
    let (few, many): (Vec<&Span>, Vec<&Span>) = spans
        .iter()
        .filter(|span| !span.rows.is_empty())
        .partition(|span| span.rows.len() <= FEW_ROWS);
    for group in together(b, few.into_iter(), [op.cache], &[]) {
        conv_step(b, op, &group);
    }
    for span in many {
        conv_rows(b, op, span);
    }
}

fn conv_step(b: &mut Wgpu, op: &CausalConv, Together { states, spans, .. }: &Together<1>) {
    b.encoder.begin();
    let CausalConv { out, x, weight, bias, .. } = *op;
    let [history] = states;
    let (n_kept, channels) = conv_dims(history);
    assert!(x.len == channels && out.len == channels, "channels");
    let [x_buf, y] = [x.buf, out.buf].map(|buf| b.buf(buf).clone());
    let params =
        vec![word(channels), word(x.start), word(x_buf.width), word(out.start), word(y.width)];
    let weight = b.vector(weight).clone();
    let is_biased = bias.is_some();
    // What a kernel does not read may be anything that it reads elsewhere.
    let bias = bias.map_or_else(|| weight.clone(), |bias| b.vector(bias).clone());
    b.encoder.dispatch(
        kernels::ConvStep { n_kept: word(n_kept), is_biased },
        &with_spans(params, spans),
        &[&y.mem, &x_buf.mem, &weight, &history.slab, &bias],
        Grid::Plane(channels.div_ceil(ELEMENTS), spans.len()),
    );
}

/// A convolution of many rows.
fn conv_rows(b: &mut Wgpu, op: &CausalConv, span: &Span) {
    b.encoder.begin();
    let CausalConv { out, x, weight, bias, cache } = *op;
    let history = b.state(span.sequence, cache);
    let (n_kept, channels) = conv_dims(&history);
    assert!(x.len == channels && out.len == channels, "channels");
    let [x_buf, y] = [x.buf, out.buf].map(|buf| b.buf(buf).clone());
    let n_rows = span.rows.len();
    let params = [
        word(n_rows),
        word(channels),
        word(span.rows.start),
        word(x.start),
        word(x_buf.width),
        word(out.start),
        word(y.width),
        word(history.nth),
    ];
    let weight = b.vector(weight).clone();
    let is_biased = bias.is_some();
    let bias = bias.map_or_else(|| weight.clone(), |bias| b.vector(bias).clone());
    b.encoder.dispatch(
        kernels::Conv { n_kept: word(n_kept), is_biased },
        &params,
        &[&y.mem, &x_buf.mem, &weight, &history.slab, &bias],
        Grid::Plane(channels.div_ceil(CHANNELS), n_rows.div_ceil(ROWS)),
    );
    let params = [
        word(channels),
        word(n_kept),
        word(span.rows.start),
        word(n_rows),
        word(x.start),
        word(x_buf.width),
        word(history.nth),
    ];
    b.encoder.dispatch(
        kernels::ConvHistory {},
        &params,
        &[&history.slab, &x_buf.mem],
        Grid::Linear(channels.div_ceil(PER_ELEMENT)),
    );
}
