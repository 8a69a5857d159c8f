//! Sums that the norm right behind them adds up itself, in the order of the
//! kernel that it takes the place of.

use moeflux_backend::{Cols, Heads};

use super::jobs::holds_rows;
use super::rounding::Beside;
use crate::buffer::Mem;
use crate::grid::Grid;
use crate::last_sum::{LastSum, Summands};
use crate::shader::{Shader, Variant};
use crate::state::Wgpu;
use crate::words::ELEMENTS;

/// Summands of all elements of a thread, which are on their way at once.
const MOST: usize = 320;

impl Summands {
    /// A row for each row.
    pub(super) fn of_one(mem: Mem, view: [u32; 4]) -> Summands {
        let mems = [(); 3].map(|()| mem.clone());
        Summands {
            mems,
            gate: mem,
            views: [view, [0; 4], [0; 4]],
            weights: 0,
            consts: [1, 0, 0, 0],
        }
    }

    /// A norm of the sum: the parameters and constants of the norm alone, and its
    /// output, the sum and its weight.
    pub(super) fn norm(
        self,
        b: &mut Wgpu,
        rows: usize,
        (params, mut consts): (&[u32], [u32; 5]),
        [y, acc, weight]: [&Mem; 3],
        beside: Option<Beside>,
    ) {
        let Summands { mems: [added, lists, shared], gate, views, weights, consts: own } = self;
        let [of_added, of_shared, of_gate] = views;
        consts[4] &= u32::from(are_aligned(&[of_added, of_shared]));
        let mut params = params[..12].to_vec();
        params.extend([of_gate, of_added, of_shared].as_flattened());
        params.push(weights);
        let (rounding, rounded, sums) = Beside::or_unused(beside.as_ref(), b);
        let consts = [&consts[..], &rounding, &own].concat();
        b.encoder.dispatch(
            Variant::new(Shader::NormOfSum, &consts),
            &params,
            &[y, acc, weight, &gate, &added, &lists, &shared, &rounded, &sums],
            Grid::Linear(rows),
        );
    }
}

/// Notes that the last kernel added to columns of so many rows.
pub(super) fn note(b: &mut Wgpu, rows: usize, acc: Cols, summands: impl FnOnce() -> Summands) {
    if b.fuses && holds_rows(rows) {
        let (nth, summands) = (b.encoder.last_kernel(), summands());
        b.last_sum = Some(LastSum { nth, rows, acc, summands });
    }
}

/// Takes the last kernel back where it added to what a norm is about to read
/// from `x`; gives what it added. The norm writes `y`.
pub(super) fn take(b: &mut Wgpu, rows: usize, x: Heads, y: &Mem) -> Option<Summands> {
    let LastSum { nth, rows: of_rows, acc, summands } = b.last_sum.take()?;
    let [_, top_k, ..] = summands.consts;
    let per_thread = x.head_dim.div_ceil(threads(x.head_dim));
    let can = acc.heads(1) == x
        && of_rows == rows
        && summands.mems.iter().chain([&summands.gate]).all(|it| it.id != y.id)
        && per_thread * (top_k as usize + 2) <= MOST;
    (can && b.encoder.take_back(nth)).then_some(summands)
}

/// Threads of a head of so many elements.
pub(crate) fn threads(head_dim: usize) -> usize {
    if head_dim >= WIDE { 256 } else { ELEMENTS }
}

/// Whether all that views show lies at multiples of four elements.
pub(super) fn are_aligned(views: &[[u32; 4]]) -> bool {
    views.as_flattened().iter().all(|it| it.is_multiple_of(4))
}

/// From so many elements on, heads get more threads.
pub(super) const WIDE: usize = 512;
