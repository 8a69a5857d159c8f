//! Element-wise ops: copy, add, bias, scale, sigmoid gate and the activations of MLPs.

use crate::ops::chain;
use crate::ops::operand::Operand;
use crate::ops::operand::cols;
use crate::ops::operand::heads;
use moeflux_backend::{Cols, GatedActivation, Heads, PlainActivation, Vector};

use crate::commands::grid::Grid;
use crate::kernels::basic as kernels;
use crate::kernels::shared::ActivationNumbers;
use crate::ops::matmul::quantize::{FusedQuant, QuantSpan, fused_quant};
use crate::state::chain::RowOp;
use crate::state::gpu::Wgpu;
use crate::words::{ELEMENTS, word};

/// Elements from which threads have several each: a device begins about one workgroup in a clock. Few in
/// tests, so that these see both.
const MANY: usize = if cfg!(test) { 1 << 10 } else { 1 << 18 };
/// How many they have then.
const PER_THREAD: usize = 8;

/// What `elementwise/elementwise.wgsl` calls its ops.
#[derive(Clone, Copy)]
enum Op {
    Copy = 0,
    Add = 1,
    AddBias = 2,
    SigmoidGate = 3,
    Scale = 4,
    Activate = 5,
    ActivateInPlace = 6,
    ScaledSilu = 7,
    ActivatePlain = 8,
}

/// An op with its constants.
#[derive(Clone, Copy)]
struct Elementwise {
    op: Op,
    /// The activation's number in `include/common.wgsl`.
    activation: u32,
    /// The factor, or the activation's `alpha` and `limit`.
    numbers: [f32; 2],
}

impl From<Op> for Elementwise {
    fn from(op: Op) -> Elementwise {
        Elementwise { op, activation: 0, numbers: [0.0; 2] }
    }
}

/// Runs an op over every element of the heads of `out`; whether they were
/// rounded too.
fn run(
    b: &mut Wgpu,
    op: impl Into<Elementwise>,
    rows: usize,
    out: Heads,
    a: Operand,
    other: Option<Operand>,
) -> bool {
    let Elementwise { op, activation, numbers } = op.into();
    let mut y = heads(b, out);
    b.written(out.buf);
    let n = rows * out.n_heads * out.head_dim;
    let other = other.unwrap_or_else(|| a.clone());
    y.view[3] = numbers[1].to_bits();
    let mut params = vec![word(n), word(out.n_heads), word(out.head_dim), numbers[0].to_bits()];
    params.extend([y.view, a.view, other.view].as_flattened());
    let op = op as u32;
    b.encoder.begin();
    match fused_quant(b, out, rows, QuantSpan::Elements) {
        None => {
            let per_thread = if n >= MANY { PER_THREAD } else { 1 };
            b.encoder.dispatch(
                kernels::Elementwise { op, activation, per_thread: word(per_thread) },
                &params,
                &[&y.mem, &a.mem, &other.mem],
                Grid::Linear(n.div_ceil(ELEMENTS * per_thread)),
            );
            false
        }
        Some(FusedQuant { quant, quantized, sums }) => {
            b.encoder.dispatch(
                kernels::ElementwiseQuantized { quant, op, activation, per_thread: 1 },
                &params,
                &[&y.mem, &a.mem, &other.mem, &quantized, &sums],
                Grid::Linear(n.div_ceil(ELEMENTS)),
            );
            true
        }
    }
}

/// Adds an op to what the last kernel does, or runs a kernel of its own, which may round too.
fn over_rows(b: &mut Wgpu, rows: usize, op: RowOp, alone: impl FnOnce(&mut Wgpu) -> bool) {
    if !chain::append(b, rows, &op) && !alone(b) {
        chain::begin(b, rows, op, None);
    }
}

pub(crate) fn copy(b: &mut Wgpu, rows: usize, out: Heads, x: Heads) {
    assert!(out.buf != x.buf, "an op writes a buffer that it also reads");
    if out.n_heads == 1 && x.n_heads == 1 {
        let [out_cols, x_cols] =
            [out, x].map(|Heads { buf, start, head_dim: len, .. }| Cols { buf, start, len });
        over_rows(b, rows, RowOp::Copy { out: out_cols, x: x_cols }, |b| {
            let x = heads(b, x);
            run(b, Op::Copy, rows, out, x, None)
        });
        return;
    }
    let x = heads(b, x);
    run(b, Op::Copy, rows, out, x, None);
}

/// Rows side by side have the bytes of rows one after the other.
pub(crate) fn join_rows(b: &mut Wgpu, rows: usize, out: Cols, x: Cols) {
    assert!(out.buf != x.buf, "an op writes a buffer that it also reads");
    let to = b.written(out.buf);
    let from = b.buf(x.buf);
    assert!((out.start, out.len) == (0, to.width), "all columns of a buffer");
    assert!((x.start, x.len) == (0, from.width), "all columns of a buffer");
    assert!(out.len.is_multiple_of(x.len), "whole rows stand side by side");
    let from = from.mem.clone();
    // A chain is recorded anew behind what follows it; the copy has to see what it wrote.
    b.chain = None;
    b.encoder.copy(from.at(0), to.mem.at(0), 4 * (rows * out.len) as u64);
}

pub(crate) fn add(b: &mut Wgpu, rows: usize, acc: Cols, x: Cols) {
    over_rows(b, rows, RowOp::Add { acc, x }, |b| {
        let x = cols(b, x);
        run(b, Op::Add, rows, acc.heads(1), x, None)
    });
}

pub(crate) fn add_bias(b: &mut Wgpu, rows: usize, acc: Cols, bias: Vector) {
    let bias = Operand { mem: b.vector(bias).clone(), view: [0; 4] };
    run(b, Op::AddBias, rows, acc.heads(1), bias, None);
}

pub(crate) fn sigmoid_gate(b: &mut Wgpu, rows: usize, x: Heads, gate: Heads) {
    let gate = heads(b, gate);
    run(b, Op::SigmoidGate, rows, x, gate, None);
}

pub(crate) fn scale(b: &mut Wgpu, rows: usize, x: Cols, factor: f32) {
    over_rows(b, rows, RowOp::Scale { x, factor }, |b| {
        in_place(b, Elementwise { numbers: [factor, 0.0], ..Op::Scale.into() }, rows, x)
    });
}

pub(crate) fn scaled_silu(b: &mut Wgpu, rows: usize, x: Cols, factor: f32) {
    in_place(b, Elementwise { numbers: [factor, 0.0], ..Op::ScaledSilu.into() }, rows, x);
}

pub(crate) fn activate_plain(b: &mut Wgpu, rows: usize, activation: PlainActivation, x: Cols) {
    let ActivationNumbers { kind, .. } = activation.into();
    in_place(b, Elementwise { activation: kind, ..Op::ActivatePlain.into() }, rows, x);
}

/// Runs an op in place that has no other input.
fn in_place(b: &mut Wgpu, op: Elementwise, rows: usize, x: Cols) -> bool {
    // The kernel binds an input and does not read it.
    let mem = b.scratch.unused[0].words(&mut b.encoder, 4);
    run(b, op, rows, x.heads(1), Operand { mem, view: [0; 4] }, None)
}

pub(crate) fn activate(
    b: &mut Wgpu,
    rows: usize,
    activation: GatedActivation,
    out: Cols,
    gate: Cols,
    up: Cols,
) {
    let (g, u) = (cols(b, gate), cols(b, up));
    let ActivationNumbers { kind, alpha, limit } = activation.into();
    let of = |op| Elementwise { op, activation: kind, numbers: [alpha, limit] };
    if out == gate {
        run(b, of(Op::ActivateInPlace), rows, out.heads(1), u, None);
    } else {
        run(b, of(Op::Activate), rows, out.heads(1), g, Some(u));
    }
}
