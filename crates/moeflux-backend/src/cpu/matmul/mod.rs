//! Weight matrices times rows of activations, the same bits on every
//! instruction set.
//!
//! Two definitions, each with a plain one in `scalar.rs`:
//! - **integer**: an affine matrix, or one of MXFP4, whose elements are halves
//!   of integers, times activations rounded to integers of
//!   one or two digits of 8 bits ([`Quantised`]). The dot `d` of a group is
//!   exact in 32 bits; groups go by ascending column:
//!   `acc = fma(d as f32, scale * s, acc)`, `off = fma(bias, s * t, off)` with
//!   `t` the sum of the activations' integers, and the output is `acc + off`.
//!   In MXFP4 an integer is twice the element and 12 more, the scale half of
//!   the stored one, and the bias minus six times that.
//! - **full**: any matrix, decoded to `f32` (affine: `fma(q, scale, bias)`),
//!   times `f32` activations. Sixteen partial sums, lane = column mod 16,
//!   `lane = fma(w, x, lane)`, then added as a tree of 8, 4, 2, 1. Where inputs
//!   are stored before outputs it is one sum, by ascending input.
//!
//! No output is ever split, so neither the number of threads nor the number of
//! rows changes a bit.

#[cfg(target_arch = "x86_64")]
mod amx;
mod arranged;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod floats;
mod full;
mod heads;
mod integers;
mod jobs;
#[cfg(target_arch = "aarch64")]
mod neon;
mod quantise;
mod scalar;
mod small;
#[cfg(test)]
mod tests;
mod transposed;

use std::ops::Range;

use moeflux_core::quant::MatrixView;

#[cfg(target_arch = "x86_64")]
pub(super) use amx::Tiles;
pub use heads::{HeadColumns, HeadJob, head_products};
pub use integers::integer_group_size;
pub use jobs::{Activations, FloatRows, MatmulJob, OutRows, RowMap, run_jobs};
pub use quantise::{Quantised, Rounding};

use self::integers::Integers;
use self::jobs::OutPart;
#[cfg(target_arch = "x86_64")]
use super::upcoming::Upcoming;

/// A matrix of integers and rounded activations, as integer kernels take them.
#[derive(Clone, Copy)]
struct IntegerProduct<'a> {
    weight: MatrixView<'a>,
    integers: Integers,
    x: &'a Quantised,
    x_rows: RowMap<'a>,
    /// The activations as tiles, where rows are many enough.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "always absent"))]
    arranged: Option<arranged::Input<'a>>,
    /// The matrix that is likely to be wanted next, and from which row on.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "nobody asks ahead"))]
    next: Option<(MatrixView<'a>, usize)>,
}

/// Any matrix and `f32` activations, as the full-precision kernels take them.
#[derive(Clone, Copy)]
struct FullProduct<'a> {
    weight: MatrixView<'a>,
    x: FloatRows<'a>,
    x_rows: RowMap<'a>,
}

impl<'a> IntegerProduct<'a> {
    fn n_groups(&self) -> usize {
        self.integers.n_groups(self.weight.cols)
    }

    /// The integers of some rows of the matrix.
    fn weight_rows(&self, rows: Range<usize>) -> &'a [u8] {
        let row_bytes = self.weight.format.row_bytes(self.weight.cols);
        &self.weight.weight[rows.start * row_bytes..rows.end * row_bytes]
    }

    /// What is read after `rows` of the matrix, as many rows as a panel has: those
    /// that follow or, behind a task's last ones, those that the thread's next task
    /// begins with.
    #[cfg(target_arch = "x86_64")]
    fn upcoming(&self, rows: &Range<usize>, panel_rows: usize, is_last: bool) -> Upcoming<'a> {
        let next = if is_last { self.next } else { Some((self.weight, rows.end)) };
        let (weight, first) = next.unwrap_or((self.weight, self.weight.rows));
        let next = first.min(weight.rows)..(first + panel_rows).min(weight.rows);
        Upcoming::new([weight.weight, weight.scales, weight.biases].map(|all| {
            let row_bytes = all.len() / weight.rows.max(1);
            &all[next.start * row_bytes..next.end * row_bytes]
        }))
    }
}

/// Computes the outputs of `rows` of the matrix.
fn integer_rows(
    isa: super::Isa,
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    out: OutPart<'_>,
) {
    use super::isa::Level;
    match isa.level() {
        Level::Scalar => scalar::integer_rows(product, rows, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX2, FMA and F16C.
        Level::Avx2 => unsafe { avx2::integer_rows::<false>(product, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX-VNNI, AVX2, FMA and F16C.
        Level::AvxVnni => unsafe { avx2::integer_rows::<true>(product, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        Level::Avx512 => unsafe { avx512::integer_rows(product, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX-512 and that this process may
        // use AMX.
        Level::Amx => unsafe { amx::integer_rows(product, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: holding this `Isa` proves that the machine has NEON.
        Level::Neon => unsafe { neon::plain(product, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: holding this `Isa` proves that the machine has dot products.
        Level::Dotprod => unsafe { neon::dotprod(product, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: holding this `Isa` proves that the machine has matrix products.
        Level::I8mm => unsafe { neon::i8mm(product, rows, out) },
    }
}
