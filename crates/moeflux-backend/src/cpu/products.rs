//! Ops that multiply by weight matrices.

use std::sync::Arc;

use moeflux_core::quant::{MatrixFormat, MatrixView};
use moeflux_core::{ExpertLayout, GateUp};

use super::elementwise;
use super::matmul::{
    Activations, FloatRows, HeadColumns, HeadJob, MatmulJob, OutRows, Rounding, RowMap,
    head_products, run_jobs,
};
use super::memory::{Limbs, rounding};
use super::parallel::{for_each_chunk, recycle};
use super::pool::SharedMut;
use super::product_scratch::{RoundedKey, RowLists, Scratch};
use super::state::Cpu;
use crate::{Cols, ExpertCall, ExpertFunction, Experts, HeadProduct, Heads, Projection, Weight};

/// Rows of experts that are worked on together; bounds the scratch memory.
const EXPERT_ROWS: usize = 1024;

/// Rounds the first `rows` rows of `x`, unless they are at hand.
fn round(cpu: &mut Cpu, x: Cols, rows: usize, limbs: Limbs) {
    let buf = &cpu.bufs[x.buf.0 as usize];
    cpu.rounded.round(RoundedKey::new(x, buf, rows, limbs), buf, &cpu.pool, cpu.isa);
}

/// The first `rows` rows of `x`, as a product of that arithmetic takes them.
fn inputs(cpu: &Cpu, x: Cols, rows: usize, limbs: Option<Limbs>) -> Activations<'_> {
    let buf = cpu.buf(x.buf);
    match limbs {
        None => {
            let data = &buf.data[x.start..];
            Activations::Full(FloatRows { data, stride: buf.width, cols: x.len })
        }
        Some(limbs) => {
            Activations::Quantised(cpu.rounded.get(RoundedKey::new(x, buf, rows, limbs)))
        }
    }
}

pub(super) fn project(cpu: &mut Cpu, rows: usize, x: Cols, outputs: &[Projection]) {
    for projection in outputs {
        if let Some(limbs) = cpu.matrices[projection.weight.0 as usize].rounding() {
            round(cpu, x, rows, limbs);
        }
    }
    let mut lists = std::mem::take(&mut cpu.scratch.lists);
    let bufs = &mut lists.bufs;
    bufs.extend(outputs.iter().map(|projection| projection.out.buf));
    bufs.sort_unstable_by_key(|buf| buf.0);
    bufs.dedup();
    lists.taken.extend(bufs.iter().map(|buf| cpu.take(*buf)));
    let mut shared = recycle(lists.shared);
    shared.extend(lists.taken.iter_mut().map(|buf| (buf.width, SharedMut::new(&mut buf.data))));
    let job = |projection: &Projection| {
        let at =
            bufs.iter().position(|buf| *buf == projection.out.buf).expect("every output was taken");
        let (stride, data) = shared[at];
        let matrix = &cpu.matrices[projection.weight.0 as usize];
        let weight = matrix.view();
        assert_eq!(
            (weight.rows, weight.cols),
            (projection.out.len, x.len),
            "shape of a projection"
        );
        assert!(
            projection.out.start + projection.out.len <= stride,
            "columns are inside their buffer"
        );
        MatmulJob {
            weight,
            x: inputs(cpu, x, rows, matrix.rounding()),
            x_rows: RowMap::Range { first: 0, n: rows },
            out: OutRows {
                data,
                stride,
                first_col: projection.out.start,
                rows: RowMap::Range { first: 0, n: rows },
            },
        }
    };
    let mut jobs = recycle(lists.jobs);
    jobs.extend(outputs.iter().map(job));
    run_jobs(&cpu.pool, cpu.isa, &jobs);
    lists.jobs = recycle(jobs);
    lists.shared = recycle(shared);
    for (buf, activations) in lists.bufs.drain(..).zip(lists.taken.drain(..)) {
        cpu.put(buf, activations);
    }
    cpu.scratch.lists = lists;
}

pub(super) fn head_product(cpu: &mut Cpu, rows: usize, op: HeadProduct) {
    fn columns<T>(heads: Heads, data: T, stride: usize) -> HeadColumns<T> {
        let Heads { start, stride: head_stride, head_dim, .. } = heads;
        HeadColumns { data, stride, first_col: start, head_stride, head_dim }
    }
    assert_eq!(op.out.n_heads, op.x.n_heads, "heads in and heads out");
    let mut taken = cpu.take(op.out.buf);
    let x = cpu.buf(op.x.buf);
    let job = HeadJob {
        weight: cpu.matrices[op.weight.0 as usize].view(),
        first_row: op.first_row,
        row_stride: op.row_stride,
        is_transposed: op.transposed,
        n_heads: op.out.n_heads,
        n_rows: rows,
        x: columns(op.x, &x.data, x.width),
        out: columns(op.out, SharedMut::new(&mut taken.data), taken.width),
    };
    head_products(&cpu.pool, cpu.isa, &job);
    cpu.put(op.out.buf, taken);
}

pub(super) fn logits(cpu: &mut Cpu, rows: &[usize], x: Cols, head: Weight) -> Vec<f32> {
    let limbs = cpu.matrices[head.0 as usize].rounding();
    let n_rows = rows.iter().max().map_or(0, |row| row + 1);
    if let Some(limbs) = limbs {
        round(cpu, x, n_rows, limbs);
    }
    let weight = cpu.matrices[head.0 as usize].view();
    let mut out = vec![0.0; rows.len() * weight.rows];
    let chosen: Vec<u32>;
    let x_rows = match *rows {
        [row] => RowMap::Range { first: row, n: 1 },
        _ => {
            chosen = rows.iter().filter_map(|row| u32::try_from(*row).ok()).collect();
            RowMap::List(&chosen)
        }
    };
    let job = MatmulJob {
        weight,
        x: inputs(cpu, x, n_rows, limbs),
        x_rows,
        out: OutRows {
            data: SharedMut::new(&mut out),
            stride: weight.rows,
            first_col: 0,
            rows: RowMap::Range { first: 0, n: rows.len() },
        },
    };
    run_jobs(&cpu.pool, cpu.isa, &[job]);
    out
}

pub(super) fn experts(cpu: &mut Cpu, op: Experts<'_>) {
    let Some(first) = op.calls.first() else { return };
    let layout = Arc::clone(&first.expert.layout);
    let n_rows = op.calls.iter().flat_map(|call| &call.rows).map(|row| row.row as usize + 1).max();
    let n_rows = n_rows.unwrap_or(0);
    op.function.assert_fits(&layout);
    for matrix in layout.gate_up.matrices() {
        if let Some(limbs) = rounding(matrix.format, matrix.cols, op.inputs) {
            round(cpu, op.x, n_rows, limbs);
        }
    }
    let mut rest = op.calls;
    while !rest.is_empty() {
        let mut n_rows_now = rest[0].rows.len();
        let more = rest[1..].iter().take_while(|call| {
            n_rows_now += call.rows.len();
            n_rows_now <= EXPERT_ROWS
        });
        let (now, later) = rest.split_at(1 + more.count());
        let mut scratch = std::mem::take(&mut cpu.scratch);
        let mut lists = std::mem::take(&mut scratch.rows);
        lists.set(now);
        let group = Group { layout: &layout, op, calls: now, lists: &lists };
        group.first(cpu, &mut scratch, n_rows);
        group.down(cpu, &mut scratch);
        scratch.rows = lists;
        cpu.scratch = scratch;
        rest = later;
    }
}

/// Experts whose products share a fork.
struct Group<'a> {
    layout: &'a ExpertLayout,
    op: Experts<'a>,
    calls: &'a [ExpertCall],
    lists: &'a RowLists,
}

impl<'a> Group<'a> {
    fn limbs(&self, format: MatrixFormat, cols: usize) -> Option<Limbs> {
        rounding(format, cols, self.op.inputs)
    }

    /// Every call with its place among the rows of the group.
    fn placed(&self) -> impl Iterator<Item = (&'a ExpertCall, usize)> {
        self.calls.iter().scan(0, |next, call| {
            let first = *next;
            *next += call.rows.len();
            Some((call, first))
        })
    }

    fn first(&self, cpu: &Cpu, scratch: &mut Scratch, n_rows: usize) {
        let width = self.layout.first_cols();
        let gate_up = scratch.gate_up.first(self.lists.rows.len() * width);
        let data = SharedMut::new(gate_up);
        let mut jobs = recycle(std::mem::take(&mut scratch.lists.jobs));
        for (call, first) in self.placed() {
            let n = call.rows.len();
            let mut job = |weight: MatrixView<'a>, first_col| {
                assert_eq!(weight.cols, self.op.x.len, "shape of an expert");
                jobs.push(MatmulJob {
                    weight,
                    x: inputs(cpu, self.op.x, n_rows, self.limbs(weight.format, weight.cols)),
                    x_rows: RowMap::List(&self.lists.rows[first..first + n]),
                    out: OutRows {
                        data,
                        stride: width,
                        first_col,
                        rows: RowMap::Range { first, n },
                    },
                });
            };
            match &self.layout.gate_up {
                GateUp::Split { gate, up } => {
                    job(call.expert.matrix(gate), 0);
                    job(call.expert.matrix(up), width / 2);
                }
                GateUp::Up(one) | GateUp::Alternating(one) | GateUp::Joined(one) => {
                    job(call.expert.matrix(one), 0);
                }
            }
        }
        run_jobs(&cpu.pool, cpu.isa, &jobs);
        scratch.lists.jobs = recycle(jobs);
        self.activate(cpu, scratch.gate_up.first(self.lists.rows.len() * width), width);
    }

    fn activate(&self, cpu: &Cpu, first: &mut [f32], width: usize) {
        let alternates = matches!(self.layout.gate_up, GateUp::Alternating(_));
        let (activation, biases) = match self.op.function {
            ExpertFunction::Gated { activation, biases } => (activation, biases),
            ExpertFunction::Plain(activation) => {
                return for_each_chunk(&cpu.pool, first, width, width, &|_, row| {
                    elementwise::activate_plain(cpu.isa, activation, row);
                });
            }
        };
        for_each_chunk(&cpu.pool, first, width, width, &|i, row| {
            let biases = biases.map(|biases| {
                let expert = self.lists.experts[i];
                let at = expert * (width / 2)..(expert + 1) * (width / 2);
                (&cpu.vector(biases.gate)[at.clone()], &cpu.vector(biases.up)[at])
            });
            let op = elementwise::Activate { activation, biases, alternates };
            elementwise::activate(cpu.isa, op, row);
        });
    }

    fn down(&self, cpu: &mut Cpu, scratch: &mut Scratch) {
        let Scratch { gate_up, activated, lists, .. } = scratch;
        let intermediate = self.layout.intermediate();
        let stride = self.layout.first_cols();
        let gate_up = &*gate_up.first(self.lists.rows.len() * stride);
        let limbs = self.limbs(self.layout.down.format, self.layout.down.cols);
        if let Some(Limbs { group_size, n_limbs }) = limbs {
            let (n_rows, cols) = (self.lists.rows.len(), intermediate);
            let rounding = Rounding { x: gate_up, stride, n_rows, cols, group_size, n_limbs };
            activated.quantise(&cpu.pool, cpu.isa, rounding);
        }
        let x = match limbs {
            Some(_) => Activations::Quantised(activated),
            None => Activations::Full(FloatRows { data: gate_up, stride, cols: intermediate }),
        };
        let mut taken = cpu.take(self.op.out);
        let data = SharedMut::new(&mut taken.data);
        let job = |(call, first): (&'a ExpertCall, usize)| MatmulJob {
            weight: call.expert.matrix(&self.layout.down),
            x,
            x_rows: RowMap::Range { first, n: call.rows.len() },
            out: OutRows {
                data,
                stride: taken.width,
                first_col: 0,
                rows: RowMap::List(&self.lists.slots[first..first + call.rows.len()]),
            },
        };
        let mut jobs = recycle(std::mem::take(&mut lists.jobs));
        jobs.extend(self.placed().map(job));
        run_jobs(&cpu.pool, cpu.isa, &jobs);
        lists.jobs = recycle(jobs);
        if let Some(biases) = self.op.function.biases() {
            let hidden = self.layout.down.rows;
            for (slot, expert) in self.lists.slots.iter().zip(&self.lists.experts) {
                let bias = &cpu.vector(biases.down)[expert * hidden..(expert + 1) * hidden];
                let out = &mut taken.data[*slot as usize * taken.width..][..hidden];
                elementwise::add(cpu.isa, out, bias);
            }
        }
        cpu.put(self.op.out, taken);
    }
}
