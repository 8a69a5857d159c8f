//! Sums that the norm right after them adds up itself, in the order of the kernel that it takes
//! the place of.

use moeflux_backend::{Cols, Heads};

use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::basic::{FusedSum, NormOfSum, NormShape};
use crate::ops::matmul::jobs::holds_rows;
use crate::ops::matmul::quantize::FusedQuant;
use crate::state::gpu::Wgpu;
use crate::state::last_sum::{LastSum, Summands};
use crate::words::ELEMENTS;

/// Summands of all elements of a thread, which are on their way at once.
const MOST: usize = 320;

impl Summands {
    /// A row for each row.
    pub(crate) fn of_one(mem: Mem, view: [u32; 4]) -> Summands {
        let mems = [(); 3].map(|()| mem.clone());
        Summands {
            mems,
            gate: mem,
            views: [view, [0; 4], [0; 4]],
            weights: 0,
            sum: FusedSum { kind: 1, ..FusedSum::default() },
        }
    }

    /// A norm of the sum: the parameters and constants of the norm alone, and its
    /// output, the sum and its weight.
    pub(crate) fn norm(
        self,
        b: &mut Wgpu,
        rows: usize,
        params: &[u32],
        mut shape: NormShape,
        [y, acc, weight]: [&Mem; 3],
        fused_quant: Option<FusedQuant>,
    ) {
        let Summands { mems: [added, lists, shared], gate, views, weights, sum } = self;
        let [of_added, of_shared, of_gate] = views;
        shape.is_aligned &= are_aligned(&[of_added, of_shared]);
        let mut params = params[..12].to_vec();
        params.extend([of_gate, of_added, of_shared].as_flattened());
        params.push(weights);
        let (quant, quantized, sums) = FusedQuant::or_unused(fused_quant.as_ref(), b);
        b.encoder.dispatch(
            NormOfSum { shape, quant, sum },
            &params,
            &[y, acc, weight, &gate, &added, &lists, &shared, &quantized, &sums],
            Grid::Linear(rows),
        );
    }
}

/// Notes that the last kernel added to columns of this many rows.
pub(crate) fn record(b: &mut Wgpu, rows: usize, acc: Cols, summands: impl FnOnce() -> Summands) {
    if b.fuses && holds_rows(rows) {
        let (nth, summands) = (b.encoder.last_kernel(), summands());
        b.last_sum = Some(LastSum { nth, rows, acc, summands });
    }
}

/// Takes the last kernel back where it added to what a norm is about to read
/// from `x`; gives what it added. The norm writes `y`.
pub(crate) fn take(b: &mut Wgpu, rows: usize, x: Heads, y: &Mem) -> Option<Summands> {
    let LastSum { nth, rows: of_rows, acc, summands } = b.last_sum.take()?;
    let per_thread = x.head_dim.div_ceil(threads(x.head_dim));
    let can = acc.heads(1) == x
        && of_rows == rows
        && summands.mems.iter().chain([&summands.gate]).all(|mem| mem.id != y.id)
        && per_thread * (summands.sum.top_k as usize + 2) <= MOST;
    (can && b.encoder.retract_kernel(nth)).then_some(summands)
}

/// Threads of a head of this many elements.
pub(crate) fn threads(head_dim: usize) -> usize {
    if head_dim >= WIDE { 256 } else { ELEMENTS }
}

/// Whether all that views show is at multiples of four elements.
pub(crate) fn are_aligned(views: &[[u32; 4]]) -> bool {
    views.as_flattened().iter().all(|word| word.is_multiple_of(4))
}

/// From this many elements on, heads get more threads.
pub(crate) const WIDE: usize = 512;
