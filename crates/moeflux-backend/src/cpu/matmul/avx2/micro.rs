//! Floats of four bits (E2M1) and of eight (E4M3): sixteen in two vectors.

use std::arch::x86_64::*;

use moeflux_core::quant::MicroScaled;

use super::vector::{load_16, load_32, load_floats, store_floats};
use crate::cpu::matmul::small_kernels::small_kernels;

small_kernels!("avx2,fma,f16c");

/// Sixteen floats: those of the first and the third quarter, then the others. Unpacking 16 bits to
/// 32 gives this order.
type Block = [__m256; 2];

/// From the order of memory to that of a block, and back.
#[inline]
#[target_feature(enable = "avx2")]
fn reorder([a, b]: Block) -> Block {
    [_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn zeros() -> Block {
    [_mm256_setzero_ps(); 2]
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(floats: &[f32; 16]) -> Block {
    let (halves, _) = floats.as_chunks();
    reorder([load_floats(&halves[0]), load_floats(&halves[1])])
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(out: &mut [f32; 16], block: Block) {
    let (halves, _) = out.as_chunks_mut();
    let block = reorder(block);
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

/// What the values of E4M3 are of the singles that have exponent and mantissa at the same places,
/// whose bias is 120 larger.
pub(in crate::cpu::matmul) const E4M3_UNIT: f32 = f32::from_bits((127 + 120) << 23);

/// Sixteen numbers of E4M3 as such singles, also those below the smallest normal, times a factor.
/// [`are_numbers`] says whether they are.
#[inline]
#[target_feature(enable = "avx2")]
fn decode_e4m3(codes: &[u8; 16], factor: __m256) -> Block {
    // The sign fills what is above a code; all but one of its copies go.
    let wide = _mm256_slli_epi16::<4>(_mm256_cvtepi8_epi16(load_16(codes)));
    let upper = _mm256_and_si256(wide, _mm256_set1_epi16(0x87f0_u16.cast_signed()));
    // The lower half of a single is zero.
    let zero = _mm256_setzero_si256();
    let first = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, upper));
    let second = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, upper));
    [_mm256_mul_ps(first, factor), _mm256_mul_ps(second, factor)]
}

/// Whether all codes of E4M3 are those of numbers, in some rows.
#[target_feature(enable = "avx2")]
pub(in crate::cpu::matmul) fn are_numbers<const ROWS: usize>(codes: [&[u8]; ROWS]) -> bool {
    // The largest magnitude, twice it: the sign leaves the byte.
    let mut seen = [_mm256_setzero_si256(); ROWS];
    let mut are_numbers = true;
    for (seen, codes) in seen.iter_mut().zip(codes) {
        let (vectors, rest) = codes.as_chunks::<32>();
        for codes in vectors {
            let codes = load_32(codes);
            *seen = _mm256_max_epu8(*seen, _mm256_add_epi8(codes, codes));
        }
        let none = _mm256_cmpeq_epi8(*seen, _mm256_set1_epi8(0xfe_u8.cast_signed()));
        are_numbers &= _mm256_testz_si256(none, none) == 1;
        are_numbers &= rest.iter().all(|code| code & 0x7f != 0x7f);
    }
    are_numbers
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
    let [a, b, c, d, e, f, g, h] = *packed;
    [decode_half([a, b, e, f], scale), decode_half([c, d, g, h], scale)]
}

/// Eight elements times their scale.
#[inline]
#[target_feature(enable = "avx2")]
fn decode_half(packed: [u8; 4], scale: __m256) -> __m256 {
    // A permutation looks at the lowest three bits of its indices; the fourth is the sign.
    let values = _mm256_setr_ps(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0);
    let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    let codes = _mm256_srlv_epi32(_mm256_set1_epi32(i32::from_le_bytes(packed)), shifts);
    let magnitude = _mm256_permutevar8x32_ps(values, codes);
    let sign = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
    let value = _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0)));
    _mm256_mul_ps(value, scale)
}
