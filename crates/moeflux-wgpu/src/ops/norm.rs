//! RMS norm, gated RMS norm and layer norm of rows or heads.

use crate::ops::chain;
use crate::ops::operand::heads;
use moeflux_backend::{Cols, GateFunction, GatedRmsNorm, Heads, LayerNorm, RmsNorm, Vector};

use crate::commands::grid::Grid;
use crate::kernels::basic::{self as kernels, NormQuantized, NormShape};
use crate::ops::matmul::quantize::{FusedQuant, QuantSpan, fused_quant};
use crate::state::chain::RowOp;
use crate::state::gpu::Wgpu;
use crate::words::{norm_threads, word};

/// A norm of any kind.
struct Norm {
    /// What `norm/norm.wgsl` calls it.
    kind: u32,
    out: Heads,
    x: Heads,
    weight: Vector,
    gate: Option<Heads>,
    bias: Option<Vector>,
    eps: f32,
}

/// Runs a norm; where it was rounded to, too.
fn norm(b: &mut Wgpu, rows: usize, op: Norm) -> Option<FusedQuant> {
    let in_place = op.out == op.x;
    assert!(in_place || op.out.buf != op.x.buf, "an op writes a buffer that it also reads");
    let (mut y, x) = (heads(b, op.out), heads(b, op.x));
    let gate = op.gate.map_or_else(|| x.clone(), |gate| heads(b, gate));
    b.written(op.out.buf);
    let weight = b.vector(op.weight).clone();
    let n_weights = weight.bytes() / 4;
    let is_shared = n_weights == op.out.head_dim as u64;
    assert!(
        is_shared || n_weights == (op.out.n_heads * op.out.head_dim) as u64,
        "factors of a norm"
    );
    y.view[3] = if is_shared { 0 } else { word(op.out.head_dim) };
    let bias = op.bias.map_or_else(|| weight.clone(), |bias| b.vector(bias).clone());
    let threads = norm_threads(op.out.head_dim);
    let n = rows * op.out.n_heads;
    let mut params = vec![word(n), word(op.out.n_heads), word(op.out.head_dim), op.eps.to_bits()];
    params.extend([y.view, x.view, gate.view].as_flattened());
    // What a kernel does not read may not be what it writes.
    let x_mem = if in_place { &weight } else { &x.mem };
    let gate_mem = if op.gate.is_some() { &gate.mem } else { &weight };
    b.encoder.begin();
    let per_thread = op.out.head_dim.div_ceil(4 * threads);
    let views = [y.view, x.view, gate.view];
    let is_aligned = op.out.head_dim.is_multiple_of(4) && are_aligned(&views);
    let shape = NormShape {
        kind: op.kind,
        in_place,
        threads: word(threads),
        per_thread: word(per_thread),
        is_aligned,
    };
    let buffers = [&y.mem, x_mem, &weight, gate_mem, &bias];
    let fused_quant = fused_quant(b, op.out, rows, QuantSpan::Head);
    match &fused_quant {
        None => {
            b.encoder.dispatch(kernels::Norm { shape }, &params, &buffers, Grid::Linear(n));
        }
        Some(FusedQuant { quant, quantized, sums }) => {
            let kernel = NormQuantized { shape, quant: *quant };
            let buffers = [&buffers[..], &[quantized, sums]].concat();
            b.encoder.dispatch(kernel, &params, &buffers, Grid::Linear(n));
        }
    }
    fused_quant
}

pub(crate) fn rms_norm(b: &mut Wgpu, rows: usize, op: RmsNorm) {
    let RmsNorm { out, x, weight, eps } = op;
    let row_op = (out.n_heads == 1).then(|| {
        let [out, x] =
            [out, x].map(|Heads { buf, start, head_dim: len, .. }| Cols { buf, start, len });
        RowOp::Norm { out, x, weight, eps }
    });
    if row_op.as_ref().is_some_and(|op| chain::append(b, rows, op)) {
        return;
    }
    let rounding = norm(b, rows, Norm { kind: 0, out, x, weight, gate: None, bias: None, eps });
    if let Some(op) = row_op {
        chain::begin(b, rows, op, rounding);
    }
}

pub(crate) fn gated_rms_norm(b: &mut Wgpu, rows: usize, op: GatedRmsNorm) {
    let RmsNorm { out, x, weight, eps } = op.norm;
    let kind = match (op.function, op.gates_input) {
        (GateFunction::Silu, false) => 1,
        (GateFunction::Sigmoid, false) => 3,
        (GateFunction::Silu, true) => 4,
        (GateFunction::Sigmoid, true) => 5,
    };
    norm(b, rows, Norm { kind, out, x, weight, gate: Some(op.gate), bias: None, eps });
}

pub(crate) fn layer_norm(b: &mut Wgpu, rows: usize, op: LayerNorm) {
    let LayerNorm { out, x, weight, bias, eps } = op;
    norm(b, rows, Norm { kind: 2, out, x, weight, gate: None, bias: Some(bias), eps });
}

/// Whether all that views show is at multiples of four elements.
fn are_aligned(views: &[[u32; 4]]) -> bool {
    views.as_flattened().iter().all(|word| word.is_multiple_of(4))
}
