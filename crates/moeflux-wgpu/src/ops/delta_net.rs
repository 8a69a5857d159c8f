//! The gated delta net: convolution, delta rule and gated norm, fused for spans of a few rows.

use crate::ops::conv::conv_dims;
use crate::ops::delta_rule::DecayWords;
use crate::ops::delta_rule::assert_shape;
use crate::ops::delta_rule::state_shape;
use crate::ops::spans::FEW_ROWS;
use crate::ops::spans::MOST_PACKED;
use crate::ops::spans::SpanWords;
use crate::ops::spans::Together;
use crate::ops::spans::packed;
use crate::ops::spans::together;
use crate::ops::spans::with_spans;
use crate::state::prerecorded;
use moeflux_backend::{
    Cache, CausalConv, Cols, DeltaNet, DeltaRule, GateFunction, Ops, Span, StateSnapshot,
};

use crate::commands::grid::Grid;
use crate::kernels::recurrent::{DeltaMixer, DeltaStep, StateShape, StepShape};
use crate::ops::matmul::quantize::{FusedQuant, QuantSpan, fused_quant};
use crate::state::gpu::Wgpu;
use crate::words::{n_rows, word};

/// Fours of a state that a thread of `delta_net/step.wgsl` has room for.
const MOST_KEPT: usize = 24;

/// Its threads.
const MIXER_THREADS: usize = 256;

/// The whole mixer: spans of a few rows together in one kernel, or in two, others part by
/// part.
pub(crate) fn delta_net(b: &mut Wgpu, op: DeltaNet, spans: &[Span]) {
    if !b.take_state_slots(spans, &[op.conv.cache, op.delta.cache]) {
        return;
    }
    let filled = spans.iter().filter(|span| !span.rows.is_empty()).cloned();
    let (few, many): (Vec<Span>, Vec<Span>) = filled.partition(|span| span.rows.len() <= FEW_ROWS);
    let is_one = b.fuses && fits_one(&op) && few.iter().all(|span| span.rows.end <= MOST_PACKED);
    let can_keep = is_one && keeps_in_place(b, &few, [op.delta.cache, op.conv.cache]);
    let keeps = few.iter().any(|span| StateSnapshot::of(&b.keep, span).is_some());
    if few.is_empty() || !fits_step(b, &op) || (keeps && !can_keep) {
        return op.run_parts(b, spans);
    }
    if !many.is_empty() {
        // The norm goes over rows of the others too: these are written after it.
        op.run_parts(b, &many);
    }
    let out = op.norm.norm.out;
    b.written(out.buf);
    if !is_one {
        b.causal_conv(op.conv, &few);
        for group in together(b, few.iter(), [op.delta.cache], &[]) {
            delta_step(b, &op, &group);
        }
        return;
    }
    let fused_quant =
        if many.is_empty() { fused_quant(b, out, n_rows(spans), QuantSpan::Head) } else { None };
    let keep = b.keep.clone();
    for group in together(b, few.iter(), [op.delta.cache, op.conv.cache], &keep) {
        delta_mixer(b, &op, &group, fused_quant.as_ref());
    }
    few.iter().for_each(|span| prerecorded::swap_buffers(b, span.sequence, op.conv.cache));
}

/// Whether what is kept of spans has places in the slabs that it comes from.
fn keeps_in_place(b: &Wgpu, spans: &[Span], caches: [Cache; 2]) -> bool {
    let kept = spans.iter().filter_map(|span| StateSnapshot::of(&b.keep, span));
    kept.flat_map(|StateSnapshot { sequence, to, .. }| {
        caches.map(|cache| [sequence, to].map(|sequence| b.state(sequence, cache)))
    })
    .all(|[from, to]| from.slab.id == to.slab.id)
}

/// Whether `delta_net/step.wgsl` has bindings and room for it.
fn fits_step(backend: &Wgpu, op: &DeltaNet) -> bool {
    let DeltaRule { out, q, k, v, .. } = op.delta;
    let (norm, gate) = (op.norm.norm, op.norm.gate);
    let state = state_shape(backend, k.head_dim);
    state.fours as usize * passes(&state, v.head_dim) <= MOST_KEPT
        && q.buf == k.buf
        && k.buf == v.buf
        && norm.x == out
        && !op.norm.gates_input
        && ![v.buf, op.delta.a.buf, op.delta.b.buf, gate.buf].contains(&norm.out.buf)
}

/// Passes of a workgroup of `delta_net/step.wgsl` over a head's values.
fn passes(state: &StateShape, v_dim: usize) -> usize {
    v_dim.div_ceil(MIXER_THREADS / state.row_lanes as usize)
}

/// Whether it may convolve too: what it reads is in two buffers, or in one, and heads have all channels.
fn fits_one(op: &DeltaNet) -> bool {
    let DeltaRule { q, k, v, a, b, .. } = op.delta;
    let (x, out) = (op.conv.x, op.conv.out);
    let columns = |start, n_heads, head_dim| Cols { buf: out.buf, start, len: n_heads * head_dim };
    let k_cols = k.n_heads * k.head_dim;
    let are_all = q == columns(out.start, k.n_heads, k.head_dim).heads(k.n_heads)
        && k == columns(out.start + k_cols, k.n_heads, k.head_dim).heads(k.n_heads)
        && v == columns(out.start + 2 * k_cols, v.n_heads, v.head_dim).heads(v.n_heads)
        && out.len == 2 * k_cols + v.n_heads * v.head_dim;
    op.conv.bias.is_none() && are_all && x.buf == b.buf && a.buf == op.norm.gate.buf
}

/// What both kernels of `delta_net/step.wgsl` have in common.
struct StepParts {
    /// Parameters without those of spans.
    params: Vec<u32>,
    state: StateShape,
    step: StepShape,
}

fn step_parts(b: &Wgpu, op: &DeltaNet) -> StepParts {
    let DeltaRule { q, k, v, a, b: beta, .. } = op.delta;
    let (norm, gate) = (op.norm.norm, op.norm.gate);
    let (k_dim, v_dim) = (k.head_dim, v.head_dim);
    assert_eq!(a.len, v.n_heads * op.delta.decay.len(k_dim), "decays of a delta rule");
    let decay = DecayWords::of(op.delta.decay);
    let width = |buf| word(b.buf(buf).width);
    let params = vec![
        word(k.n_heads),
        word(v.n_heads),
        width(v.buf),
        word(q.start),
        word(q.stride),
        word(k.start),
        word(k.stride),
        word(v.start),
        word(v.stride),
        word(a.start),
        width(a.buf),
        word(beta.start),
        width(beta.buf),
        word(gate.start),
        width(gate.buf),
        word(gate.stride),
        word(norm.out.start),
        width(norm.out.buf),
        word(norm.out.stride),
        norm.eps.to_bits(),
        word(k_dim),
        word(v_dim),
        word(op.conv.x.start),
        word(op.conv.x.len),
        word(op.delta.head_divisor()),
        decay.bound,
    ];
    let state = state_shape(b, k_dim);
    let step = StepShape {
        v_dim: word(v_dim),
        passes: word(passes(&state, v_dim)),
        is_sigmoid: op.norm.function == GateFunction::Sigmoid,
        decay: decay.kind,
    };
    StepParts { params, state, step }
}

fn delta_step(b: &mut Wgpu, op: &DeltaNet, Together { states, spans, .. }: &Together<1>) {
    b.encoder.begin();
    let [state] = states;
    assert_shape(state, &op.delta);
    let StepParts { params, state: state_shape, step } = step_parts(b, op);
    let DeltaRule { v, a, b: beta, of_heads, .. } = op.delta;
    let (norm, gate) = (op.norm.norm, op.norm.gate);
    let [x, decays, strengths, z, y] =
        [v.buf, a.buf, beta.buf, gate.buf, norm.out.buf].map(|buf| b.buf(buf).mem.clone());
    let [of_heads, weight] = [of_heads, norm.weight].map(|vector| b.vector(vector).clone());
    b.encoder.dispatch(
        DeltaStep { state: state_shape, step },
        &with_spans(params, spans),
        &[&y, &x, &decays, &strengths, &of_heads, &z, &weight, &state.slab],
        Grid::Plane(v.n_heads, spans.len()),
    );
}

fn delta_mixer(
    b: &mut Wgpu,
    op: &DeltaNet,
    Together { states, spans, kept }: &Together<2>,
    fused_quant: Option<&FusedQuant>,
) {
    b.encoder.begin();
    let [state, history] = states;
    assert_shape(state, &op.delta);
    let StepParts { mut params, state: state_shape, step } = step_parts(b, op);
    let DeltaRule { k, v, a, of_heads, .. } = op.delta;
    let CausalConv { x, weight: taps, .. } = op.conv;
    let (n_kept, channels) = conv_dims(history);
    assert_eq!(x.len, channels, "channels");
    params[2] = word(b.buf(x.buf).width);
    let (quant, quantized, sums) = FusedQuant::or_unused(fused_quant, b);
    let n_own = 2 * k.head_dim + v.head_dim;
    let kernel = DeltaMixer {
        state: state_shape,
        step,
        quant,
        taps: word(n_kept),
        channels: word(n_own),
        per_thread: word(n_own.div_ceil(MIXER_THREADS)),
    };
    let [x, gates, y] = [x.buf, a.buf, op.norm.norm.out.buf].map(|buf| b.buf(buf).mem.clone());
    let vectors = [of_heads, op.norm.norm.weight, taps];
    let [of_heads, weight, taps] = vectors.map(|vector| b.vector(vector).clone());
    let (state, histories) = (&state.slab, &history.slab);
    let spans: Vec<SpanWords> =
        spans.iter().zip(kept).map(|(span, kept)| packed(span, kept)).collect();
    b.encoder.dispatch(
        kernel,
        &with_spans(params, &spans),
        &[&y, &x, &gates, &of_heads, &weight, state, &taps, histories, &quantized, &sums],
        Grid::Plane(v.n_heads, spans.len()),
    );
}
