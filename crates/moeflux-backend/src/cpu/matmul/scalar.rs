//! The specification of the integer product.

use std::ops::Range;

use moeflux_core::quant::MatrixView;

use super::block_format::BlockFormat;
use super::product::IntegerProduct;
use super::quantised::Quantised;
use super::rows::OutPart;

pub(super) fn integer_rows(product: IntegerProduct<'_>, rows: Range<usize>, mut out: OutPart<'_>) {
    let x_rows = product.x_rows;
    for row in rows {
        let x_rows = (0..x_rows.len()).map(|i| x_rows.at(i));
        let outputs = row_outputs(product.integers, &product.weight, row, product.x, x_rows);
        for (i, output) in outputs.into_iter().enumerate() {
            out.put(i, row, &[output]);
        }
    }
}

/// One row of the matrix times some rows of the activations.
pub(super) fn row_outputs<F: BlockFormat>(
    format: F,
    weight: &MatrixView<'_>,
    row: usize,
    x: &Quantised,
    x_rows: impl Iterator<Item = usize>,
) -> Vec<f32> {
    let mut unpacked = vec![0; weight.cols];
    format.unpack_row(weight, row, &mut unpacked);
    x_rows.map(|x_row| output(format, weight, row, &unpacked, x, x_row)).collect()
}

fn output<F: BlockFormat>(
    format: F,
    weight: &MatrixView<'_>,
    row: usize,
    unpacked: &[u8],
    x: &Quantised,
    x_row: usize,
) -> f32 {
    let (s, st) = (x.s(x_row), x.st(x_row));
    let dot = |limb: usize, g: usize, w: &[u8]| -> i32 {
        let q = &x.q(x_row, limb)[g * format.group_cols()..];
        w.iter().zip(q).map(|(w, q)| i32::from(*w) * i32::from(*q)).sum()
    };
    let (mut acc, mut off) = (0f32, 0f32);
    for (g, w) in unpacked.chunks_exact(format.group_cols()).enumerate() {
        let mut d = dot(0, g, w);
        if x.n_limbs() == 2 {
            d = 256 * d + dot(1, g, w);
        }
        let (scale, bias) = format.params(weight, row * format.n_groups(weight.cols) + g);
        acc = (d as f32).mul_add(scale * s[g], acc);
        off = bias.mul_add(st[g], off);
    }
    acc + off
}
