//! One product of a call.

use moeflux_core::quant::MatrixView;

use super::quantised::Quantised;
use super::rows::{FloatRows, OutRows, RowMap};

/// `out[i] = weight · x[i]` for every row `i` of a selection.
#[derive(Clone, Copy, Debug)]
pub struct MatmulJob<'a> {
    /// The matrix.
    pub weight: MatrixView<'a>,
    /// What it multiplies; as many columns as the matrix.
    pub x: Activations<'a>,
    /// Which rows of `x`, in the order of the output's rows.
    pub x_rows: RowMap<'a>,
    /// Where the outputs go; as many rows as `x_rows`.
    pub out: OutRows<'a>,
}

/// Rows of activations, and with them the arithmetic.
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a> {
    /// `f32`, for any matrix.
    Full(FloatRows<'a>),
    /// Rounded to integers, for matrices of integers of the same group size.
    Quantised(&'a Quantised),
}

impl MatmulJob<'_> {
    pub(super) fn check(&self) {
        self.weight.assert_sizes();
        let cols = match self.x {
            Activations::Full(x) => x.cols,
            Activations::Quantised(x) => x.cols(),
        };
        assert_eq!(cols, self.weight.cols, "columns of the activations and of the matrix");
        if let Some(last) = self.x_rows.max() {
            match self.x {
                Activations::Full(x) => {
                    assert!(
                        last * x.stride + cols <= x.data.len(),
                        "row {last} of the activations"
                    );
                }
                Activations::Quantised(x) => {
                    assert!(last < x.n_rows(), "row {last} of the activations");
                }
            }
        }
        assert_eq!(self.x_rows.len(), self.out.rows.len(), "rows in and rows out");
        if let Some(last) = self.out.rows.max() {
            let end = last * self.out.stride + self.out.first_col + self.weight.rows;
            assert!(end <= self.out.data.len(), "row {last} of the output");
        }
    }

    /// The work of one row of the matrix.
    pub(super) fn cost(&self) -> usize {
        let bytes = self.weight.format.matrix_bytes(1, self.weight.cols);
        let per_x_row = match self.x {
            Activations::Full(_) => self.weight.cols,
            Activations::Quantised(_) => self.weight.cols / 4,
        };
        bytes + self.x_rows.len() * per_x_row
    }
}
