//! The specification of the integer product.

use std::ops::Range;

use moeflux_core::quant::unpack_group;

use super::integers::width;
use super::product::IntegerProduct;
use super::rows::OutPart;

pub(super) fn integer_rows(product: IntegerProduct<'_>, rows: Range<usize>, mut out: OutPart<'_>) {
    let mut unpacked = vec![0; product.weight.cols];
    for row in rows {
        let packed = product.weight_rows(row..row + 1);
        unpack_group(width(product.integers.codes) as u8, packed, &mut unpacked);
        product.integers.look_up(&mut unpacked);
        for i in 0..product.x_rows.len() {
            out.put(i, row, &[output(&product, row, &unpacked, product.x_rows.at(i))]);
        }
    }
}

/// One row of the matrix times one row of the activations.
fn output(product: &IntegerProduct<'_>, row: usize, unpacked: &[u8], x_row: usize) -> f32 {
    let IntegerProduct { weight, integers, x, .. } = product;
    let n_groups = product.n_groups();
    let (s, st) = (x.s(x_row), x.st(x_row));
    let dot = |digit: usize, g: usize, w: &[u8]| -> i32 {
        let q = &x.q(x_row, digit)[g * integers.group_size..];
        w.iter().zip(q).map(|(w, q)| i32::from(*w) * i32::from(*q)).sum()
    };
    let (mut acc, mut off) = (0f32, 0f32);
    for (g, w) in unpacked.chunks_exact(integers.group_size).enumerate() {
        let mut d = dot(0, g, w);
        if x.n_digits() == 2 {
            d = 256 * d + dot(1, g, w);
        }
        let group = row * n_groups + g;
        let (scale, bias) = integers.params.read(weight.scales, weight.biases, group);
        acc = (d as f32).mul_add(scale * s[g], acc);
        off = bias.mul_add(st[g], off);
    }
    acc + off
}
