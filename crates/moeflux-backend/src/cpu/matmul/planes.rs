//! The integer kernel of each instruction set.

use std::ops::Range;

use super::product::IntegerProduct;
use super::rows::OutPart;
use crate::cpu::Isa;
use crate::cpu::isa::Level;

/// Computes the outputs of `rows` of a matrix whose codes, scales and biases are planes.
pub(super) fn plane_rows(
    isa: Isa,
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    out: OutPart<'_>,
) {
    match isa.level() {
        Level::Scalar => super::scalar::integer_rows(product, rows, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX2, FMA and F16C.
        Level::Avx2 => unsafe { super::avx2::integer_rows::<false>(product, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX-VNNI, AVX2, FMA and F16C.
        Level::AvxVnni => unsafe { super::avx2::integer_rows::<true>(product, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        Level::Avx512 => unsafe { super::avx512::integer_rows(product, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX-512 and that this process may
        // use AMX.
        Level::Amx => unsafe { super::amx::integer_rows(product, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: holding this `Isa` proves that the machine has NEON.
        Level::Neon => unsafe { super::neon::plain(product, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: holding this `Isa` proves that the machine has dot products.
        Level::Dotprod => unsafe { super::neon::dotprod(product, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: holding this `Isa` proves that the machine has matrix products.
        Level::I8mm => unsafe { super::neon::i8mm(product, rows, out) },
    }
}
