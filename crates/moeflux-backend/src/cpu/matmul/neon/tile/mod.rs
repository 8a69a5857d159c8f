//! Several rows of activations: eight rows of the matrix are unpacked piece by
//! piece, and each piece multiplies all rows of the activations. The layout of a
//! piece in memory depends on the instructions that multiply it.

pub(super) mod pairs;
pub(super) mod quads;
pub(super) mod rows;

use std::cell::Cell;
use std::ops::Range;

use super::instructions::Instructions;
use super::limbs::{Chunk, missing};
use super::params::Params;
use super::piece::{COLS, Input, Inputs, Piece, ROWS, Sums};
use crate::cpu::matmul::block_format::BlockFormat;
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::rows::OutPart;

/// Rows of activations of one pass.
const X_ROWS: usize = 64;

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
        isa.prepack(&mut inputs);
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
        SCRATCH.set((inputs.missing, inputs.prepacked));
    }
}

impl<'a> Inputs<'a> {
    fn new<L: Instructions>(
        product: &IntegerProduct<'a>,
        x_rows: Range<usize>,
        (mut missing_sums, prepacked): Scratch,
    ) -> Inputs<'a> {
        let x = product.x;
        let x_rows = x_rows.map(|row| product.x_rows.at(row));
        missing_sums.clear();
        if product.integers.codes == 8 && L::SIGNED {
            missing_sums.extend(x_rows.clone().flat_map(|row| missing(x, row)));
        }
        let last = x.n_limbs() - 1;
        let rows = x_rows.map(|row| Input {
            limbs: [x.q(row, 0), x.q(row, last)],
            n_limbs: x.n_limbs(),
            s: x.s(row),
            st: x.st(row),
        });
        Inputs {
            rows: rows.collect(),
            group_size: product.integers.group_size,
            n_groups: product.n_groups(),
            missing: missing_sums,
            prepacked,
        }
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
