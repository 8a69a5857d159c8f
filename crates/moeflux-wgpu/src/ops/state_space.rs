//! The recurrence of state-space layers over spans of any length.

use moeflux_backend::{CacheSpec, Span, StateSpace};

use crate::commands::grid::Grid;
use crate::kernels::recurrent as kernels;
use crate::ops::spans::{Together, keeping, together, with_spans};
use crate::state::gpu::Wgpu;
use crate::words::{ELEMENTS, word};

/// Columns of a head's state that a workgroup has, four lanes each.
const COLUMNS: usize = ELEMENTS / 4;

/// Elements of the batch that a workgroup loads at once: rows of these are fewer than four where states
/// are large.
const LOADED: usize = 512;

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
        kernel(enters.head_dim),
        &with_spans(params, spans),
        &[&mems[..], &[&of_heads, &state.slab]].concat(),
        Grid::Plane(x.n_heads * x.head_dim.div_ceil(COLUMNS), spans.len()),
    );
}

fn kernel(state_size: usize) -> kernels::StateSpace {
    let kept = state_size.div_ceil(4);
    let rows = (LOADED / (8 * kept)).clamp(1, 4);
    kernels::StateSpace {
        state_size: word(state_size),
        kept: word(kept),
        rows: word(rows),
        loads: word((8 * kept * rows).div_ceil(ELEMENTS)),
    }
}
