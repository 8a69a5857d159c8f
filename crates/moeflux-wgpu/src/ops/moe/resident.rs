//! The experts of layers that the device holds: it chooses them itself, and nothing is read back.
//!
//! Of a few rows, every choice is its own job, whose matrix the kernel looks up; of more, see
//! `grouped`. Rows have the bits that they have where the host chooses, because the same kernels
//! compute them, whose rows do not depend on each other.

use std::sync::Arc;

use moeflux_backend::{Experts, MoeOnDevice, SharedExpert};

use crate::device::buffer::Mem;
use crate::layouts::format::{Decoder, Place};
use crate::memory::experts::tables::ResidentLayer;
use crate::ops::matmul::activation::{Between, is_within, quant_of_down};
use crate::ops::matmul::jobs::{FEW_ROWS, Job, List, WHOLE, holds_rows};
use crate::ops::matmul::kernel::Chosen;
use crate::ops::matmul::products::{Products, run};
use crate::ops::matmul::source::Source;
use crate::ops::moe::admit::admit;
use crate::ops::moe::combine::{Outputs, Sum, add_down_biases, add_up};
use crate::ops::moe::expert_group::{Part, first_products, phase};
use crate::ops::moe::grouped;
use crate::ops::moe::route::choose;
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::activation_quant;
use crate::words::word;

/// Rows of activations of experts: this many that were chosen, `top_k` a row, and after them
/// those of the shared expert, one a row, where it goes along.
#[derive(Clone, Copy)]
struct Choices {
    n: usize,
    top_k: usize,
    n_shared: usize,
}

impl Choices {
    fn len(self) -> usize {
        self.n + self.n_shared
    }

    /// The row that a choice is of.
    fn row(self, nth: usize) -> usize {
        if nth < self.n { nth / self.top_k } else { nth - self.n }
    }
}

pub(crate) fn moe_on_device(b: &mut Wgpu, rows: usize, op: MoeOnDevice) {
    let MoeOnDevice { x, inputs, function, slots, acc, shared, .. } = op;
    let top_k = op.route.top_k;
    let layer = Arc::clone(b.slots.routable_layer(op.layer).expect("the layer is resident"));
    assert_eq!(layer.n_experts(), op.route.logits.len, "one logit an expert");
    b.encoder.prerecording.count_hits(rows * top_k);
    let goes_along =
        holds_rows(rows) && shared.is_some_and(|shared| goes_along(b, &op, &shared, &layer));
    if let Some(shared) = shared.filter(|_| !goes_along) {
        shared.mlp.run_parts(b, rows, x, shared.shared.out);
    }
    b.encoder.begin();
    let ids = choose(b, rows, op.route);
    admit(b, &layer, &ids, rows * top_k);
    if !holds_rows(rows) {
        return grouped::moe_on_device(b, rows, op, &ids, &layer);
    }
    let layout = Arc::clone(layer.layout());
    let choices = Choices { n: rows * top_k, top_k, n_shared: if goes_along { rows } else { 0 } };
    let (n_chosen, between) = (choices.n, None);
    let mut chosen = Chosen { ids: &ids, layer: &layer, n: choices.len(), n_chosen, between };
    let (n, intermediate) = (choices.len(), layout.intermediate());
    let first_cols = layout.first_cols();
    function.assert_fits(&layout);
    let gate_up = b.scratch.gate_up.words(&mut b.encoder, n * first_cols);
    let source = Source::of(b, x, rows);
    let lists: Vec<List> = (0..n).map(|nth| vec![(choices.row(nth), nth * first_cols)]).collect();
    for set in first_products(&layout) {
        let mut jobs = Vec::new();
        for part in &set {
            assert_eq!(part.matrix.cols, x.len, "shape of an expert");
            jobs.extend(jobs_of(&layer, *part, n));
        }
        let decoder = Decoder::new(set[0].matrix.format);
        let quant = activation_quant(decoder, inputs);
        let (y, chosen) = (gate_up.clone(), Some(chosen));
        let most_few = FEW_ROWS;
        run(b, &source, Products { decoder, quant, lists: &lists, jobs, y, chosen, most_few });
    }
    let experts = Experts { out: slots, x, rows, inputs, function, calls: &[] };
    let between = Between::of(b, &layout, experts, &gate_up);
    let n_jobs = n * layer.buffers().len();
    let (activated, prequantized) = if is_within(b, &layout, experts, n_jobs) {
        chosen.between = Some(&between);
        (gate_up.clone(), None)
    } else {
        let activated = b.scratch.activated.words(&mut b.encoder, n * intermediate);
        let rounding = quant_of_down(b, &layout, experts, n_jobs);
        let prequantized = between.run(b, ids.list(0), n, &activated, rounding);
        (activated, prequantized)
    };
    let out = if goes_along {
        let mem = b.scratch.outputs.words(&mut b.encoder, n * acc.len);
        Outputs { mem, width: acc.len }
    } else {
        Outputs { mem: b.written(slots).mem, width: b.buf(slots).width }
    };
    let source = Source::of_rows(activated, intermediate, n, prequantized);
    down(b, experts, chosen, &source, &out);
    add_down_biases(b, experts, &layout.down, &ids, choices.n);
    let mut sum = Sum::of(b, acc, slots, top_k, shared.map(|shared| shared.shared));
    if goes_along {
        sum.shared = Some((out.mem.clone(), [choices.n * out.width, out.width].map(word)));
        sum.slots = out;
    }
    add_up(b, rows, sum, ids.list(word(choices.n)));
}

/// Whether the shared expert is one more of the experts that a row gets: a copy of it is stored
/// next to them, and the same is done with it.
fn goes_along(b: &Wgpu, op: &MoeOnDevice, shared: &SharedExpert, layer: &ResidentLayer) -> bool {
    let mut weights = shared.mlp.weights().into_iter();
    layer.shared().is_some()
        && op.function == shared.mlp.function()
        && weights.all(|weight| b.matrix(weight).inputs == op.inputs)
}

/// A matrix of every choice, in every buffer of the layer: where a choice is in another buffer
/// its job is empty.
fn jobs_of<'a>(
    layer: &'a ResidentLayer,
    part: Part<'a>,
    n_choices: usize,
) -> impl Iterator<Item = Job> + 'a {
    let Part { matrix, which, out } = part;
    let job = move |mem: &Mem, nth: usize| Job {
        mem: mem.clone(),
        place: Place { elements: word(which), scales: 0 },
        phase: phase(matrix),
        first_row: 0,
        n_rows: matrix.rows,
        list: nth,
        part: WHOLE,
        x: 0,
        out,
    };
    layer.buffers().iter().flat_map(move |mem| (0..n_choices).map(move |nth| job(mem, nth)))
}

fn down(b: &mut Wgpu, op: Experts<'_>, chosen: Chosen<'_>, source: &Source, out: &Outputs) {
    let part = Part::down(chosen.layer.layout());
    let n = source.n_rows;
    let lists: Vec<List> = (0..n).map(|nth| vec![(nth, nth * out.width)]).collect();
    let jobs = jobs_of(chosen.layer, part, n).collect();
    let decoder = Decoder::new(part.matrix.format);
    let quant = activation_quant(decoder, op.inputs);
    let y = out.mem.clone();
    let (chosen, most_few) = (Some(chosen), FEW_ROWS);
    run(b, source, Products { decoder, quant, lists: &lists, jobs, y, chosen, most_few });
}
