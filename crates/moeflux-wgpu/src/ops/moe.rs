//! Routing, experts, and the sum of their outputs.

use std::sync::Arc;

use moeflux_backend::{
    Buf, Cols, Combine, DeviceError, ExpertRow, Experts, HeldExperts, Route, Routing, Scoring,
    Shared,
};
use moeflux_core::quant::MatrixFormat;
use moeflux_core::{Expert, ExpertId, ExpertKey, ExpertLayout, GateUp, MatrixLayout};

use super::activation::{Between, rounding_of_down};
use super::in_place;
use super::jobs::{FEW_ROWS, Job, List, WHOLE, holds_rows};
use super::products::{Products, RoundedBefore, Source, group_rows, run};
use super::sums;
use crate::buffer::Mem;
use crate::experts::Slot;
use crate::grid::Grid;
use crate::imports::Reach;
use crate::last_sum::Summands;
use crate::rounded::Digits;
use crate::rounded::digits;
use crate::shader::{Shader, Variant};
use crate::state::Wgpu;
use crate::weights::Decoder;
use crate::weights::Place;
use crate::words::ELEMENTS;
use crate::words::word;

/// Most experts of a layer that `route.wgsl` chooses from.
pub const MAX_EXPERTS: usize = 1024;

/// Most groups of experts.
const MAX_GROUPS: usize = 128;

/// Rows of experts that are worked on together; bounds the scratch memory.
pub(super) const EXPERT_ROWS: usize = 1024;

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

pub(crate) fn begin_experts(
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

pub(crate) fn held_experts(b: &mut Wgpu, held: HeldExperts<'_>) {
    let HeldExperts { layer, op, mut calls } = held;
    b.encoder.counters().add_hits(calls.len());
    while !calls.is_empty() {
        b.encoder.begin();
        let mut slots = Vec::new();
        let mut layouts = Vec::new();
        let mut n_rows = 0;
        for (expert, rows) in calls {
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
        let now = now.iter().map(|(expert, rows)| (*expert, &rows[..])).collect();
        Group::new(&layouts[0], op, now, &slots).run(b);
        calls = later;
    }
}

/// An expert, and the rows that want it.
pub(super) type Call<'a> = (ExpertId, &'a [ExpertRow]);

/// Where kernels read the matrices of an expert.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) mem: Mem,
    pub(super) places: [Place; 3],
    /// The first words of biases, where they lie apart from their scales.
    pub(super) biases: Option<[u32; 3]>,
}

impl From<Slot> for Found {
    fn from(Slot { mem, places, .. }: Slot) -> Found {
        Found { mem, places, biases: None }
    }
}

/// Experts whose products go together.
pub(super) struct Group<'a> {
    layout: &'a ExpertLayout,
    op: Experts<'a>,
    calls: Vec<Call<'a>>,
    slots: &'a [Found],
    /// Each row's expert.
    experts: Vec<u32>,
    /// Each row's slot of the output.
    out_slots: Vec<usize>,
}

impl<'a> Group<'a> {
    /// Experts that lie apart, all or none.
    pub(super) fn new(
        layout: &'a ExpertLayout,
        op: Experts<'a>,
        calls: Vec<Call<'a>>,
        slots: &'a [Found],
    ) -> Group<'a> {
        let of_rows = |it: &Call<'_>| vec![u32::from(it.0.0); it.1.len()];
        let experts = calls.iter().flat_map(of_rows).collect();
        let rows = calls.iter().flat_map(|it| it.1);
        let out_slots = rows.map(|it| it.slot as usize).collect();
        Group { layout, op, calls, slots, experts, out_slots }
    }

    pub(super) fn run(&self, b: &mut Wgpu) {
        let intermediate = self.layout.intermediate();
        let n = self.experts.len();
        if n == 0 || self.slots.is_empty() {
            return;
        }
        let gate_up = b.scratch.gate_up.words(&mut b.encoder, n * 2 * intermediate);
        let activated = b.scratch.activated.words(&mut b.encoder, n * intermediate);
        self.gate_and_up(b, &gate_up);
        let experts = b.encoder.list(&self.experts);
        let arena = b.encoder.arena();
        let down = &self.layout.down;
        let decoder = self.decoder(down);
        let most_few = self.most_few(b, digits(decoder, self.op.inputs), down.cols);
        let are_few = self.calls.iter().all(|it| it.1.len() <= most_few);
        let rounding = are_few.then(|| rounding_of_down(b, self.layout, self.op, n)).flatten();
        let between = Between::of(b, self.layout, self.op, &gate_up);
        let rounded = between.run(b, (&arena, experts, n), &activated, rounding);
        self.down(b, &activated, rounded);
    }

    /// Rows of an expert up to which they are few: the kernels are those of experts that
    /// the device chose, and the bits so too.
    fn most_few(&self, b: &Wgpu, digits: Option<Digits>, cols: usize) -> usize {
        if holds_rows(self.op.rows) { FEW_ROWS } else { group_rows(b, digits, cols) }
    }

    /// Every call's rows with their place among those of the group.
    fn placed(&self) -> impl Iterator<Item = (&'a [ExpertRow], usize)> {
        self.calls.iter().scan(0, |next, (_, rows)| {
            let first = *next;
            *next += rows.len();
            Some((*rows, first))
        })
    }

    fn gate_and_up(&self, b: &mut Wgpu, gate_up: &Mem) {
        let width = 2 * self.layout.intermediate();
        let n_rows = self.calls.iter().flat_map(|it| it.1).map(|it| it.row as usize + 1).max();
        let source = Source::of(b, self.op.x, n_rows.unwrap_or(0));
        let lists: Vec<List> = self
            .placed()
            .map(|(rows, first)| {
                let rows = rows.iter().enumerate();
                rows.map(|(i, it)| (it.row as usize, (first + i) * width)).collect()
            })
            .collect();
        for set in first_products(self.layout) {
            let mut jobs = Vec::new();
            for (matrix, which, out) in &set {
                assert_eq!(matrix.cols, self.op.x.len, "shape of an expert");
                jobs.extend(self.jobs(matrix, *which, *out));
            }
            let decoder = self.decoder(set[0].0);
            let digits = digits(decoder, self.op.inputs);
            let y = gate_up.clone();
            let (chosen, most_few) = (None, self.most_few(b, digits, self.op.x.len));
            run(b, &source, Products { decoder, digits, lists: &lists, jobs, y, chosen, most_few });
        }
    }

    /// One matrix of every expert; each has a list of its own.
    fn jobs(&self, matrix: &MatrixLayout, which: usize, out: usize) -> Vec<Job> {
        let job = |(list, slot): (usize, &Found)| Job {
            mem: slot.mem.clone(),
            place: slot.places[which],
            phase: match (slot.biases, matrix.format) {
                (Some(biases), MatrixFormat::Affine(_)) => biases[which] as usize,
                _ => phase(matrix),
            },
            first_row: 0,
            n_rows: matrix.rows,
            list,
            part: WHOLE,
            x: 0,
            out,
        };
        self.slots.iter().take(self.calls.len()).enumerate().map(job).collect()
    }

    fn decoder(&self, matrix: &MatrixLayout) -> Decoder {
        let are_apart = self.slots.iter().any(|it| it.biases.is_some());
        Decoder::new(matrix.format).apart(are_apart)
    }

    fn down(&self, b: &mut Wgpu, activated: &Mem, rounded: Option<RoundedBefore>) {
        let down = &self.layout.down;
        let source = Source {
            mem: activated.clone(),
            start: 0,
            width: down.cols,
            cols: down.cols,
            n_rows: self.experts.len(),
            kept_as: None,
            rounded,
        };
        let out = b.written(self.op.out);
        let lists: Vec<List> = self
            .placed()
            .map(|(rows, first)| {
                let rows = rows.iter().enumerate();
                rows.map(|(i, it)| (first + i, it.slot as usize * out.width)).collect()
            })
            .collect();
        let jobs = self.jobs(down, 2, 0);
        let decoder = self.decoder(down);
        let digits = digits(decoder, self.op.inputs);
        let y = out.mem.clone();
        let (chosen, most_few) = (None, self.most_few(b, digits, down.cols));
        run(b, &source, Products { decoder, digits, lists: &lists, jobs, y, chosen, most_few });
        if let Some(biases) = self.op.biases {
            let pairs: Vec<[u32; 2]> = self
                .out_slots
                .iter()
                .zip(&self.experts)
                .map(|(slot, expert)| [word(slot * out.width), *expert])
                .collect();
            let rows = b.encoder.list(pairs.as_flattened());
            let n = pairs.len() * down.rows;
            let (arena, table) = (b.encoder.arena(), b.vector(biases.down).clone());
            b.encoder.dispatch(
                Variant::new(Shader::AddRows, &[0]),
                &[word(n), word(down.rows), rows, 0],
                &[&out.mem, &table, &arena],
                Grid::Linear(n.div_ceil(ELEMENTS)),
            );
        }
    }
}

/// A matrix, which one it is, and where its outputs begin in a row.
pub(super) type Part<'a> = (&'a MatrixLayout, usize, usize);

/// The first products of an expert, together where they are stored alike.
pub(super) fn first_products(layout: &ExpertLayout) -> Vec<Vec<Part<'_>>> {
    match &layout.gate_up {
        GateUp::Split { gate, up } => {
            let parts = [(gate, 0, 0), (up, 1, layout.intermediate())];
            if gate.format == up.format {
                vec![parts.to_vec()]
            } else {
                parts.map(|it| vec![it]).to_vec()
            }
        }
        GateUp::Alternating(both) => vec![vec![(both, 0, 0)]],
    }
}

/// Rows of the first rectangle that lie before the matrix.
pub(super) fn phase(matrix: &MatrixLayout) -> usize {
    match matrix.format {
        MatrixFormat::Blocks(it) => it.phase,
        _ => 0,
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
