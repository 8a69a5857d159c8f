//! Groups of rows that experts multiply.

use moeflux_backend::{ExpertCall, ExpertRow, Experts};
use moeflux_core::quant::MatrixFormat;
use moeflux_core::{ExpertId, ExpertLayout, GateUp, MatrixLayout};
use moeflux_residency::LocatedExpert;

use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::moe::AddRows;
use crate::layouts::format::{Decoder, Place};
use crate::layouts::packing::places;
use crate::ops::matmul::activation::{Between, quant_of_down};
use crate::ops::matmul::jobs::{FEW_ROWS, Job, List, WHOLE, holds_rows};
use crate::ops::matmul::layouts::group_rows;
use crate::ops::matmul::products::{Products, run};
use crate::ops::matmul::source::{Prequantized, Source};
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::{ActivationQuant, activation_quant};
use crate::words::{PER_ELEMENT, word};

/// Rows of experts that are worked on together; bounds the scratch memory.
pub(crate) const EXPERT_ROWS: usize = 1024;

/// An expert, and the rows that chose it.
pub(crate) struct Call<'a> {
    pub(crate) expert: ExpertId,
    pub(crate) rows: &'a [ExpertRow],
}

impl<'a> Call<'a> {
    pub(crate) fn of(call: &'a ExpertCall) -> Call<'a> {
        Call { expert: call.expert.key.expert, rows: &call.rows }
    }
}

/// Where kernels read the matrices of an expert.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) mem: Mem,
    pub(crate) places: [Place; 3],
    /// The first words of biases, or of scales of all of a matrix, where they are apart from scales.
    pub(crate) biases: Option<[u32; 3]>,
}

impl Found {
    /// An expert in a slot.
    pub(crate) fn new(LocatedExpert { slot, packing }: &LocatedExpert<Mem>) -> Found {
        Found { mem: slot.buffer.clone(), places: places(packing, slot.at), biases: None }
    }
}

/// Experts whose products go together.
pub(crate) struct Group<'a> {
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
    /// Experts that are apart, all or none.
    pub(crate) fn new(
        layout: &'a ExpertLayout,
        op: Experts<'a>,
        calls: Vec<Call<'a>>,
        slots: &'a [Found],
    ) -> Group<'a> {
        let of_rows = |call: &Call<'_>| vec![u32::from(call.expert.0); call.rows.len()];
        let experts = calls.iter().flat_map(of_rows).collect();
        let rows = calls.iter().flat_map(|call| call.rows);
        let out_slots = rows.map(|row| row.slot as usize).collect();
        Group { layout, op, calls, slots, experts, out_slots }
    }

    pub(crate) fn run(&self, b: &mut Wgpu) {
        let intermediate = self.layout.intermediate();
        let n = self.experts.len();
        if n == 0 || self.slots.is_empty() {
            return;
        }
        self.op.function.assert_fits(self.layout);
        let gate_up = b.scratch.gate_up.words(&mut b.encoder, n * self.layout.first_cols());
        let activated = b.scratch.activated.words(&mut b.encoder, n * intermediate);
        self.gate_and_up(b, &gate_up);
        let experts = b.encoder.list(&self.experts);
        let arena = b.encoder.arena();
        let down = &self.layout.down;
        let decoder = self.decoder(down);
        let most_few = self.most_few(b, activation_quant(decoder, self.op.inputs), down.cols);
        let are_few = self.calls.iter().all(|call| call.rows.len() <= most_few);
        let rounding = are_few.then(|| quant_of_down(b, self.layout, self.op, n)).flatten();
        let between = Between::of(b, self.layout, self.op, &gate_up);
        let prequantized = between.run(b, arena.list(experts), n, &activated, rounding);
        self.down(b, &activated, prequantized);
    }

    /// Rows of an expert up to which they are few: the kernels are those of experts that
    /// the device chose, and the bits so too.
    fn most_few(&self, b: &Wgpu, quant: Option<ActivationQuant>, cols: usize) -> usize {
        if holds_rows(self.op.rows) { FEW_ROWS } else { group_rows(b, quant, cols) }
    }

    /// Every call's rows with their place among those of the group.
    fn placed(&self) -> impl Iterator<Item = (&'a [ExpertRow], usize)> {
        self.calls.iter().scan(0, |next, call| {
            let first = *next;
            *next += call.rows.len();
            Some((call.rows, first))
        })
    }

    fn gate_and_up(&self, b: &mut Wgpu, gate_up: &Mem) {
        let width = self.layout.first_cols();
        let n_rows =
            self.calls.iter().flat_map(|call| call.rows).map(|row| row.row as usize + 1).max();
        let source = Source::of(b, self.op.x, n_rows.unwrap_or(0));
        let lists: Vec<List> = self
            .placed()
            .map(|(rows, first)| {
                let rows = rows.iter().enumerate();
                rows.map(|(i, row)| (row.row as usize, (first + i) * width)).collect()
            })
            .collect();
        for set in first_products(self.layout) {
            let mut jobs = Vec::new();
            for part in &set {
                assert_eq!(part.matrix.cols, self.op.x.len, "shape of an expert");
                jobs.extend(self.jobs(*part));
            }
            let decoder = self.decoder(set[0].matrix);
            let quant = activation_quant(decoder, self.op.inputs);
            let y = gate_up.clone();
            let (chosen, most_few) = (None, self.most_few(b, quant, self.op.x.len));
            run(b, &source, Products { decoder, quant, lists: &lists, jobs, y, chosen, most_few });
        }
    }

    /// One matrix of every expert; each has its own list.
    fn jobs(&self, part: Part<'_>) -> Vec<Job> {
        let Part { matrix, which, out } = part;
        let job = |(list, slot): (usize, &Found)| Job {
            mem: slot.mem.clone(),
            place: slot.places[which],
            phase: match (slot.biases, matrix.format) {
                (Some(biases), MatrixFormat::Affine(_) | MatrixFormat::Micro(_)) => {
                    biases[which] as usize
                }
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
        let are_apart = self.slots.iter().any(|found| found.biases.is_some());
        Decoder::new(matrix.format).apart(are_apart)
    }

    fn down(&self, b: &mut Wgpu, activated: &Mem, prequantized: Option<Prequantized>) {
        let down = &self.layout.down;
        let source =
            Source::of_rows(activated.clone(), down.cols, self.experts.len(), prequantized);
        let out = b.written(self.op.out);
        let lists: Vec<List> = self
            .placed()
            .map(|(rows, first)| {
                let rows = rows.iter().enumerate();
                rows.map(|(i, row)| (first + i, row.slot as usize * out.width)).collect()
            })
            .collect();
        let jobs = self.jobs(Part::down(self.layout));
        let decoder = self.decoder(down);
        let quant = activation_quant(decoder, self.op.inputs);
        let y = out.mem.clone();
        let (chosen, most_few) = (None, self.most_few(b, quant, down.cols));
        run(b, &source, Products { decoder, quant, lists: &lists, jobs, y, chosen, most_few });
        if let Some(biases) = self.op.function.biases() {
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
                AddRows { is_chosen: false },
                &[word(n), word(down.rows), rows, 0],
                &[&out.mem, &table, &arena],
                Grid::Linear(n.div_ceil(PER_ELEMENT)),
            );
        }
    }
}

/// A matrix of an expert.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) matrix: &'a MatrixLayout,
    /// Which of the three it is.
    pub(crate) which: usize,
    /// Where its outputs begin in a row.
    pub(crate) out: usize,
}

impl<'a> Part<'a> {
    /// The down projection.
    pub(crate) fn down(layout: &'a ExpertLayout) -> Part<'a> {
        Part { matrix: &layout.down, which: 2, out: 0 }
    }
}

/// The first products of an expert, together where they are stored alike.
pub(crate) fn first_products(layout: &ExpertLayout) -> Vec<Vec<Part<'_>>> {
    match &layout.gate_up {
        GateUp::Split { gate, up } => {
            let of_up = Part { matrix: up, which: 1, out: layout.intermediate() };
            let parts = [Part { matrix: gate, which: 0, out: 0 }, of_up];
            if gate.format == up.format {
                vec![parts.to_vec()]
            } else {
                parts.map(|part| vec![part]).to_vec()
            }
        }
        GateUp::Up(one) | GateUp::Alternating(one) | GateUp::Joined(one) => {
            vec![vec![Part { matrix: one, which: 0, out: 0 }]]
        }
    }
}

/// Rows of the first rectangle that are before the matrix.
pub(crate) fn phase(matrix: &MatrixLayout) -> usize {
    match matrix.format {
        MatrixFormat::Blocks(blocks) => blocks.phase,
        _ => 0,
    }
}
