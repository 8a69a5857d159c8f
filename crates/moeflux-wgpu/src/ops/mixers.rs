//! Recurrent ops: they read and replace a sequence's states.

use moeflux_backend::{
    Cache, CacheSpec, CausalConv, Cols, DeltaNet, DeltaRule, Ops, Span, SplitSpans, StateSnapshot,
};

use super::rounding::{Beside, Share, beside};
use crate::ahead;
use crate::caches::State;
use crate::grid::Grid;
use crate::shader::{Shader, Variant};
use crate::state::Wgpu;
use crate::words::{ELEMENTS, n_rows, word};

/// Rows whose queries and keys are prepared together.
const DELTA_ROWS: usize = 1024;

/// Rows of a span up to which a kernel goes through them one by one, where it
/// takes the place of several.
const FEW_ROWS: usize = 8;

/// Fours of a state that a thread of `delta_step.wgsl` has room for.
const MOST_KEPT: usize = 24;

/// Its threads.
const MIXER_THREADS: usize = 256;

/// Spans that one of the kernels for few rows goes through at once.
const MOST_SPANS: usize = 8;

/// What a kernel for few rows is told of a span: its first row, its rows, and the
/// numbers of its states in their slabs.
type SpanWords = [u32; 4];

/// What the one for whole mixers is told beside that, in the upper halves of these words:
/// behind how many rows states are kept, zero where none are, and the numbers of what gets
/// them.
type KeptWords = [u32; 4];

/// Spans whose states lie in the same slabs, for one kernel.
struct Together<const N: usize> {
    /// Those of the first span.
    states: [State; N],
    spans: Vec<SpanWords>,
    kept: Vec<KeptWords>,
}

/// Shares spans, of as many sequences, out among kernels for few rows, which need a
/// state of each cache, and keep some on the way.
fn together<'a, const N: usize>(
    b: &Wgpu,
    spans: impl Iterator<Item = &'a Span>,
    caches: [Cache; N],
    keep: &[StateSnapshot],
) -> Vec<Together<N>> {
    let mut all: Vec<Together<N>> = Vec::new();
    for span in spans {
        let states = caches.map(|it| b.state(span.sequence, it));
        let mut words = [word(span.rows.start), word(span.rows.len()), 0, 0];
        for (it, state) in words[2..].iter_mut().zip(&states) {
            *it = word(state.nth);
        }
        let mut kept = KeptWords::default();
        if let Some(StateSnapshot { rows, to, .. }) = StateSnapshot::of(keep, span) {
            kept[1] = word(rows);
            for (it, cache) in kept[2..].iter_mut().zip(caches) {
                *it = word(b.state(to, cache).nth);
            }
        }
        let goes_along = |it: &&mut Together<N>| {
            let mut slabs = it.states.iter().zip(&states);
            it.spans.len() < MOST_SPANS && slabs.all(|(one, other)| one.slab.id == other.slab.id)
        };
        match all.iter_mut().find(goes_along) {
            Some(it) => {
                it.spans.push(words);
                it.kept.push(kept);
            }
            None => all.push(Together { states, spans: vec![words], kept: vec![kept] }),
        }
    }
    all
}

/// Parameters with those of spans behind them, as uniforms lie.
fn with_spans(mut params: Vec<u32>, spans: &[SpanWords]) -> Vec<u32> {
    params.resize(params.len().next_multiple_of(4), 0);
    params.extend(spans.iter().flatten());
    params
}

/// What a half of a word tells at most.
const MOST_PACKED: usize = 0xffff;

/// Both in one.
fn packed((span, kept): (&SpanWords, &KeptWords)) -> SpanWords {
    let fits = |it: &u32| *it as usize <= MOST_PACKED;
    assert!(span.iter().chain(kept).all(fits), "few rows, and few states in a slab");
    std::array::from_fn(|i| span[i] | kept[i] << 16)
}

/// Runs an op over spans, and keeps what is to be kept of a cache on the way.
fn keeping(b: &mut Wgpu, cache: Cache, spans: &[Span], run: &dyn Fn(&mut Wgpu, &[Span])) {
    let Some(SplitSpans { before, after, snapshots }) = StateSnapshot::split(&b.keep, spans) else {
        return run(b, spans);
    };
    run(b, &before);
    for StateSnapshot { sequence, to, .. } in snapshots {
        let (from, to) = (b.state(sequence, cache), b.state(to, cache));
        from.copy_to(&mut b.encoder, &to);
    }
    run(b, &after);
}

/// The taps of a convolution but for the newest, and its channels.
fn conv_dims(state: &State) -> (usize, usize) {
    let CacheSpec::Conv { channels, kernel } = state.spec else {
        panic!("a convolution needs its history")
    };
    (kernel - 1, channels)
}

pub(crate) fn causal_conv(b: &mut Wgpu, op: CausalConv, spans: &[Span]) {
    let CausalConv { out, x, cache, .. } = op;
    assert!(out.buf != x.buf, "an op writes a buffer that it also reads");
    let y = b.written(out.buf);
    assert!(out.start + out.len <= y.width, "columns lie inside their buffer");
    if b.take_rooms(spans, &[cache]) {
        keeping(b, cache, spans, &|b, spans| convolve(b, &op, spans));
    }
}

fn convolve(b: &mut Wgpu, op: &CausalConv, spans: &[Span]) {
    let (few, many): (Vec<&Span>, Vec<&Span>) =
        spans.iter().filter(|it| !it.rows.is_empty()).partition(|it| it.rows.len() <= FEW_ROWS);
    for it in together(b, few.into_iter(), [op.cache], &[]) {
        conv_step(b, op, &it);
    }
    for span in many {
        conv_rows(b, op, span);
    }
}

fn conv_step(b: &mut Wgpu, op: &CausalConv, Together { states, spans, .. }: &Together<1>) {
    b.encoder.begin();
    let CausalConv { out, x, weight, .. } = *op;
    let [history] = states;
    let (n_kept, channels) = conv_dims(history);
    assert!(x.len == channels && out.len == channels, "channels");
    let [x_buf, y] = [x.buf, out.buf].map(|it| b.buf(it).clone());
    let params =
        vec![word(channels), word(x.start), word(x_buf.width), word(out.start), word(y.width)];
    let weight = b.vector(weight).clone();
    b.encoder.dispatch(
        Variant::new(Shader::ConvStep, &[word(n_kept)]),
        &with_spans(params, spans),
        &[&y.mem, &x_buf.mem, &weight, &history.slab],
        Grid::Plane(channels.div_ceil(ELEMENTS), spans.len()),
    );
}

/// A convolution of many rows.
fn conv_rows(b: &mut Wgpu, op: &CausalConv, span: &Span) {
    b.encoder.begin();
    let CausalConv { out, x, weight, cache } = *op;
    let history = b.state(span.sequence, cache);
    let (n_kept, channels) = conv_dims(&history);
    assert!(x.len == channels && out.len == channels, "channels");
    let [x_buf, y] = [x.buf, out.buf].map(|it| b.buf(it).clone());
    let n = span.rows.len() * channels;
    let params = [
        word(n),
        word(channels),
        word(n_kept + 1),
        word(span.rows.start),
        word(x.start),
        word(x_buf.width),
        word(out.start),
        word(y.width),
        word(history.nth),
    ];
    let weight = b.vector(weight).clone();
    b.encoder.dispatch(
        Variant::new(Shader::Conv, &[]),
        &params,
        &[&y.mem, &x_buf.mem, &weight, &history.slab],
        Grid::Linear(n.div_ceil(ELEMENTS)),
    );
    let params = [
        word(channels),
        word(n_kept),
        word(span.rows.start),
        word(span.rows.len()),
        word(x.start),
        word(x_buf.width),
        word(history.nth),
    ];
    b.encoder.dispatch(
        Variant::new(Shader::ConvHistory, &[]),
        &params,
        &[&history.slab, &x_buf.mem],
        Grid::Linear(channels.div_ceil(ELEMENTS)),
    );
}

pub(crate) fn delta_rule(b: &mut Wgpu, op: DeltaRule, spans: &[Span]) {
    assert!(op.out.buf != op.v.buf, "an op writes a buffer that it also reads");
    b.written(op.out.buf);
    if b.take_rooms(spans, &[op.cache]) {
        keeping(b, op.cache, spans, &|b, spans| replace_states(b, &op, spans));
    }
}

fn replace_states(b: &mut Wgpu, op: &DeltaRule, spans: &[Span]) {
    for span in spans {
        let rows = span.rows.clone();
        for first in rows.clone().step_by(DELTA_ROWS) {
            let n = DELTA_ROWS.min(rows.end - first);
            delta_rows(b, op, span, first, n);
        }
    }
}

fn delta_rows(b: &mut Wgpu, op: &DeltaRule, span: &Span, first: usize, n: usize) {
    b.encoder.begin();
    let state = b.state(span.sequence, op.cache);
    let DeltaRule { out, q, k, v, a, b: beta, a_log, dt_bias, .. } = *op;
    let (n_k_heads, n_v_heads) = (k.n_heads, v.n_heads);
    let (k_dim, v_dim) = (k.head_dim, v.head_dim);
    assert_shape(&state, op);
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
        word(state.nth),
    ];
    b.encoder.dispatch(
        Variant::new(Shader::Delta, &rows_consts(k_dim)),
        &params,
        &[&y.mem, &normalised, &gates, &v_buf.mem, &state.slab],
        Grid::Linear(n_v_heads * (4 * v_dim).div_ceil(ELEMENTS)),
    );
}

fn assert_shape(state: &State, DeltaRule { k, v, .. }: &DeltaRule) {
    let want = CacheSpec::Delta { n_heads: v.n_heads, k_dim: k.head_dim, v_dim: v.head_dim };
    assert_eq!(state.spec, want, "a delta rule needs a state of its shape");
}

/// Floats of a state that are read at once, those of a row, and how many fours of
/// these a lane has.
fn state_consts(k_dim: usize) -> [u32; 3] {
    let width = if k_dim.is_multiple_of(4) { 4 } else { 1 };
    [width, word(k_dim), word(k_dim.div_ceil(16))]
}

/// The constants of `delta.wgsl`: a state's, rows of the batch that a step takes, as many
/// as 8 KiB hold twice (one of the 512 columns that configs may ask for), and fours that a
/// thread loads of them.
fn rows_consts(k_dim: usize) -> [u32; 5] {
    let [width, k_words, kept] = state_consts(k_dim);
    let rows = (32 / kept).clamp(1, 4);
    [width, k_words, kept, rows, (8 * kept * rows).div_ceil(word(ELEMENTS))]
}

/// The whole mixer: spans of a few rows together in one kernel, or in two, others part by
/// part.
pub(crate) fn delta_net(b: &mut Wgpu, op: DeltaNet, spans: &[Span]) {
    if !b.take_rooms(spans, &[op.conv.cache, op.delta.cache]) {
        return;
    }
    let filled = spans.iter().filter(|it| !it.rows.is_empty()).cloned();
    let (few, many): (Vec<Span>, Vec<Span>) = filled.partition(|it| it.rows.len() <= FEW_ROWS);
    let is_one = b.fuses && fits_one(&op) && few.iter().all(|it| it.rows.end <= MOST_PACKED);
    let can_keep = is_one && keeps_in_place(b, &few, [op.delta.cache, op.conv.cache]);
    let keeps = few.iter().any(|it| StateSnapshot::of(&b.keep, it).is_some());
    if few.is_empty() || !fits_step(&op) || (keeps && !can_keep) {
        return op.run_parts(b, spans);
    }
    if !many.is_empty() {
        // The norm goes over rows of the others too: these are written behind it.
        op.run_parts(b, &many);
    }
    let out = op.norm.norm.out;
    b.written(out.buf);
    if !is_one {
        b.causal_conv(op.conv, &few);
        for it in together(b, few.iter(), [op.delta.cache], &[]) {
            delta_step(b, &op, &it);
        }
        return;
    }
    let beside = match many.is_empty() {
        true => beside(b, out, n_rows(spans), Share::Head),
        false => None,
    };
    let keep = b.keep.clone();
    for it in together(b, few.iter(), [op.delta.cache, op.conv.cache], &keep) {
        delta_mixer(b, &op, &it, beside.as_ref());
    }
    few.iter().for_each(|it| ahead::turn(b, it.sequence, op.conv.cache));
}

/// Whether what is kept of spans has places in the slabs that it comes from.
fn keeps_in_place(b: &Wgpu, spans: &[Span], caches: [Cache; 2]) -> bool {
    let kept = spans.iter().filter_map(|it| StateSnapshot::of(&b.keep, it));
    kept.flat_map(|it| caches.map(|cache| [it.sequence, it.to].map(|it| b.state(it, cache))))
        .all(|[from, to]| from.slab.id == to.slab.id)
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

/// The parameters of `delta_step.wgsl` but for the spans', and its constants but for
/// the convolution's.
fn step_parts(b: &Wgpu, op: &DeltaNet) -> (Vec<u32>, [u32; 5]) {
    let DeltaRule { q, k, v, a, b: beta, .. } = op.delta;
    let (norm, gate) = (op.norm.norm, op.norm.gate);
    let (k_dim, v_dim) = (k.head_dim, v.head_dim);
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
        word(beta.start),
        width(a.buf),
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
    ];
    let [width, k_words, kept] = state_consts(k_dim);
    (params, [width, k_words, kept, word(v_dim), word(v_dim.div_ceil(ELEMENTS))])
}

fn delta_step(b: &mut Wgpu, op: &DeltaNet, Together { states, spans, .. }: &Together<1>) {
    b.encoder.begin();
    let [state] = states;
    assert_shape(state, &op.delta);
    let (params, consts) = step_parts(b, op);
    let DeltaRule { v, a, a_log, dt_bias, .. } = op.delta;
    let (norm, gate) = (op.norm.norm, op.norm.gate);
    let [x, decays, z, y] = [v.buf, a.buf, gate.buf, norm.out.buf].map(|it| b.buf(it).mem.clone());
    let [a_log, dt_bias, weight] = [a_log, dt_bias, norm.weight].map(|it| b.vector(it).clone());
    b.encoder.dispatch(
        Variant::new(Shader::DeltaStep, &consts),
        &with_spans(params, spans),
        &[&y, &x, &decays, &a_log, &dt_bias, &z, &weight, &state.slab],
        Grid::Plane(v.n_heads, spans.len()),
    );
}

fn delta_mixer(
    b: &mut Wgpu,
    op: &DeltaNet,
    Together { states, spans, kept }: &Together<2>,
    beside: Option<&Beside>,
) {
    b.encoder.begin();
    let [state, history] = states;
    assert_shape(state, &op.delta);
    let (mut params, own) = step_parts(b, op);
    let DeltaRule { k, v, a_log, dt_bias, .. } = op.delta;
    let CausalConv { x, weight: taps, .. } = op.conv;
    let (n_kept, channels) = conv_dims(history);
    assert_eq!(x.len, channels, "channels");
    params[2] = word(b.buf(x.buf).width);
    let (rounding, rounded, sums) = Beside::or_unused(beside, b);
    let n_own = 2 * k.head_dim + v.head_dim;
    let conv = [word(n_kept), word(n_own), word(n_own.div_ceil(MIXER_THREADS))];
    let consts = [&own[..], &rounding, &conv].concat();
    let [x, y] = [x.buf, op.norm.norm.out.buf].map(|it| b.buf(it).mem.clone());
    let vectors = [a_log, dt_bias, op.norm.norm.weight, taps];
    let [a_log, dt_bias, weight, taps] = vectors.map(|it| b.vector(it).clone());
    let (state, histories) = (&state.slab, &history.slab);
    let spans: Vec<SpanWords> = spans.iter().zip(kept).map(packed).collect();
    b.encoder.dispatch(
        Variant::new(Shader::DeltaMixer, &consts),
        &with_spans(params, &spans),
        &[&y, &x, &a_log, &dt_bias, &weight, state, &taps, histories, &rounded, &sums],
        Grid::Plane(v.n_heads, spans.len()),
    );
}
