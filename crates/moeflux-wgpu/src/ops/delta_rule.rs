//! The gated delta rule over spans of any length.

use crate::ops::spans::keeping;
use moeflux_backend::{CacheSpec, Decay, DeltaRule, Span};

use crate::commands::grid::Grid;
use crate::kernels::recurrent::{DeltaRows, PrepareDelta, StateShape};
use crate::memory::caches::state_slots::State;
use crate::state::gpu::Wgpu;
use crate::words::word;

/// Rows whose queries and keys are prepared together.
const DELTA_ROWS: usize = 1024;

/// Threads of a workgroup of `delta_rule/rows.wgsl`.
const THREADS: usize = 128;

/// Most lanes that share a row of a state: on an H200 eight are faster than four.
const MOST_ROW_LANES: u32 = 8;

pub(crate) fn delta_rule(b: &mut Wgpu, op: DeltaRule, spans: &[Span]) {
    assert!(op.out.buf != op.v.buf, "an op writes a buffer that it also reads");
    b.written(op.out.buf);
    if b.take_state_slots(spans, &[op.cache]) {
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
    let DeltaRule { out, q, k, v, a, b: beta, of_heads, .. } = *op;
    let (n_k_heads, n_v_heads) = (k.n_heads, v.n_heads);
    let (k_dim, v_dim) = (k.head_dim, v.head_dim);
    assert_shape(&state, op);
    assert_eq!(a.len, n_v_heads * op.decay.len(k_dim), "decays of a delta rule");
    let decay = DecayWords::of(op.decay);
    let n_decays = if decay.kind == 0 { 0 } else { n_v_heads * k_dim };
    // Decays of columns stand behind all queries and keys.
    let decays = n * n_k_heads * 2 * k_dim;
    let normalised = b.scratch.delta[0].words(&mut b.encoder, decays + n * n_decays);
    let gates = b.scratch.delta[1].words(&mut b.encoder, n * n_v_heads * 2);
    let [q_buf, k_buf, v_buf, a_buf, b_buf, y] =
        [q.buf, k.buf, v.buf, a.buf, beta.buf, out.buf].map(|buf| b.buf(buf).clone());
    let of_heads = b.vector(of_heads).clone();
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
        word(decays),
        decay.bound,
    ];
    b.encoder.dispatch(
        PrepareDelta { decay: decay.kind },
        &params,
        &[&q_buf.mem, &k_buf.mem, &a_buf.mem, &b_buf.mem, &of_heads, &normalised, &gates],
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
        word(op.head_divisor()),
        word(decays),
    ];
    let kernel = rows_kernel(b, k_dim, if n_decays == 0 { 2 } else { 3 });
    let state_rows = THREADS / kernel.state.row_lanes as usize;
    b.encoder.dispatch(
        kernel,
        &params,
        &[&y.mem, &normalised, &gates, &v_buf.mem, &state.slab],
        Grid::Linear(n_v_heads * v_dim.div_ceil(state_rows)),
    );
}

pub(crate) fn assert_shape(state: &State, DeltaRule { k, v, .. }: &DeltaRule) {
    let (n, rows, cols) = (v.n_heads, v.head_dim, k.head_dim);
    let want = CacheSpec::State(moeflux_backend::StateShape::Matrices { n, rows, cols });
    assert_eq!(state.spec, want, "a delta rule needs a state of its shape");
}

/// How lanes share a row of a state with this many columns.
pub(crate) fn state_shape(b: &Wgpu, k_dim: usize) -> StateShape {
    let row_lanes = b.encoder.context().lanes.min(MOST_ROW_LANES);
    let width = if k_dim.is_multiple_of(4) { 4 } else { 1 };
    let fours = word(k_dim.div_ceil(4)).div_ceil(row_lanes);
    StateShape { width, k_dim: word(k_dim), row_lanes, fours }
}

/// The constants of `delta_rule/rows.wgsl`: a state's, vectors of a row, rows of the batch that a step
/// takes, as many as 8 KiB hold twice without decays of columns (one of the 512 columns that configs
/// may ask for), and fours that a thread loads of them.
fn rows_kernel(b: &Wgpu, k_dim: usize, vectors: u32) -> DeltaRows {
    let state = state_shape(b, k_dim);
    let fours = state.row_lanes * state.fours;
    let rows = (128 / fours).clamp(1, 4);
    DeltaRows { state, vectors, rows, loads: (vectors * fours * rows).div_ceil(word(THREADS)) }
}

/// What kernels take of a decay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecayWords {
    /// 0 a head, 1 its columns, 2 its columns within a bound.
    pub(crate) kind: u32,
    /// The bits of the bound, a parameter.
    pub(crate) bound: u32,
}

impl DecayWords {
    pub(crate) fn of(decay: Decay) -> DecayWords {
        match decay {
            Decay::Head => DecayWords { kind: 0, bound: 0 },
            Decay::Columns => DecayWords { kind: 1, bound: 0 },
            Decay::Bounded { bound } => DecayWords { kind: 2, bound: bound.to_bits() },
        }
    }
}
