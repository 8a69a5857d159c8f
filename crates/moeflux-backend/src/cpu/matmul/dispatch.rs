//! The integer kernels of a stored format.

use std::ops::Range;

use moeflux_core::quant::MatrixFormat;

use super::integers::{E2M1, Integers};
use super::planes::plane_rows;
use super::product::IntegerProduct;
use super::rows::OutPart;
use super::staged;
use crate::cpu::Isa;
use crate::cpu::isa::Level;

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
        MatrixFormat::Micro(_) if !unpacks(isa, product.integers) => {
            staged::micro_rows(isa, product, rows, out);
        }
        _ => plane_rows(isa, product, rows, out),
    }
}

/// Whether kernels of this instruction set unpack such integers themselves.
fn unpacks(isa: Isa, integers: Integers) -> bool {
    let is_neon = cfg!(target_arch = "aarch64") && isa.level() != Level::Scalar;
    !is_neon || (integers.codes, integers.group_size) != (E2M1, 16)
}
