//! Floats of four bits (E2M1) and of eight (E4M3): sixteen in a vector.

use std::arch::x86_64::*;

use moeflux_core::quant::MicroScaled;

use super::vector::{load_16, load_floats as load, store_floats as store};
use crate::cpu::matmul::small_kernels::small_kernels;

small_kernels!("avx512f,avx512vbmi,avx2,fma,f16c");

/// Sixteen floats.
type Block = __m512;

#[inline]
#[target_feature(enable = "avx512f")]
fn zeros() -> Block {
    _mm512_setzero_ps()
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add_products(acc: Block, w: Block, x: Block) -> Block {
    _mm512_fmadd_ps(w, x, acc)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(factor: f32) -> __m512 {
    _mm512_set1_ps(factor)
}

/// What the values of E4M3 are of the halves that have the same bits in the same order.
pub(in crate::cpu::matmul) const E4M3_UNIT: f32 = 256.0;

/// Sixteen halves whose bits are those of E4M3, times a factor.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn decode_e4m3(codes: &[u8; 16], factor: __m512) -> Block {
    _mm512_mul_ps(_mm512_cvtph_ps(halves_of_e4m3(codes)), factor)
}

/// Sign, exponent and mantissa of E4M3 where a half has its own, the highest bit of the exponent
/// zero: a half is the value divided by [`E4M3_UNIT`], also where it is below the smallest normal.
#[inline]
#[target_feature(enable = "avx2")]
fn halves_of_e4m3(codes: &[u8; 16]) -> __m256i {
    let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(load_16(codes)));
    let halves = _mm256_and_si256(wide, _mm256_set1_epi16(0xbfff_u16.cast_signed()));
    // The largest magnitude is no number.
    let largest = _mm256_set1_epi16(0x3f80);
    let is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, largest), largest);
    let to_nan = _mm256_set1_epi16(0x3f80 ^ 0x7e00);
    _mm256_xor_si256(halves, _mm256_and_si256(is_nan, to_nan))
}

/// The elements of all codes, times the scale of a group.
#[inline]
#[target_feature(enable = "avx512f")]
fn values(scale: f32) -> __m512 {
    let values = _mm512_setr_ps(
        0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
    );
    _mm512_mul_ps(values, _mm512_set1_ps(scale))
}

/// Sixteen elements, of the values of their codes.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi")]
fn decode(packed: &[u8; 8], values: __m512) -> Block {
    // Where the lowest byte of a lane begins, in bits; a permutation looks at the lowest
    // four bits of its indices.
    let starts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
    let both = _mm512_set1_epi64(i64::from_le_bytes(*packed));
    // As integers: compilers would permute the scale as well, and multiply last.
    let codes = _mm512_multishift_epi64_epi8(starts, both);
    _mm512_castsi512_ps(_mm512_permutexvar_epi32(codes, _mm512_castps_si512(values)))
}
