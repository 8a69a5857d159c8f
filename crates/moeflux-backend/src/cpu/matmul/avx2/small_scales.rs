//! Scales of one byte, with the rows of the matrix as lanes.

use std::arch::x86_64::*;

use moeflux_core::quant::SmallScale;

use crate::cpu::matmul::integers::BIAS_OF_E2M1;

/// A scale and a bias of each row.
#[derive(Clone, Copy)]
pub(super) struct ScaleAndBias {
    pub(super) scale: __m256,
    pub(super) bias: __m256,
}

/// The parameters of a group of E2M1 whose scale is byte `at` of each lane.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn params_of_e2m1(scale: SmallScale, words: __m256i, at: usize) -> ScaleAndBias {
    let highest = _mm256_sll_epi32(words, _mm_cvtsi32_si128((24 - 8 * at) as i32));
    let value = match scale {
        SmallScale::E8M0 => power(highest),
        SmallScale::E4M3 => e4m3(highest),
    };
    ScaleAndBias {
        scale: _mm256_mul_ps(value, _mm256_set1_ps(0.5)),
        bias: _mm256_mul_ps(value, _mm256_set1_ps(BIAS_OF_E2M1)),
    }
}

/// What the highest byte of each lane stands for in E8M0; what is below it changes nothing.
#[inline]
#[target_feature(enable = "avx2")]
fn power(words: __m256i) -> __m256 {
    let exponent = _mm256_set1_epi32(0x7f80_0000);
    let codes = _mm256_and_si256(_mm256_srli_epi32::<1>(words), exponent);
    // 2^-127 is below the smallest normal. The exponent of no number is that of infinity: with any
    // mantissa it is none.
    let smallest = _mm256_set1_epi32(1 << 22);
    let is_nan = _mm256_cmpeq_epi32(codes, exponent);
    let power = _mm256_max_epu32(codes, smallest);
    _mm256_castsi256_ps(_mm256_or_si256(power, _mm256_and_si256(is_nan, smallest)))
}

/// As [`power`], in E4M3.
#[inline]
#[target_feature(enable = "avx2")]
fn e4m3(words: __m256i) -> __m256 {
    // Exponent and mantissa at the places of those of a single, whose bias is 120 larger.
    let largest = _mm256_set1_epi32(0x7f << 20);
    let shifted = _mm256_srai_epi32::<4>(words);
    let magnitude = _mm256_and_si256(shifted, largest);
    let sign = _mm256_and_si256(words, _mm256_set1_epi32(i32::MIN));
    let small = _mm256_castsi256_ps(_mm256_or_si256(magnitude, sign));
    let value = _mm256_mul_ps(small, _mm256_castsi256_ps(_mm256_set1_epi32((127 + 120) << 23)));
    let is_nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude, largest));
    _mm256_or_ps(value, is_nan)
}
