//! Floats of four bits (E2M1) and of eight (E4M3): sixteen in two vectors.

use std::arch::x86_64::*;

use moeflux_core::quant::MicroScaled;

use super::vector::{load_16, load_floats, store_floats};
use crate::cpu::matmul::small_kernels::{OF_HALVES, small_kernels};

small_kernels!("avx2,fma,f16c");

/// Sixteen floats.
type Block = [__m256; 2];

#[inline]
#[target_feature(enable = "avx2")]
fn zeros() -> Block {
    [_mm256_setzero_ps(); 2]
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(floats: &[f32; 16]) -> Block {
    let (halves, _) = floats.as_chunks();
    [load_floats(&halves[0]), load_floats(&halves[1])]
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(out: &mut [f32; 16], block: Block) {
    let (halves, _) = out.as_chunks_mut();
    store_floats(&mut halves[0], block[0]);
    store_floats(&mut halves[1], block[1]);
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_products(acc: Block, w: Block, x: Block) -> Block {
    [_mm256_fmadd_ps(w[0], x[0], acc[0]), _mm256_fmadd_ps(w[1], x[1], acc[1])]
}

#[inline]
#[target_feature(enable = "avx2")]
fn lanes(factor: f32) -> __m256 {
    _mm256_set1_ps(factor)
}

/// Sixteen halves whose bits are those of E4M3, times a factor.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn decode_halves(codes: &[u8; 16], factor: __m256) -> Block {
    let halves = halves_of_e4m3(codes);
    let (low, high) = (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
    [_mm256_mul_ps(_mm256_cvtph_ps(low), factor), _mm256_mul_ps(_mm256_cvtph_ps(high), factor)]
}

/// Sign, exponent and mantissa of E4M3 where a half has its own, the highest bit of the exponent
/// zero: a half is the value divided by [`OF_HALVES`], also where it is below the smallest normal.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::cpu::matmul) fn halves_of_e4m3(codes: &[u8; 16]) -> __m256i {
    let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(load_16(codes)));
    let halves = _mm256_and_si256(wide, _mm256_set1_epi16(0xbfff_u16.cast_signed()));
    // The largest magnitude is no number.
    let largest = _mm256_set1_epi16(0x3f80);
    let is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, largest), largest);
    let to_nan = _mm256_set1_epi16(0x3f80 ^ 0x7e00);
    _mm256_xor_si256(halves, _mm256_and_si256(is_nan, to_nan))
}

/// The scale of a group, as all lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn values(scale: f32) -> __m256 {
    _mm256_set1_ps(scale)
}

/// Sixteen elements times their scale.
#[inline]
#[target_feature(enable = "avx2")]
fn decode(packed: &[u8; 8], scale: __m256) -> Block {
    let (halves, _) = packed.as_chunks();
    [decode_half(&halves[0], scale), decode_half(&halves[1], scale)]
}

/// Eight elements times their scale.
#[inline]
#[target_feature(enable = "avx2")]
fn decode_half(packed: &[u8; 4], scale: __m256) -> __m256 {
    // A permutation looks at the lowest three bits of its indices; the fourth is the sign.
    let values = _mm256_setr_ps(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0);
    let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    let codes = _mm256_srlv_epi32(_mm256_set1_epi32(i32::from_le_bytes(*packed)), shifts);
    let magnitude = _mm256_permutevar8x32_ps(values, codes);
    let sign = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
    let value = _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0)));
    _mm256_mul_ps(value, scale)
}
