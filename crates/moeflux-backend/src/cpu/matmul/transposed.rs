//! Products with the transpose of a matrix: its rows are inputs, its columns
//! outputs, which are the lanes. `out = fma(w, x, out)` by ascending row, from
//! zero.

use std::ops::Range;

use moeflux_core::quant::MatrixView;

use super::decode::decode;
use super::partials::COLS;
use super::product::FullProduct;
use super::rows::OutPart;
use crate::cpu::Isa;
use crate::cpu::isa::for_every_isa;

/// Rows of the matrix that are decoded together.
const ROWS: usize = 4;
/// Rows of the activations whose sums are kept together.
const X_ROWS: usize = 16;

/// Computes the outputs `cols`, which begin at a group.
pub(super) fn columns(
    isa: Isa,
    product: FullProduct<'_>,
    cols: Range<usize>,
    mut out: OutPart<'_>,
) {
    let FullProduct { weight, x, x_rows } = product;
    let mut decoded = [[0f32; COLS]; ROWS];
    let mut sums = [[0f32; COLS]; X_ROWS];
    for col in cols.clone().step_by(COLS) {
        let n_cols = COLS.min(cols.end - col);
        for first in (0..x_rows.len()).step_by(X_ROWS) {
            let n_x_rows = X_ROWS.min(x_rows.len() - first);
            sums[..n_x_rows].fill([0.0; COLS]);
            for row in (0..weight.rows).step_by(ROWS) {
                let n_rows = ROWS.min(weight.rows - row);
                decode_rows(isa, &weight, row..row + n_rows, col, n_cols, &mut decoded);
                for (i, sums) in sums[..n_x_rows].iter_mut().enumerate() {
                    let x = &x.row(x_rows.at(first + i))[row..row + n_rows];
                    match x.try_into() {
                        Ok(x) => add_four(isa, &decoded, x, &mut sums[..n_cols]),
                        Err(_) => add_each(isa, &decoded, x, &mut sums[..n_cols]),
                    }
                }
            }
            for (i, sums) in sums[..n_x_rows].iter().enumerate() {
                out.put(first + i, col, &sums[..n_cols]);
            }
        }
    }
}

fn decode_rows(
    isa: Isa,
    weight: &MatrixView<'_>,
    rows: Range<usize>,
    col: usize,
    n_cols: usize,
    out: &mut [[f32; COLS]; ROWS],
) {
    for (row, out) in rows.zip(out) {
        decode(isa, weight, row, col, &mut out[..n_cols]);
    }
}

for_every_isa! {
    fn add_four(w: &[[f32; COLS]; ROWS], x: &[f32; ROWS], sums: &mut [f32]) {
        for (i, sum) in sums.iter_mut().enumerate().take(COLS) {
            let mut acc = *sum;
            for r in 0..ROWS {
                acc = w[r][i].mul_add(x[r], acc);
            }
            *sum = acc;
        }
    }
}

for_every_isa! {
    fn add_each(w: &[[f32; COLS]; ROWS], x: &[f32], sums: &mut [f32]) {
        for (w, x) in w.iter().zip(x) {
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum = w.mul_add(*x, *sum);
            }
        }
    }
}
