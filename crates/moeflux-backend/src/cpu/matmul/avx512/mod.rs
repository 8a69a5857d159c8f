//! The integer product with AVX-512 VNNI.

use std::ops::Range;

use super::IntegerProduct;
use super::jobs::OutPart;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) fn integer_rows(product: IntegerProduct<'_>, rows: Range<usize>, out: OutPart<'_>) {
    super::scalar::integer_rows(product, rows, out);
}

/// The integers of the `bits`-wide stream `packed`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) fn unpack_row(bits: u8, packed: &[u8], out: &mut [u8]) {
    moeflux_core::quant::unpack_group(bits, packed, out);
}
