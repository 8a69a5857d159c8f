//! The recurrence of state-space layers over spans of any length.

use moeflux_backend::{CacheSpec, Span, StateSpace};

use crate::commands::grid::Grid;
use crate::kernels::recurrent as kernels;
use crate::ops::spans::{Together, keeping, together, with_spans};
use crate::state::gpu::Wgpu;
use crate::words::word;

/// Columns of a head's state that a workgroup has.
const COLUMNS: usize = 16;

/// Most lanes that share a column.
const MOST_LANES: u32 = 16;

/// Elements of the batch that a workgroup loads at once, and has twice: rows of these are few where states
/// are large. Twice as many were 14 % faster on an H200, and more than 16 KiB.
const LOADED: u32 = 1024;

/// Most rows of the batch that a step takes.
const MOST_ROWS: u32 = 8;

pub(crate) fn state_space(b: &mut Wgpu, op: StateSpace, spans: &[Span]) {
    let inputs = [op.x.buf, op.b.buf, op.c.buf, op.dt.buf];
    assert!(!inputs.contains(&op.out.buf), "an op writes a buffer that it also reads");
    b.written(op.out.buf);
    if b.take_state_slots(spans, &[op.cache]) {
        keeping(b, op.cache, spans, &|b, spans| advance(b, &op, spans));
    }
}

fn advance(b: &mut Wgpu, op: &StateSpace, spans: &[Span]) {
    let filled = spans.iter().filter(|span| !span.rows.is_empty());
    for group in together(b, filled, [op.cache], &[]) {
        run(b, op, &group);
    }
}

fn run(b: &mut Wgpu, op: &StateSpace, Together { states, spans, .. }: &Together<1>) {
    b.encoder.begin();
    let [state] = states;
    let want = CacheSpec::State(op.state_shape());
    assert_eq!(state.spec, want, "a state-space op needs a state of its shape");
    let StateSpace { out, x, b: enters, c: reads, dt, of_heads, .. } = *op;
    let [y, x_buf, b_buf, c_buf, dt_buf] =
        [out.buf, x.buf, enters.buf, reads.buf, dt.buf].map(|buf| b.buf(buf).clone());
    let mut params = vec![word(x.n_heads), word(x.head_dim), word(op.heads_per_group())];
    for (heads, buf) in [(x, &x_buf), (enters, &b_buf), (reads, &c_buf), (out, &y)] {
        params.extend([heads.start, buf.width, heads.stride].map(word));
    }
    params.extend([dt.start, dt_buf.width].map(word));
    let of_heads = b.vector(of_heads).clone();
    let mems = [&y, &x_buf, &b_buf, &c_buf, &dt_buf].map(|buf| &buf.mem);
    b.encoder.dispatch(
        kernel(b.encoder.context().lanes, enters.head_dim),
        &with_spans(params, spans),
        &[&mems[..], &[&of_heads, &state.slab]].concat(),
        Grid::Plane(x.n_heads * x.head_dim.div_ceil(COLUMNS), spans.len()),
    );
}

/// The kernel for states of this many rows, on a device with this many lanes to rely on.
fn kernel(lanes: u32, state_size: usize) -> kernels::StateSpace {
    let lanes = lanes.min(MOST_LANES);
    let kept = word(state_size).div_ceil(4 * lanes);
    // How inputs enter, and how states are read.
    let fours = 2 * lanes * kept;
    // A thread brings one input of them at most; fours of rows are summed together.
    let most = MOST_ROWS.min(lanes);
    let rows = match (LOADED / (4 * fours)).clamp(1, most) {
        few @ ..4 => few,
        many => many / 4 * 4,
    };
    let loads = (fours * rows).div_ceil(lanes * word(COLUMNS));
    kernels::StateSpace { state_size: word(state_size), lanes, kept, rows, loads }
}
