//! Vectors from memory and back, without alignment.

use std::arch::x86_64::*;

/// Vectors of codes, a byte a column, in a step of 256 columns.
pub(super) const VECTORS: usize = 8;

/// Vector `c` of the result holds lane `c` of every row.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn transpose(rows: [__m256; 8]) -> [__m256; 8] {
    let zero = _mm256_setzero_ps();
    // quads[4 h + c], 128-bit lane L: rows 4 h .. 4 h + 4 of column 4 L + c.
    let mut quads = [zero; 8];
    for i in [0, 4] {
        let ab_low = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        let ab_high = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
        let cd_low = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
        let cd_high = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
        quads[i] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
        quads[i + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
        quads[i + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
        quads[i + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
    }
    let mut out = [zero; 8];
    for c in 0..4 {
        out[c] = _mm256_permute2f128_ps::<0x20>(quads[c], quads[4 + c]);
        out[4 + c] = _mm256_permute2f128_ps::<0x31>(quads[c], quads[4 + c]);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_floats(out: &mut [f32; 8], value: __m256) {
    // SAFETY: eight elements are writable, and the store needs no alignment.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), value) };
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_floats(floats: &[f32; 8]) -> __m256 {
    // SAFETY: eight elements are readable, and the load needs no alignment.
    unsafe { _mm256_loadu_ps(floats.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_32(bytes: &[u8]) -> __m256i {
    assert!(bytes.len() >= 32);
    // SAFETY: 32 bytes are readable, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_16(bytes: &[u8]) -> __m128i {
    assert!(bytes.len() >= 16);
    // SAFETY: 16 bytes are readable, and the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_halves<T: bytemuck::NoUninit>(elements: &[T]) -> __m256i {
    load_32(bytemuck::cast_slice(&elements[..16]))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_bytes(out: &mut [u8], value: __m256i) {
    assert!(out.len() >= 32);
    // SAFETY: 32 bytes are writable, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), value) };
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_integers(integers: &[i32; 8]) -> __m256i {
    // SAFETY: eight elements are readable, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(integers.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_integers(out: &mut [i32; 8], value: __m256i) {
    // SAFETY: eight elements are writable, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), value) };
}

/// Rows of the matrix that are the lanes of a vector.
pub(super) const ROWS: usize = 8;
