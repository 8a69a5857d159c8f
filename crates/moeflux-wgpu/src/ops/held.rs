//! The experts of layers that the device holds: it chooses them itself, and
//! nothing is read back.
//!
//! Of a few rows, every choice is a job of its own, whose matrix the kernel
//! looks up; of more, see `grouped`. Rows have the bits that they have where the
//! host chooses, because the same kernels compute them, whose rows do not depend
//! on each other.

use std::sync::Arc;

use moeflux_backend::{Experts, RoutedExperts};
use moeflux_core::MatrixLayout;

use super::moe::{Sum, activate, add_up, choose, first_products, phase, rounding_of_down};
use super::products::{Chosen, Job, List, Products, RoundedBefore, Source, holds_rows, run};
use super::rounding::digits;
use super::{ELEMENTS, grouped, word};
use crate::arena::{Decoder, Place};
use crate::backend::Wgpu;
use crate::encoder::{Grid, Mem};
use crate::experts::KeptLayer;
use crate::shader::{Shader, Variant};

pub(crate) fn routed_experts(b: &mut Wgpu, rows: usize, op: RoutedExperts) {
    let RoutedExperts { x, inputs, activation, biases, slots, acc, shared, .. } = op;
    let top_k = op.route.top_k;
    let layer = Arc::clone(b.slots.held(op.layer).expect("the layer is held"));
    assert_eq!(layer.slots.len(), op.route.logits.len, "one logit an expert");
    b.encoder.counters().add_hits(rows * top_k);
    b.encoder.begin();
    let ids = choose(b, rows, op.route);
    if !holds_rows(rows) {
        return grouped::routed_experts(b, rows, op, (&ids, &layer));
    }
    let chosen = Chosen { ids: &ids, layer: &layer };
    let layout = Arc::clone(&layer.layout);
    let (n, intermediate) = (rows * top_k, layout.intermediate());
    let gate_up = b.scratch.gate_up.words(&mut b.encoder, n * 2 * intermediate);
    let activated = b.scratch.activated.words(&mut b.encoder, n * intermediate);
    let source = Source::of(b, x, rows);
    let lists: Vec<List> = (0..n).map(|nth| vec![(nth / top_k, nth * 2 * intermediate)]).collect();
    for set in first_products(&layout) {
        let mut jobs = Vec::new();
        for (matrix, which, out) in &set {
            assert_eq!(matrix.cols, x.len, "shape of an expert");
            jobs.extend(jobs_of(&layer, matrix, (*which, *out), n));
        }
        let decoder = Decoder::new(set[0].0.format);
        let digits = digits(decoder, inputs);
        let (y, chosen) = (gate_up.clone(), Some(chosen));
        run(b, &source, Products { decoder, digits, lists: &lists, jobs, y, chosen });
    }
    let experts = Experts { out: slots, x, inputs, activation, biases, calls: &[] };
    let rounding = rounding_of_down(b, &layout, experts, n);
    let of_rows = (ids.clone(), 0, n);
    let rounded = activate(b, &layout, experts, of_rows, (&gate_up, &activated), rounding);
    down(b, experts, chosen, (&activated, rounded), n);
    let sum = Sum { acc, slots, top_k, shared };
    add_up(b, rows, sum, (ids, word(n)));
}

/// A matrix of every choice, in every buffer of the layer: where a choice lies
/// in another buffer its job is empty.
fn jobs_of<'a>(
    layer: &'a KeptLayer,
    matrix: &'a MatrixLayout,
    (which, out): (usize, usize),
    n: usize,
) -> impl Iterator<Item = Job> + 'a {
    let job = move |mem: &Mem, nth: usize| Job {
        mem: mem.clone(),
        place: Place { elements: word(which), scales: word(nth) },
        phase: phase(matrix),
        first_row: 0,
        n_rows: matrix.rows,
        list: nth,
        x: 0,
        out,
    };
    layer.buffers.iter().flat_map(move |mem| (0..n).map(move |nth| job(mem, nth)))
}

fn down(
    b: &mut Wgpu,
    op: Experts<'_>,
    chosen: Chosen<'_>,
    (activated, rounded): (&Mem, Option<RoundedBefore>),
    n: usize,
) {
    let down = &chosen.layer.layout.down;
    let source = Source {
        mem: activated.clone(),
        start: 0,
        width: down.cols,
        cols: down.cols,
        n_rows: n,
        kept_as: None,
        rounded,
    };
    let out = b.written(op.out);
    let lists: Vec<List> = (0..n).map(|nth| vec![(nth, nth * out.width)]).collect();
    let jobs = jobs_of(chosen.layer, down, (2, 0), n).collect();
    let decoder = Decoder::new(down.format);
    let digits = digits(decoder, op.inputs);
    let y = out.mem.clone();
    run(b, &source, Products { decoder, digits, lists: &lists, jobs, y, chosen: Some(chosen) });
    add_down_biases(b, op, down, (chosen.ids, n));
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
