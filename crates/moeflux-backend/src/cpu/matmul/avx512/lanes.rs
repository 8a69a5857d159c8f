//! Vectors of sixteen lanes.

use std::arch::x86_64::*;

use super::transpose::transpose_lanes;
use super::vector::load_lanes;
use crate::cpu::matmul::lanes::{Lanes, RowBytes, by_instructions};

/// AVX-512 F, BW, VL, DQ, VNNI and VBMI.
#[derive(Clone, Copy)]
pub(super) struct Zmm(());

impl Zmm {
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    pub(super) fn new() -> Zmm {
        Zmm(())
    }
}

impl Lanes for Zmm {
    type Floats = __m512;
    type Words = __m512i;

    by_instructions! {
        fn floats(value: f32) -> __m512 { _mm512_set1_ps(value) }
        fn words(value: u32) -> __m512i { _mm512_set1_epi32(value.cast_signed()) }
        fn and(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn or(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn shift_left(a: __m512i, by: usize) -> __m512i {
            _mm512_sll_epi32(a, _mm_cvtsi32_si128(by as i32))
        }
        fn shift_right(a: __m512i, by: usize) -> __m512i {
            _mm512_srl_epi32(a, _mm_cvtsi32_si128(by as i32))
        }
        fn shift_right_signed(a: __m512i, by: usize) -> __m512i {
            _mm512_sra_epi32(a, _mm_cvtsi32_si128(by as i32))
        }
        fn as_floats(a: __m512i) -> __m512 { _mm512_castsi512_ps(a) }
        fn to_floats(a: __m512i) -> __m512 { _mm512_cvtepi32_ps(a) }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn subtract(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn multiply(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn f16_pair(a: __m512i) -> [__m512; 2] { f16_pair(a) }
        fn powers(exponents: __m512i) -> __m512 { powers(exponents) }
        fn e4m3(codes: __m512i) -> __m512 { e4m3(codes) }
        fn half_powers(exponents: __m512i) -> __m512 { half_powers(exponents) }
        fn half_ue4m3(codes: __m512i) -> __m512 { half_ue4m3(codes) }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn f16_pair(words: __m512i) -> [__m512; 2] {
    let low = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
    [low, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words)))]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn powers(exponents: __m512i) -> __m512 {
    // 2^-127 is below the smallest normal.
    let smallest = _mm512_set1_epi32(1 << 22);
    let power = _mm512_max_epu32(_mm512_slli_epi32::<23>(exponents), smallest);
    let is_nan = _mm512_cmpeq_epi32_mask(exponents, _mm512_set1_epi32(255));
    _mm512_castsi512_ps(_mm512_mask_set1_epi32(power, is_nan, 0x7fc0_0000))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn e4m3(codes: __m512i) -> __m512 {
    let magnitude = _mm512_slli_epi32::<20>(_mm512_and_si512(codes, _mm512_set1_epi32(0x7f)));
    let normal = _mm512_add_epi32(magnitude, _mm512_set1_epi32(120 << 23));
    // The mantissa at the exponent of the smallest normal, less that.
    let small = _mm512_castsi512_ps(_mm512_add_epi32(magnitude, _mm512_set1_epi32(121 << 23)));
    let small = _mm512_castps_si512(_mm512_sub_ps(small, _mm512_set1_ps(0.015_625)));
    let is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(1 << 23));
    let bits = _mm512_mask_mov_epi32(normal, is_small, small);
    let is_nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f << 20));
    let bits = _mm512_mask_set1_epi32(bits, is_nan, 0x7fc0_0000);
    let sign = _mm512_slli_epi32::<24>(_mm512_and_si512(codes, _mm512_set1_epi32(0x80)));
    _mm512_castsi512_ps(_mm512_or_si512(bits, sign))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn half_powers(exponents: __m512i) -> __m512 {
    let one = _mm512_set1_epi32(1);
    let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, one));
    let is_subnormal = _mm512_cmple_epu32_mask(exponents, one);
    let smallest = _mm512_set1_epi32(0x0020_0000);
    _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, is_subnormal, smallest, exponents))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn half_ue4m3(codes: __m512i) -> __m512 {
    let magnitude = _mm512_slli_epi32::<20>(_mm512_and_si512(codes, _mm512_set1_epi32(0x7f)));
    let normal = _mm512_castsi512_ps(_mm512_add_epi32(magnitude, _mm512_set1_epi32(119 << 23)));
    // The mantissa at the exponent of half the smallest normal, less that.
    let small = _mm512_castsi512_ps(_mm512_add_epi32(magnitude, _mm512_set1_epi32(120 << 23)));
    let is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(1 << 23));
    let half = _mm512_mask_sub_ps(normal, is_small, small, _mm512_set1_ps(0.007_812_5));
    let is_number = _mm512_cmpneq_epi32_mask(codes, _mm512_set1_epi32(0x7f));
    _mm512_maskz_mov_ps(is_number, half)
}

/// Sixteen rows of blocks, from some byte of each on.
#[derive(Clone, Copy)]
pub(super) struct SixteenRows<'a> {
    blocks: &'a [u8],
    row_bytes: usize,
    first: usize,
    /// Where each row begins.
    places: __m512i,
}

impl<'a> SixteenRows<'a> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(blocks: &'a [u8], row_bytes: usize) -> SixteenRows<'a> {
        assert!(row_bytes < 1 << 26, "rows that a gather reaches");
        assert_eq!(blocks.len(), 16 * row_bytes, "sixteen rows");
        let rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let places = _mm512_mullo_epi32(rows, _mm512_set1_epi32(row_bytes as i32));
        SixteenRows { blocks, row_bytes, first: 0, places }
    }

    /// The bytes of each row from `at` on.
    #[inline(always)]
    pub(super) fn from(self, at: usize) -> SixteenRows<'a> {
        SixteenRows { first: self.first + at, ..self }
    }
}

impl RowBytes<Zmm> for SixteenRows<'_> {
    #[inline(always)]
    fn word(self, _: Zmm, at: usize) -> __m512i {
        let (row_bytes, at) = (self.row_bytes, self.first + at);
        assert!(at + 4 <= row_bytes, "four bytes of each row");
        let first = self.blocks.as_ptr().wrapping_add(at);
        // SAFETY: the caller holds the proof that the machine has AVX-512. Sixteen rows of
        // `row_bytes` are in the slice, and each has four bytes from `at` on.
        unsafe { _mm512_i32gather_epi32::<1>(self.places, first.cast()) }
    }

    #[inline(always)]
    fn four_words(self, _: Zmm, at: usize) -> [__m512i; 4] {
        // SAFETY: the caller holds the proof that the machine has AVX-512.
        unsafe { four_words(self, at) }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn four_words(rows: SixteenRows<'_>, at: usize) -> [__m512i; 4] {
    let (row_bytes, at) = (rows.row_bytes, rows.first + at);
    let mut lanes = [_mm512_setzero_si512(); 4];
    for (i, lanes) in lanes.iter_mut().enumerate() {
        // Rows i, i + 4, i + 8 and i + 12.
        *lanes = load_lanes(&rows.blocks[i * row_bytes + at..], 4 * row_bytes);
    }
    transpose_lanes(lanes)
}
