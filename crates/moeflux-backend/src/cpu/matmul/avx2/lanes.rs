//! Vectors of eight lanes.

use std::arch::x86_64::*;

use super::block_rows::StepRows;
use super::vector::load_16;
use crate::cpu::matmul::lanes::{Lanes, RowBytes, by_instructions};

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Ymm(());

impl Ymm {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn new() -> Ymm {
        Ymm(())
    }
}

impl Lanes for Ymm {
    type Floats = __m256;
    type Words = __m256i;

    by_instructions! {
        fn floats(value: f32) -> __m256 { _mm256_set1_ps(value) }
        fn words(value: u32) -> __m256i { _mm256_set1_epi32(value.cast_signed()) }
        fn and(a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
        fn or(a: __m256i, b: __m256i) -> __m256i { _mm256_or_si256(a, b) }
        fn shift_left(a: __m256i, by: usize) -> __m256i {
            _mm256_sll_epi32(a, _mm_cvtsi32_si128(by as i32))
        }
        fn shift_right(a: __m256i, by: usize) -> __m256i {
            _mm256_srl_epi32(a, _mm_cvtsi32_si128(by as i32))
        }
        fn shift_right_signed(a: __m256i, by: usize) -> __m256i {
            _mm256_sra_epi32(a, _mm_cvtsi32_si128(by as i32))
        }
        fn as_floats(a: __m256i) -> __m256 { _mm256_castsi256_ps(a) }
        fn to_floats(a: __m256i) -> __m256 { _mm256_cvtepi32_ps(a) }
        fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn subtract(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        fn multiply(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn multiply_add(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        fn f16_pair(a: __m256i) -> [__m256; 2] { f16_pair(a) }
        fn powers(exponents: __m256i) -> __m256 { powers(exponents) }
        fn e4m3(codes: __m256i) -> __m256 { e4m3(codes) }
        fn half_powers(exponents: __m256i) -> __m256 { half_powers(exponents) }
        fn half_ue4m3(codes: __m256i) -> __m256 { half_ue4m3(codes) }
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn f16_pair(words: __m256i) -> [__m256; 2] {
    let low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    let packed = _mm256_packus_epi32(low, _mm256_srli_epi32::<16>(words));
    // Packing takes 128-bit lanes in turns.
    let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
    let second = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(ordered));
    [_mm256_cvtph_ps(_mm256_castsi256_si128(ordered)), second]
}

#[inline]
#[target_feature(enable = "avx2")]
fn powers(exponents: __m256i) -> __m256 {
    let infinite = _mm256_set1_epi32(0x7f80_0000);
    let codes = _mm256_slli_epi32::<23>(exponents);
    // 2^-127 is below the smallest normal. The exponent of no number is that of infinity: with any
    // mantissa it is none.
    let smallest = _mm256_set1_epi32(1 << 22);
    let is_nan = _mm256_cmpeq_epi32(codes, infinite);
    let power = _mm256_max_epu32(codes, smallest);
    _mm256_castsi256_ps(_mm256_or_si256(power, _mm256_and_si256(is_nan, smallest)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn e4m3(codes: __m256i) -> __m256 {
    // Exponent and mantissa at the places of those of a single, whose bias is 120 larger.
    let largest = _mm256_set1_epi32(0x7f << 20);
    let magnitude = _mm256_and_si256(_mm256_slli_epi32::<20>(codes), largest);
    let sign = _mm256_and_si256(_mm256_slli_epi32::<24>(codes), _mm256_set1_epi32(i32::MIN));
    let small = _mm256_castsi256_ps(_mm256_or_si256(magnitude, sign));
    let value = _mm256_mul_ps(small, _mm256_castsi256_ps(_mm256_set1_epi32((127 + 120) << 23)));
    let is_nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude, largest));
    _mm256_or_ps(value, is_nan)
}

#[inline]
#[target_feature(enable = "avx2")]
fn half_powers(exponents: __m256i) -> __m256 {
    let one = _mm256_set1_epi32(1);
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, one));
    let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponents);
    let is_normal = _mm256_cmpgt_epi32(exponents, one);
    _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal))
}

#[inline]
#[target_feature(enable = "avx2")]
fn half_ue4m3(codes: __m256i) -> __m256 {
    let largest = _mm256_set1_epi32(0x7f);
    // Exponent and mantissa at the places of those of a single, whose bias is 120 larger.
    let small = _mm256_slli_epi32::<20>(_mm256_and_si256(codes, largest));
    let power = _mm256_castsi256_ps(_mm256_set1_epi32((127 + 119) << 23));
    let is_zero = _mm256_castsi256_ps(_mm256_cmpeq_epi32(codes, largest));
    _mm256_andnot_ps(is_zero, _mm256_mul_ps(_mm256_castsi256_ps(small), power))
}

impl<const N: usize> RowBytes<Ymm> for StepRows<'_, N> {
    #[inline(always)]
    fn word(self, _: Ymm, at: usize) -> __m256i {
        macro_rules! words {
            ($($row:literal)*) => {
                // SAFETY: the caller holds the proof that the machine has AVX2.
                unsafe { _mm256_setr_epi32($(
                    i32::from_le_bytes(*self.0[$row][at..].first_chunk().expect("four bytes"))
                ),*) }
            };
        }
        words!(0 1 2 3 4 5 6 7)
    }

    #[inline(always)]
    fn four_words(self, _: Ymm, at: usize) -> [__m256i; 4] {
        // SAFETY: the caller holds the proof that the machine has AVX2.
        unsafe { four_words(self, at) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn four_words<const N: usize>(rows: StepRows<'_, N>, at: usize) -> [__m256i; 4] {
    // Rows `r` and `r + 4` go through the same steps, in the halves of a vector.
    macro_rules! both {
        ($first:literal $second:literal) => {
            _mm256_set_m128i(load_16(&rows.0[$second][at..]), load_16(&rows.0[$first][at..]))
        };
    }
    transpose_halves([both!(0 4), both!(1 5), both!(2 6), both!(3 7)])
}

/// Vector `c` of the result holds column `c` of each 128-bit lane of every vector.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_halves([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab_low, cd_low),
        _mm256_unpackhi_epi64(ab_low, cd_low),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}
