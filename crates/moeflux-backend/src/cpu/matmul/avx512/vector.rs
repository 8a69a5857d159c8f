//! Vectors from memory and back: no alignment, and nothing outside the slice.

use std::arch::x86_64::*;

pub(in crate::cpu::matmul) use crate::cpu::vector::{load as load_floats, store as store_floats};

/// `8 * BITS` bytes, and zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn load_first<const BITS: usize>(bytes: &[u8]) -> __m512i {
    assert!(bytes.len() >= 8 * BITS);
    // SAFETY: the mask lets only the first 8 * BITS bytes be read, and there are as many.
    unsafe { _mm512_maskz_loadu_epi8((1u64 << (8 * BITS)) - 1, bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::cpu::matmul) fn load_64(bytes: &[u8]) -> __m512i {
    assert!(bytes.len() >= 64);
    // SAFETY: 64 bytes are readable, and the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::cpu::matmul) fn load_32(bytes: &[u8]) -> __m256i {
    assert!(bytes.len() >= 32);
    // SAFETY: 32 bytes are readable, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::cpu::matmul) fn load_16(bytes: &[u8]) -> __m128i {
    assert!(bytes.len() >= 16);
    // SAFETY: 16 bytes are readable, and the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Four times 16 bytes, `stride` apart, as the 128-bit lanes of a vector.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
pub(super) fn load_lanes(bytes: &[u8], stride: usize) -> __m512i {
    assert!(stride < 1 << 32 && bytes.len() >= 3 * stride + 16);
    let first = bytes.as_ptr();
    let lane = |i: usize| {
        // SAFETY: 16 bytes from `i * stride` on are within the slice, as was just checked.
        unsafe { _mm_loadu_si128(first.wrapping_add(i * stride).cast()) }
    };
    let v = _mm512_castsi128_si512(lane(0));
    let v = _mm512_mask_broadcast_i32x4(v, 0x00f0, lane(1));
    let v = _mm512_mask_broadcast_i32x4(v, 0x0f00, lane(2));
    _mm512_mask_broadcast_i32x4(v, 0xf000, lane(3))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::cpu::matmul) fn store_64(out: &mut [u8], value: __m512i) {
    assert!(out.len() >= 64);
    // SAFETY: 64 bytes are writable, and the store needs no alignment.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), value) };
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_32(out: &mut [u8], value: __m256i) {
    assert!(out.len() >= 32);
    // SAFETY: 32 bytes are writable, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), value) };
}

/// The elements at eight indices, of which the lower eleven bits count.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx2")]
pub(super) fn gather_octets(table: &[u64; 2048], indices: __m256i) -> __m512i {
    let indices = _mm256_and_si256(indices, _mm256_set1_epi32(2047));
    // SAFETY: each index is below 2,048, and the table has as many elements of eight bytes.
    unsafe { _mm512_i32gather_epi64::<8>(indices, table.as_ptr().cast()) }
}

/// As many of the lanes as `out` takes, at most sixteen.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_first(out: &mut [f32], value: __m512) {
    let n = out.len();
    assert!(n <= 16);
    // SAFETY: the mask lets only the slice's own elements be written.
    unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), ((1u32 << n) - 1) as u16, value) };
}

/// Of 16 elements of two bytes each: `low` in the lower halves of 32-bit lanes,
/// `high` in the upper.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn pair_halves(low: __m256i, high: __m256i) -> __m512i {
    let places = const {
        let mut it = [0; 64];
        let mut i = 0;
        while i < 16 {
            (it[4 * i], it[4 * i + 2]) = (i as u8, 32 + i as u8);
            i += 1;
        }
        it
    };
    let (low, high) = (_mm512_castsi256_si512(low), _mm512_castsi256_si512(high));
    _mm512_permutex2var_epi16(low, load_64(&places), high)
}

/// Up to 16 bytes, and zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn load_bytes(bytes: &[u8]) -> __m128i {
    let n = bytes.len();
    assert!(n <= 16);
    // SAFETY: the mask lets only the slice's own elements be read.
    unsafe { _mm_maskz_loadu_epi8(((1u32 << n) - 1) as u16, bytes.as_ptr().cast()) }
}

/// Up to 16 elements of two bytes, and zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn load_halves(bytes: &[u8]) -> __m256i {
    let n = bytes.len() / 2;
    assert!(n <= 16);
    // SAFETY: the mask lets only the slice's own elements be read.
    unsafe { _mm256_maskz_loadu_epi16(((1u32 << n) - 1) as u16, bytes.as_ptr().cast()) }
}

/// Up to 16 elements of four bytes, and zeros.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::cpu::matmul) fn load_singles(bytes: &[u8]) -> __m512i {
    let n = bytes.len() / 4;
    assert!(n <= 16);
    // SAFETY: the mask lets only the slice's own elements be read.
    unsafe { _mm512_maskz_loadu_epi32(((1u32 << n) - 1) as u16, bytes.as_ptr().cast()) }
}

/// Vectors of codes, a byte a column, in a step of 256 columns.
pub(super) const STEP_LINES: usize = 4;

/// Rows of the matrix that are the lanes of a vector.
pub(super) const ROWS: usize = 16;
