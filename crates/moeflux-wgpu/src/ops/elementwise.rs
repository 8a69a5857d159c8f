//! Ops that treat elements or heads alone.

use moeflux_backend::{
    Cols, GatedRmsNorm, Heads, LayerNorm, RmsNorm, Rope, RopePairs, Span, Vector,
};

use super::rounding::{Beside, Share, beside};
use super::sums;
use crate::buffer::Mem;
use crate::grid::Grid;
use crate::last_sum::{LastSum, Summands};
use crate::ops::sums::{are_aligned, threads};
use crate::shader::{Shader, Variant};
use crate::state::Wgpu;
use crate::words::{ELEMENTS, n_rows, word};

/// What `elementwise.wgsl` calls its ops.
#[derive(Clone, Copy)]
enum Op {
    Copy = 0,
    Add = 1,
    AddBias = 2,
    SigmoidGate = 3,
    Swiglu = 4,
    SwigluInPlace = 5,
}

/// An operand: its buffer, and what kernels know as a `View` of it.
#[derive(Clone)]
struct Operand {
    mem: Mem,
    view: [u32; 4],
}

fn heads(b: &Wgpu, it: Heads) -> Operand {
    let buf = b.buf(it.buf);
    let end = it.start + (it.n_heads - 1) * it.stride + it.head_dim;
    assert!(end <= buf.width, "columns lie inside their buffer");
    Operand { mem: buf.mem.clone(), view: [word(it.start), word(buf.width), word(it.stride), 0] }
}

fn cols(b: &Wgpu, it: Cols) -> Operand {
    heads(b, it.heads(1))
}

/// Runs an op over every element of the heads of `out`; whether they were
/// rounded too.
fn run(b: &mut Wgpu, op: Op, rows: usize, out: Heads, a: Operand, other: Option<Operand>) -> bool {
    let y = heads(b, out);
    b.written(out.buf);
    let n = rows * out.n_heads * out.head_dim;
    let other = other.unwrap_or_else(|| a.clone());
    let mut params = vec![word(n), word(out.n_heads), word(out.head_dim), 0];
    params.extend([y.view, a.view, other.view].as_flattened());
    b.encoder.begin();
    let grid = Grid::Linear(n.div_ceil(ELEMENTS));
    match beside(b, out, rows, Share::Elements) {
        None => {
            b.encoder.dispatch(
                Variant::new(Shader::Elementwise, &[op as u32]),
                &params,
                &[&y.mem, &a.mem, &other.mem],
                grid,
            );
            false
        }
        Some(Beside { consts, rounded, sums }) => {
            let [group, digits, order, float] = consts;
            let consts = [op as u32, group, digits, order, float];
            let variant = Variant::new(Shader::ElementwiseRounded, &consts);
            b.encoder.dispatch(
                variant,
                &params,
                &[&y.mem, &a.mem, &other.mem, &rounded, &sums],
                grid,
            );
            true
        }
    }
}

pub(crate) fn copy(b: &mut Wgpu, rows: usize, out: Heads, x: Heads) {
    assert!(out.buf != x.buf, "an op writes a buffer that it also reads");
    let x = heads(b, x);
    run(b, Op::Copy, rows, out, x, None);
}

pub(crate) fn add(b: &mut Wgpu, rows: usize, acc: Cols, x: Cols) {
    let Operand { mem, view } = cols(b, x);
    let is_rounded = run(b, Op::Add, rows, acc.heads(1), Operand { mem: mem.clone(), view }, None);
    if !is_rounded {
        sums::note(b, rows, acc, || Summands::of_one(mem, view));
    }
}

pub(crate) fn add_bias(b: &mut Wgpu, rows: usize, acc: Cols, bias: Vector) {
    let bias = Operand { mem: b.vector(bias).clone(), view: [0; 4] };
    run(b, Op::AddBias, rows, acc.heads(1), bias, None);
}

pub(crate) fn sigmoid_gate(b: &mut Wgpu, rows: usize, x: Heads, gate: Heads) {
    let gate = heads(b, gate);
    run(b, Op::SigmoidGate, rows, x, gate, None);
}

pub(crate) fn swiglu(b: &mut Wgpu, rows: usize, out: Cols, gate: Cols, up: Cols) {
    let (g, u) = (cols(b, gate), cols(b, up));
    if out == gate {
        run(b, Op::SwigluInPlace, rows, out.heads(1), u, None);
    } else {
        run(b, Op::Swiglu, rows, out.heads(1), g, Some(u));
    }
}

/// A norm of any kind.
struct Norm {
    /// What `norm.wgsl` calls it.
    kind: u32,
    out: Heads,
    x: Heads,
    weight: Vector,
    gate: Option<Heads>,
    bias: Option<Vector>,
    eps: f32,
}

fn norm(b: &mut Wgpu, rows: usize, op: Norm) {
    let in_place = op.out == op.x;
    assert!(in_place || op.out.buf != op.x.buf, "an op writes a buffer that it also reads");
    let (y, x) = (heads(b, op.out), heads(b, op.x));
    let gate = op.gate.map_or_else(|| x.clone(), |it| heads(b, it));
    b.written(op.out.buf);
    let weight = b.vector(op.weight).clone();
    let bias = op.bias.map_or_else(|| weight.clone(), |it| b.vector(it).clone());
    let threads = threads(op.out.head_dim);
    let n = rows * op.out.n_heads;
    let mut params = vec![word(n), word(op.out.n_heads), word(op.out.head_dim), op.eps.to_bits()];
    params.extend([y.view, x.view, gate.view].as_flattened());
    // What a kernel does not read may not be what it writes.
    let x_mem = if in_place { &weight } else { &x.mem };
    let gate_mem = if op.gate.is_some() { &gate.mem } else { &weight };
    b.encoder.begin_behind(b.last_sum.as_ref().map(LastSum::nth));
    let per_thread = op.out.head_dim.div_ceil(4 * threads);
    let views = [y.view, x.view, gate.view];
    let is_aligned = op.out.head_dim.is_multiple_of(4) && are_aligned(&views);
    let consts =
        [op.kind, u32::from(in_place), word(threads), word(per_thread), u32::from(is_aligned)];
    let buffers = [&y.mem, x_mem, &weight, gate_mem, &bias];
    let beside = beside(b, op.out, rows, Share::Head);
    if op.kind == 0
        && !in_place
        && let Some(summands) = sums::take(b, rows, op.x, &y.mem)
    {
        return summands.norm(b, rows, (&params, consts), [&y.mem, &x.mem, &weight], beside);
    }
    match beside {
        None => {
            b.encoder.dispatch(
                Variant::new(Shader::Norm, &consts),
                &params,
                &buffers,
                Grid::Linear(n),
            );
        }
        Some(Beside { consts: rounding, rounded, sums }) => {
            let variant = Variant::new(Shader::NormRounded, &[&consts[..], &rounding].concat());
            let buffers = [&buffers[..], &[&rounded, &sums]].concat();
            b.encoder.dispatch(variant, &params, &buffers, Grid::Linear(n));
        }
    }
}

pub(crate) fn rms_norm(b: &mut Wgpu, rows: usize, op: RmsNorm) {
    let RmsNorm { out, x, weight, eps } = op;
    norm(b, rows, Norm { kind: 0, out, x, weight, gate: None, bias: None, eps });
}

pub(crate) fn gated_rms_norm(b: &mut Wgpu, rows: usize, op: GatedRmsNorm) {
    let RmsNorm { out, x, weight, eps } = op.norm;
    norm(b, rows, Norm { kind: 1, out, x, weight, gate: Some(op.gate), bias: None, eps });
}

pub(crate) fn layer_norm(b: &mut Wgpu, rows: usize, op: LayerNorm) {
    let LayerNorm { out, x, weight, bias, eps } = op;
    norm(b, rows, Norm { kind: 2, out, x, weight, gate: None, bias: Some(bias), eps });
}

/// Where the table of some spans lies in the arena, for as long as an op has
/// begun; how many pairs there are, and whether they are adjacent.
pub(super) fn place(b: &mut Wgpu, rope: Rope, spans: &[Span]) -> (u32, [u32; 2]) {
    let table = &mut b.ropes[rope.0 as usize];
    table.set(spans);
    let generation = b.encoder.generation();
    let place = match table.place {
        Some((since, place)) if since == generation => place,
        _ => b.encoder.list(&table.table),
    };
    table.place = Some((generation, place));
    let is_adjacent = table.spec.pairs == RopePairs::Adjacent;
    (place, [word(table.n_pairs()), u32::from(is_adjacent)])
}

pub(crate) fn rope(b: &mut Wgpu, x: Heads, rope: Rope, spans: &[Span]) {
    let y = heads(b, x);
    b.written(x.buf);
    let table = &mut b.ropes[rope.0 as usize];
    table.set(spans);
    let n_pairs = table.spec.inv_freq.len();
    let adjacent = u32::from(table.spec.pairs == RopePairs::Adjacent);
    // Long chunks have tables that exceed a list: they are rotated in parts.
    let per_part = (crate::encoder::Encoder::list_limit() / (2 * n_pairs)).max(1);
    let rows = n_rows(spans);
    for first in (0..rows).step_by(per_part) {
        let n_now = per_part.min(rows - first);
        b.encoder.begin();
        let table = &mut b.ropes[rope.0 as usize];
        let place = match table.place {
            Some((generation, place)) if generation == b.encoder.generation() => place,
            _ => b.encoder.list(&table.table[2 * n_pairs * first..2 * n_pairs * (first + n_now)]),
        };
        table.place = (per_part >= rows).then_some((b.encoder.generation(), place));
        let n = n_now * x.n_heads * n_pairs;
        let [start, width, stride, _] = y.view;
        let start = start + word(first) * width;
        let params = [word(n), word(x.n_heads), word(n_pairs), start, width, stride, place];
        let arena = b.encoder.arena();
        b.encoder.dispatch(
            Variant::new(Shader::Rope, &[adjacent]),
            &params,
            &[&y.mem, &arena],
            Grid::Linear(n.div_ceil(ELEMENTS)),
        );
    }
}
