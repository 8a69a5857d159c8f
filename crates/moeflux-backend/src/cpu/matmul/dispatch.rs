//! The integer kernels of a stored format.

use std::ops::Range;

use moeflux_core::quant::MatrixFormat;

use super::planes::plane_rows;
use super::product::IntegerProduct;
use super::rows::OutPart;
use super::staged;
use crate::cpu::Isa;

/// Computes the outputs of `rows` of the matrix.
pub(super) fn integer_rows(
    isa: Isa,
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    out: OutPart<'_>,
) {
    match product.weight.format {
        MatrixFormat::Ggml(block_type) => {
            staged::integer_rows(isa, product, block_type, rows, out);
        }
        _ => plane_rows(isa, product, rows, out),
    }
}
