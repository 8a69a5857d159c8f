//! Routing, experts, and the sum of their outputs.

use std::sync::Arc;

use moeflux_backend::{
    Buf, Cols, Combine, DeviceError, Experts, ResidentCall, ResidentExperts, Route, Routing,
    Scoring, Shared,
};
use moeflux_core::{Expert, ExpertId, ExpertKey, MatrixLayout};

use super::{in_place, sums};
use crate::buffer::Mem;
use crate::grid::Grid;
use crate::imports::Reach;
use crate::last_sum::Summands;
use crate::ops::expert_groups::{EXPERT_ROWS, Found, Group};
use crate::shader::{Shader, Variant};
use crate::state::Wgpu;
use crate::words::{ELEMENTS, word};

/// Most experts of a layer that `route.wgsl` chooses from.
pub const MAX_EXPERTS: usize = 1024;

/// Most groups of experts.
const MAX_GROUPS: usize = 128;

pub(crate) fn route(b: &mut Wgpu, rows: usize, op: Route) -> Result<Routing, DeviceError> {
    let Route { logits, top_k, .. } = op;
    b.encoder.begin();
    let chosen = choose(b, rows, op);
    let len = 8 * rows * top_k;
    let mut parts = vec![(&chosen, 0, len as u64)];
    // The host is about to ask what is there.
    parts.extend(b.slots.unknown());
    let bytes = b.encoder.read(&parts)?;
    let (bytes, known) = bytes.split_at(len);
    if !known.is_empty() {
        b.slots.learn(known);
    }
    let (experts, weights) = bytes.split_at(4 * rows * top_k);
    let id = |it: &[u8; 4]| {
        let it = u32::from_le_bytes(*it).min(word(logits.len) - 1);
        ExpertId(u16::try_from(it).unwrap_or(u16::MAX))
    };
    let experts = experts.as_chunks::<4>().0.iter().map(id).collect();
    Ok(Routing { experts, weights: crate::words::floats(weights) })
}

/// Chooses experts: `(rows, top_k)` of them, then `(rows, top_k)` weights. The
/// op has begun before.
pub(super) fn choose(b: &mut Wgpu, rows: usize, op: Route) -> Mem {
    let Route { logits, top_k, scoring } = op;
    assert!(logits.len <= MAX_EXPERTS && top_k <= logits.len, "{top_k} of {}", logits.len);
    let buf = b.buf(logits.buf).clone();
    let chosen = b.scratch.routing.words(&mut b.encoder, 2 * rows * top_k);
    let (kind, scale, renormalises, bias, groups) = match scoring {
        Scoring::Softmax { renormalise, scale } => (0, scale, renormalise, None, None),
        Scoring::SoftmaxOfChosen => (1, 1.0, false, None, None),
        Scoring::Sigmoid { bias, groups, renormalise, scale } => {
            (2, scale, renormalise, bias, groups)
        }
    };
    if let Some(groups) = groups {
        assert!(groups.n <= MAX_GROUPS && logits.len.is_multiple_of(groups.n), "groups");
        let eligible = groups.kept * (logits.len / groups.n);
        assert!(top_k <= eligible, "enough experts are eligible");
    }
    let params = [
        word(logits.len),
        word(top_k),
        word(logits.start),
        word(buf.width),
        scale.to_bits(),
        u32::from(renormalises),
        u32::from(bias.is_some()),
        word(groups.map_or(0, |it| it.n)),
        word(groups.map_or(0, |it| it.kept)),
        word(rows),
    ];
    let bias = bias.map_or_else(|| buf.mem.clone(), |it| b.vector(it).clone());
    let per_lane = word(logits.len).div_ceil(b.encoder.context().lanes);
    b.encoder.dispatch(
        Variant::new(Shader::Route, &[kind, per_lane, u32::from(groups.is_some())]),
        &params,
        &[&buf.mem, &bias, &chosen],
        Grid::Linear(rows),
    );
    chosen
}

pub(crate) fn begin_upload(
    b: &mut Wgpu,
    held: impl Iterator<Item = ExpertKey>,
    experts: &mut dyn Iterator<Item = &Arc<Expert>>,
) {
    match b.encoder.reach() {
        Reach::Written => begin_writing(b, experts),
        Reach::Fetched => fetch_first(b, held, experts),
        Reach::InPlace => {}
    }
}

/// Has the device fetch experts while the host decides what else it does.
fn fetch_first(
    b: &mut Wgpu,
    held: impl Iterator<Item = ExpertKey>,
    experts: &mut dyn Iterator<Item = &Arc<Expert>>,
) {
    b.encoder.begin();
    let since = b.slots.begin();
    for key in held {
        b.slots.held_slot(key);
    }
    let n_before = b.encoder.last_kernel();
    for expert in experts {
        if b.slots.get(&mut b.encoder, expert, since).is_none() {
            break;
        }
    }
    if b.encoder.last_kernel() > n_before {
        // Another thread would wake later than this takes.
        b.encoder.submit_now();
    }
}

fn begin_writing(b: &mut Wgpu, experts: &mut dyn Iterator<Item = &Arc<Expert>>) {
    let slots = &mut b.slots;
    let mut missing = Vec::new();
    for expert in experts {
        if !slots.holds(expert.key) {
            missing.push((Arc::clone(expert), slots.packing(&expert.layout)));
        }
    }
    b.encoder.begin_uploads(&missing);
}

pub(crate) fn experts(b: &mut Wgpu, op: Experts<'_>) {
    let Some(first) = op.calls.first() else { return };
    let layout = Arc::clone(&first.expert.layout);
    if let Some(found) = in_place::find(b, op.calls) {
        return in_place::run(b, op, &found);
    }
    let mut rest = op.calls;
    while !rest.is_empty() {
        b.encoder.begin();
        let since = b.slots.begin();
        let mut slots = Vec::new();
        let mut n_rows = 0;
        for call in rest {
            n_rows += call.rows.len();
            if !slots.is_empty() && n_rows > EXPERT_ROWS {
                break;
            }
            match b.slots.get(&mut b.encoder, &call.expert, since) {
                Some(slot) => slots.push(Found::from(slot)),
                None => break,
            }
        }
        // The first of them always gets one: a pool has a slot, and none was used since.
        let (now, later) = rest.split_at(slots.len().max(1));
        let calls = now.iter().map(|it| (it.expert.key.expert, &it.rows[..]));
        Group::new(&layout, op, calls.collect(), &slots).run(b);
        rest = later;
    }
}

pub(crate) fn resident_experts(b: &mut Wgpu, held: ResidentExperts<'_>) {
    let ResidentExperts { layer, op, mut calls } = held;
    b.encoder.counters().add_hits(calls.len());
    while !calls.is_empty() {
        b.encoder.begin();
        let mut slots = Vec::new();
        let mut layouts = Vec::new();
        let mut n_rows = 0;
        for ResidentCall { expert, rows } in calls {
            n_rows += rows.len();
            if !slots.is_empty() && n_rows > EXPERT_ROWS {
                break;
            }
            let key = ExpertKey { layer, expert: *expert };
            let (slot, layout) = b.slots.held_slot(key).expect("the device holds the expert");
            slots.push(Found::from(slot));
            layouts.push(layout);
        }
        let (now, later) = calls.split_at(slots.len());
        let now = now.iter().map(|call| (call.expert, &call.rows[..])).collect();
        Group::new(&layouts[0], op, now, &slots).run(b);
        calls = later;
    }
}

pub(crate) fn combine(b: &mut Wgpu, rows: usize, op: Combine<'_>) {
    let Combine { acc, slots, top_k, weights, shared } = op;
    b.encoder.begin();
    let bits: Vec<u32> = weights[..rows * top_k].iter().map(|it| it.to_bits()).collect();
    let list = b.encoder.list(&bits);
    let arena = b.encoder.arena();
    let sum = Sum::of(b, acc, slots, top_k, shared);
    add_up(b, rows, sum, (arena, list));
}

/// A [`Combine`] whose weights the device may know alone.
pub(super) struct Sum {
    pub(super) acc: Cols,
    pub(super) top_k: usize,
    /// What experts give, and the columns of a row.
    pub(super) slots: (Mem, usize),
    /// What the shared expert gives: its first element, and the columns of a row.
    pub(super) shared: Option<(Mem, [u32; 2])>,
    /// The logit that scales it.
    pub(super) gate: Option<Cols>,
}

impl Sum {
    /// Of outputs in buffers of their own.
    pub(super) fn of(b: &Wgpu, acc: Cols, slots: Buf, top_k: usize, shared: Option<Shared>) -> Sum {
        assert!(acc.buf != slots, "an op writes a buffer that it also reads");
        let slots = (b.buf(slots).mem.clone(), b.buf(slots).width);
        let gate = shared.and_then(|it| it.gate);
        Sum { acc, top_k, slots, shared: shared.map(|it| operand(b, it.out)), gate }
    }
}

/// Where columns lie: the first element, and the columns of a row.
fn operand(b: &Wgpu, it: Cols) -> (Mem, [u32; 2]) {
    (b.buf(it.buf).mem.clone(), [word(it.start), word(b.buf(it.buf).width)])
}

/// Adds up with the weights that begin at a word of `lists`. The op has begun
/// before.
pub(super) fn add_up(b: &mut Wgpu, rows: usize, op: Sum, (lists, weights): (Mem, u32)) {
    let Sum { acc, top_k, slots: (slots, slots_width), shared, gate } = op;
    let y = b.written(acc.buf);
    let consts = [shared.is_some(), gate.is_some()].map(u32::from);
    // What there is not is not read.
    let (out, of_out) = shared.unwrap_or_else(|| (lists.clone(), [0; 2]));
    let (gate, of_gate) = gate.map_or_else(|| (lists.clone(), [0; 2]), |it| operand(b, it));
    let n = rows * acc.len;
    let mut params = vec![word(n), word(acc.len), word(top_k), word(acc.start), word(y.width)];
    params.extend([word(slots_width), weights]);
    params.extend([of_out, of_gate].as_flattened());
    b.encoder.dispatch(
        Variant::new(Shader::Combine, &consts),
        &params,
        &[&y.mem, &slots, &lists, &out, &gate],
        Grid::Linear(n.div_ceil(ELEMENTS)),
    );
    sums::note(b, rows, acc, || Summands {
        views: [[0, word(slots_width)], of_out, of_gate].map(|[start, width]| [start, width, 0, 0]),
        mems: [slots, lists, out],
        gate,
        weights,
        consts: [2, word(top_k), consts[0], consts[1]],
    });
}

/// Adds biases to the outputs of so many choices.
pub(super) fn add_down_biases(
    b: &mut Wgpu,
    op: Experts<'_>,
    down: &MatrixLayout,
    (ids, n): (&Mem, usize),
) {
    let Some(biases) = op.biases else { return };
    let out = b.written(op.out);
    let n_elements = n * down.rows;
    let table = b.vector(biases.down).clone();
    b.encoder.dispatch(
        Variant::new(Shader::AddRows, &[1]),
        &[word(n_elements), word(down.rows), 0, word(out.width)],
        &[&out.mem, &table, ids],
        Grid::Linear(n_elements.div_ceil(ELEMENTS)),
    );
}
