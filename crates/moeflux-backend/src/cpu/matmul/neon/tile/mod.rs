//! Several rows of activations: eight rows of the matrix are unpacked piece by
//! piece, and each piece multiplies all rows of the activations. How a piece
//! lies in memory depends on the instructions that multiply it.

pub(super) mod pairs;
pub(super) mod quads;
pub(super) mod rows;

use std::arch::aarch64::*;
use std::cell::Cell;
use std::ops::Range;

use super::instructions::Instructions;
use super::params::{GROUPS, Params};
use super::stream::{Chunk, both_digits, missing};
use super::vector::{load_floats, store_floats};
use crate::cpu::matmul::IntegerProduct;
use crate::cpu::matmul::jobs::OutPart;

/// Rows of the matrix that are unpacked together.
pub(super) const ROWS: usize = 8;
/// Columns that are unpacked together: eight rows of them take half of the
/// smallest first cache. A multiple of every group size.
const COLS: usize = 2048;
/// Rows of activations of one pass.
const X_ROWS: usize = 64;

const _: () = assert!(GROUPS * 32 == COLS, "the parameters of a piece");

/// Some columns of eight rows; rows beyond the last repeat it.
pub(super) struct Piece {
    /// One byte a weight.
    q: [[u8; 16]; ROWS * COLS / 16],
    /// Bits of a weight, or what stands for these.
    codes: usize,
    params: [Params; 2],
}

/// Some rows of the activations.
pub(super) struct Inputs<'a> {
    rows: Vec<Input<'a>>,
    group_size: usize,
    n_groups: usize,
    /// What dots lack of each group of each row; empty where they lack nothing.
    missing: Vec<i32>,
    /// The rows in another order; see [`pairs`].
    arranged: Vec<Chunk>,
}

/// One row of the activations.
#[derive(Clone, Copy)]
struct Input<'a> {
    /// The digits, if there are two the larger one first, else the same twice.
    digits: [&'a [i8]; 2],
    n_digits: usize,
    s: &'a [f32],
    st: &'a [f32],
}

/// The accumulators of eight outputs.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    acc: [float32x4_t; 2],
    off: [float32x4_t; 2],
}

/// What a call needs besides its arguments, kept from call to call.
type Scratch = (Vec<i32>, Vec<Chunk>);

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// The outputs of `rows` for all rows of the activations.
#[target_feature(enable = "neon")]
pub(super) fn integer_rows<L: Instructions>(
    isa: L,
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    out: &mut OutPart<'_>,
) {
    let n = product.x_rows.len();
    let (q, params) = ([[0; 16]; ROWS * COLS / 16], [Params::default(); 2]);
    let mut piece = Piece { q, codes: product.integers.codes, params };
    let mut sums = vec![Sums::zero(); n.min(X_ROWS)];
    for first in (0..n).step_by(X_ROWS) {
        let x_rows = first..n.min(first + X_ROWS);
        let sums = &mut sums[..x_rows.len()];
        let mut inputs = Inputs::new::<L>(&product, x_rows.clone(), SCRATCH.take());
        isa.arrange(&mut inputs);
        for row in rows.clone().step_by(ROWS) {
            let block = row..rows.end.min(row + ROWS);
            sums.fill(Sums::zero());
            for col in (0..product.weight.cols).step_by(COLS) {
                let cols = col..product.weight.cols.min(col + COLS);
                let groups = product.integers.n_groups(col)..product.integers.n_groups(cols.end);
                piece.load(isa, &product, block.clone(), cols);
                isa.multiply(&piece, &inputs, groups, sums);
            }
            for (i, it) in x_rows.clone().zip(&*sums) {
                out.put(i, row, &it.total()[..block.len()]);
            }
        }
        SCRATCH.set((inputs.missing, inputs.arranged));
    }
}

impl<'a> Inputs<'a> {
    fn new<L: Instructions>(
        product: &IntegerProduct<'a>,
        x_rows: Range<usize>,
        (mut missing_sums, arranged): Scratch,
    ) -> Inputs<'a> {
        let x = product.x;
        let x_rows = x_rows.map(|it| product.x_rows.at(it));
        missing_sums.clear();
        if product.integers.codes == 8 && L::SIGNED {
            missing_sums.extend(x_rows.clone().flat_map(|row| missing(x, row)));
        }
        let last = x.n_digits() - 1;
        let rows = x_rows.map(|row| Input {
            digits: [x.q(row, 0), x.q(row, last)],
            n_digits: x.n_digits(),
            s: x.s(row),
            st: x.st(row),
        });
        Inputs {
            rows: rows.collect(),
            group_size: product.integers.group_size,
            n_groups: product.n_groups(),
            missing: missing_sums,
            arranged,
        }
    }

    fn n_digits(&self) -> usize {
        self.rows.first().map_or(0, |it| it.n_digits)
    }

    /// What the dots of a group with row `i` lack.
    #[inline]
    fn missing(&self, i: usize, group: usize) -> i32 {
        self.missing.get(i * self.n_groups + group).copied().unwrap_or(0)
    }
}

impl Piece {
    #[inline]
    #[target_feature(enable = "neon")]
    fn load<L: Instructions>(
        &mut self,
        isa: L,
        product: &IntegerProduct<'_>,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        let format = product.weight.format;
        let bytes = format.row_bytes(cols.start)..format.row_bytes(cols.end);
        let packed = std::array::from_fn(|r| {
            let row = rows.start + r.min(rows.len() - 1);
            &product.weight_rows(row..row + 1)[bytes.clone()]
        });
        isa.load(self, packed, product.integers.codes);
        let groups = product.integers.n_groups(cols.start)..product.integers.n_groups(cols.end);
        for (params, first) in self.params.iter_mut().zip([0, 4]) {
            let rows = rows.end.min(rows.start + first)..rows.end.min(rows.start + first + 4);
            params.load(product, rows, groups.clone());
        }
    }
}

impl Sums {
    #[inline]
    #[target_feature(enable = "neon")]
    fn zero() -> Sums {
        let zero = [vdupq_n_f32(0.0); 2];
        Sums { acc: zero, off: zero }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn total(&self) -> [f32; ROWS] {
        let mut out = [0.0; ROWS];
        for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            store_floats(out, vaddq_f32(self.acc[i], self.off[i]));
        }
        out
    }

    /// Ends a group, the `g`-th of the piece.
    #[inline]
    #[target_feature(enable = "neon")]
    fn end_group(&mut self, dots: [int32x4_t; 2], params: &[Params; 2], g: usize, s: f32, st: f32) {
        for i in 0..2 {
            let scale = vmulq_n_f32(load_floats(&params[i].scale[g]), s);
            self.acc[i] = vfmaq_f32(self.acc[i], vcvtq_f32_s32(dots[i]), scale);
            self.off[i] = vfmaq_n_f32(self.off[i], load_floats(&params[i].bias[g]), st);
        }
    }
}
