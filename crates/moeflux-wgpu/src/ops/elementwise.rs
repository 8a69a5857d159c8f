//! Element-wise ops: copy, add, bias, sigmoid gate and SwiGLU.

use crate::ops::fused_sum;
use crate::ops::operand::Operand;
use crate::ops::operand::cols;
use crate::ops::operand::heads;
use moeflux_backend::{Cols, Heads, Vector};

use crate::commands::grid::Grid;
use crate::kernels::basic as kernels;
use crate::ops::matmul::quantize::{FusedQuant, QuantSpan, fused_quant};
use crate::state::backend::Wgpu;
use crate::state::last_sum::Summands;
use crate::words::{ELEMENTS, word};

/// What `elementwise/elementwise.wgsl` calls its ops.
#[derive(Clone, Copy)]
enum Op {
    Copy = 0,
    Add = 1,
    AddBias = 2,
    SigmoidGate = 3,
    Swiglu = 4,
    SwigluInPlace = 5,
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
    match fused_quant(b, out, rows, QuantSpan::Elements) {
        None => {
            b.encoder.dispatch(
                kernels::Elementwise { op: op as u32 },
                &params,
                &[&y.mem, &a.mem, &other.mem],
                grid,
            );
            false
        }
        Some(FusedQuant { quant, quantized, sums }) => {
            b.encoder.dispatch(
                kernels::ElementwiseQuantized { quant, op: op as u32 },
                &params,
                &[&y.mem, &a.mem, &other.mem, &quantized, &sums],
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
        fused_sum::record(b, rows, acc, || Summands::of_one(mem, view));
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
