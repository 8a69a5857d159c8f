//! The weighted sum of experts' outputs.

use moeflux_backend::{Buf, Cols, Combine, Experts, Shared};
use moeflux_core::MatrixLayout;

use crate::commands::grid::Grid;
use crate::device::buffer::{ListAt, Mem};
use crate::kernels::basic::ExpertSum;
use crate::kernels::moe as kernels;
use crate::ops::chain;
use crate::state::chain::{ExpertOutputs, RowOp};
use crate::state::gpu::{Activations, Wgpu};
use crate::words::{PER_ELEMENT, word};

pub(crate) fn combine(b: &mut Wgpu, rows: usize, op: Combine<'_>) {
    let Combine { acc, slots, top_k, weights, shared } = op;
    b.encoder.begin();
    let bits: Vec<u32> = weights[..rows * top_k].iter().map(|weight| weight.to_bits()).collect();
    let list = b.encoder.list(&bits);
    let arena = b.encoder.arena();
    let sum = Sum::of(b, acc, slots, top_k, shared);
    add_up(b, rows, sum, arena.list(list));
}

/// What experts give.
#[derive(Clone)]
pub(crate) struct Outputs {
    pub(crate) mem: Mem,
    /// Columns of a row.
    pub(crate) width: usize,
}

/// A [`Combine`] whose weights the device may know alone.
pub(crate) struct Sum {
    pub(crate) acc: Cols,
    pub(crate) top_k: usize,
    pub(crate) slots: Outputs,
    /// What the shared expert gives: its first element, and the columns of a row.
    pub(crate) shared: Option<(Mem, [u32; 2])>,
    /// The logit that scales it.
    pub(crate) gate: Option<Cols>,
}

impl Sum {
    /// Of outputs in buffers of their own.
    pub(crate) fn of(b: &Wgpu, acc: Cols, slots: Buf, top_k: usize, shared: Option<Shared>) -> Sum {
        assert!(acc.buf != slots, "an op writes a buffer that it also reads");
        let Activations { mem, width, .. } = b.buf(slots).clone();
        let slots = Outputs { mem, width };
        let gate = shared.and_then(|shared| shared.gate);
        Sum { acc, top_k, slots, shared: shared.map(|shared| operand(b, shared.out)), gate }
    }
}

/// Where columns are: the first element, and the columns of a row.
pub(crate) fn operand(b: &Wgpu, cols: Cols) -> (Mem, [u32; 2]) {
    let Activations { mem, width, .. } = b.buf(cols.buf);
    (mem.clone(), [cols.start, *width].map(word))
}

/// Adds up with these weights. The op has begun before.
pub(crate) fn add_up(b: &mut Wgpu, rows: usize, op: Sum, weights: ListAt<'_>) {
    let Sum { acc, top_k, slots, shared, gate } = op;
    let ListAt { mem: lists, first: weights } = weights;
    let (has_shared, is_gated) = (shared.is_some(), gate.is_some());
    // What there is not is not read.
    let (out, of_out) = shared.unwrap_or_else(|| (lists.clone(), [0; 2]));
    let (gate, of_gate) = gate.map_or_else(|| (lists.clone(), [0; 2]), |gate| operand(b, gate));
    let outputs = ExpertOutputs {
        mems: [slots.mem.clone(), lists.clone(), out.clone(), gate.clone()],
        width: word(slots.width),
        weights,
        shared: of_out,
        gate: of_gate,
        sum: ExpertSum { top_k: word(top_k), has_shared, is_gated },
    };
    let op = RowOp::Experts { acc, outputs: Box::new(outputs) };
    if chain::append(b, rows, &op) {
        return;
    }
    let y = b.written(acc.buf);
    let n = rows * acc.len;
    let mut params = vec![word(n), word(acc.len), word(top_k), word(acc.start), word(y.width)];
    params.extend([word(slots.width), weights]);
    params.extend([of_out, of_gate].as_flattened());
    b.encoder.dispatch(
        kernels::Combine { has_shared, is_gated },
        &params,
        &[&y.mem, &slots.mem, lists, &out, &gate],
        Grid::Linear(n.div_ceil(PER_ELEMENT)),
    );
    chain::begin(b, rows, op, None);
}

/// Adds biases to the outputs of the first `n` choices of a list.
pub(crate) fn add_down_biases(
    b: &mut Wgpu,
    op: Experts<'_>,
    down: &MatrixLayout,
    ids: &Mem,
    n: usize,
) {
    let Some(biases) = op.function.biases() else { return };
    let out = b.written(op.out);
    let n_elements = n * down.rows;
    let table = b.vector(biases.down).clone();
    b.encoder.dispatch(
        kernels::AddRows { is_chosen: true },
        &[word(n_elements), word(down.rows), 0, word(out.width)],
        &[&out.mem, &table, ids],
        Grid::Linear(n_elements.div_ceil(PER_ELEMENT)),
    );
}
