//! Scales and biases of sixteen rows of blocks, with the rows as lanes, straight from the blocks.

use std::arch::x86_64::*;

use moeflux_core::quant::BlockType;

use super::params::f16_pair;
use super::steps::{of, step_bytes};
use super::transpose::transpose_lanes;
use super::vector::load_lanes;

/// Scales and biases of the groups of 256 columns; lanes are rows. Types with groups of 32 columns
/// use the first eight.
pub(super) struct StepParams {
    pub(super) scale: [__m512; 16],
    pub(super) bias: [__m512; 16],
}

/// Sixteen rows of blocks.
#[derive(Clone, Copy)]
pub(super) struct SixteenRows<'a> {
    blocks: &'a [u8],
    row_bytes: usize,
}

/// Whether [`step_params`] reads this type.
pub(super) const fn is_direct(number: u8) -> bool {
    matches!(
        of(number),
        BlockType::Q4_0
            | BlockType::Q4_1
            | BlockType::Q5_0
            | BlockType::Q5_1
            | BlockType::Q8_0
            | BlockType::IQ4_NL
            | BlockType::Q4_K
            | BlockType::Q5_K
            | BlockType::Q6_K
            | BlockType::IQ4_XS
    )
}

/// The parameters of the `step`-th 256 columns of each row.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vbmi")]
pub(super) fn step_params<const TYPE: u8>(rows: SixteenRows<'_>, step: usize) -> StepParams {
    let zero = [_mm512_setzero_ps(); 16];
    let mut out = StepParams { scale: zero, bias: zero };
    let at = step * const { step_bytes(TYPE) };
    match const { of(TYPE) } {
        BlockType::Q4_0 => out.halves::<18, true>(rows, at, 8.0),
        BlockType::IQ4_NL => out.halves::<18, true>(rows, at, 127.0),
        BlockType::Q5_0 => out.halves::<22, true>(rows, at, 16.0),
        BlockType::Q8_0 => out.halves::<34, true>(rows, at, 128.0),
        BlockType::Q4_1 => out.halves::<20, false>(rows, at, 0.0),
        BlockType::Q5_1 => out.halves::<24, false>(rows, at, 0.0),
        BlockType::Q4_K | BlockType::Q5_K => out.scales_and_mins(rows, at),
        BlockType::Q6_K => out.q6_k(rows, at),
        BlockType::IQ4_XS => out.iq4_xs(rows, at),
        _ => unreachable!("`is_direct` says so"),
    }
    out
}

impl<'a> SixteenRows<'a> {
    pub(super) fn new(blocks: &'a [u8], row_bytes: usize) -> SixteenRows<'a> {
        assert_eq!(blocks.len(), 16 * row_bytes, "sixteen rows");
        SixteenRows { blocks, row_bytes }
    }

    /// The four bytes at `at` of each row.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn word(self, at: usize) -> __m512i {
        let row_bytes = self.row_bytes;
        assert!(row_bytes < 1 << 26 && at + 4 <= row_bytes, "four bytes of each row");
        let places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let places = _mm512_mullo_epi32(places, _mm512_set1_epi32(row_bytes as i32));
        let first = self.blocks.as_ptr().wrapping_add(at);
        // SAFETY: sixteen rows of `row_bytes` are in the slice, and each has four bytes from `at` on.
        unsafe { _mm512_i32gather_epi32::<1>(places, first.cast()) }
    }

    /// The sixteen bytes at `at` of each row, as words.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx2")]
    fn words(self, at: usize) -> [__m512i; 4] {
        let mut lanes = [_mm512_setzero_si512(); 4];
        for (i, lanes) in lanes.iter_mut().enumerate() {
            // Rows i, i + 4, i + 8 and i + 12.
            *lanes = load_lanes(&self.blocks[i * self.row_bytes + at..], 4 * self.row_bytes);
        }
        transpose_lanes(lanes)
    }
}

/// A byte of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn byte<const AT: u32>(words: __m512i) -> __m512i {
    _mm512_and_si512(_mm512_srli_epi32::<AT>(words), _mm512_set1_epi32(255))
}

/// The bytes of a word, the lowest first.
#[inline]
#[target_feature(enable = "avx512f")]
fn bytes(words: __m512i) -> [__m512; 4] {
    let top = _mm512_srli_epi32::<24>(words);
    [byte::<0>(words), byte::<8>(words), byte::<16>(words), top]
        .map(|words| _mm512_cvtepi32_ps(words))
}

impl StepParams {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn centred(&mut self, group: usize, scale: __m512, zero: f32) {
        self.scale[group] = scale;
        self.bias[group] = _mm512_mul_ps(scale, _mm512_set1_ps(-zero));
    }

    /// Eight blocks of `BYTES` that begin with a scale and, unless they are centred, a bias.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn halves<const BYTES: usize, const IS_CENTRED: bool>(
        &mut self,
        rows: SixteenRows<'_>,
        at: usize,
        zero: f32,
    ) {
        for g in 0..8 {
            let (scale, bias) = f16_pair(rows.word(at + g * BYTES));
            if IS_CENTRED {
                self.centred(g, scale, zero);
            } else {
                (self.scale[g], self.bias[g]) = (scale, bias);
            }
        }
    }

    /// Eight scales and eight minima of six bits each, after their factors.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx2")]
    fn scales_and_mins(&mut self, rows: SixteenRows<'_>, at: usize) {
        let [factors, scales, mins, lower] = rows.words(at);
        let (d, min) = f16_pair(factors);
        let min = _mm512_sub_ps(_mm512_setzero_ps(), min);
        let (six, four) = (_mm512_set1_epi32(0x3f3f_3f3f), _mm512_set1_epi32(0x0f0f_0f0f));
        let upper =
            |words| _mm512_and_si512(_mm512_srli_epi32::<2>(words), _mm512_set1_epi32(0x3030_3030));
        let low = |words| _mm512_and_si512(words, four);
        let parts = [
            (d, _mm512_and_si512(scales, six), _mm512_or_si512(low(lower), upper(scales))),
            (
                min,
                _mm512_and_si512(mins, six),
                _mm512_or_si512(low(_mm512_srli_epi32::<4>(lower)), upper(mins)),
            ),
        ];
        for (part, (factor, first, second)) in parts.into_iter().enumerate() {
            let out = if part == 0 { &mut self.scale } else { &mut self.bias };
            for (half, words) in [first, second].into_iter().enumerate() {
                for (i, number) in bytes(words).into_iter().enumerate() {
                    out[4 * half + i] = _mm512_mul_ps(number, factor);
                }
            }
        }
    }

    /// Sixteen signed bytes, then their factor.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx2")]
    fn q6_k(&mut self, rows: SixteenRows<'_>, at: usize) {
        let (_, d) = f16_pair(rows.word(at + 206));
        for (i, words) in rows.words(at + 192).into_iter().enumerate() {
            let signed = [
                _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(words)),
                _mm512_srai_epi32::<24>(_mm512_slli_epi32::<16>(words)),
                _mm512_srai_epi32::<24>(_mm512_slli_epi32::<8>(words)),
                _mm512_srai_epi32::<24>(words),
            ];
            for (k, number) in signed.into_iter().enumerate() {
                self.centred(4 * i + k, _mm512_mul_ps(_mm512_cvtepi32_ps(number), d), 32.0);
            }
        }
    }

    /// A factor, eight times two upper bits, eight nibbles.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn iq4_xs(&mut self, rows: SixteenRows<'_>, at: usize) {
        let (first, low) = (rows.word(at), rows.word(at + 4));
        let (d, _) = f16_pair(first);
        let mut upper = _mm512_srli_epi32::<16>(first);
        let mut low = low;
        for g in 0..8 {
            let high = _mm512_and_si512(upper, _mm512_set1_epi32(3));
            let number = _mm512_or_si512(
                _mm512_and_si512(low, _mm512_set1_epi32(15)),
                _mm512_slli_epi32::<4>(high),
            );
            let number = _mm512_sub_epi32(number, _mm512_set1_epi32(32));
            self.centred(g, _mm512_mul_ps(d, _mm512_cvtepi32_ps(number)), 127.0);
            (upper, low) = (_mm512_srli_epi32::<2>(upper), _mm512_srli_epi32::<4>(low));
        }
    }
}
