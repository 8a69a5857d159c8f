//! Scales and biases of sixteen rows of blocks, with the rows as lanes, straight from the blocks.

use std::arch::x86_64::*;

use moeflux_core::quant::{BlockType, Codebooks};

use super::params::{e4m3s, f16_pair};
use super::steps::{of, step_bytes};
use super::transpose::transpose_lanes;
use super::vector::load_lanes;
use crate::cpu::matmul::by_type::by_type;

const IQ2_ZERO: f32 = Codebooks::IQ2_ZERO as f32;

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

/// The parameters of the `step`-th 256 columns of each row.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vbmi")]
pub(super) fn step_params<const TYPE: u8>(rows: SixteenRows<'_>, step: usize) -> StepParams {
    let zero = [_mm512_setzero_ps(); 16];
    let mut out = StepParams { scale: zero, bias: zero };
    let at = step * const { step_bytes(TYPE) };
    by_type!(TYPE {
        BlockType::Q4_0 => out.centred_blocks::<18, 8>(rows, at, 8.0),
        BlockType::IQ4_NL => out.centred_blocks::<18, 8>(rows, at, 127.0),
        BlockType::Q5_0 => out.centred_blocks::<22, 8>(rows, at, 16.0),
        BlockType::Q8_0 => out.centred_blocks::<34, 8>(rows, at, 128.0),
        BlockType::Q1_0 => out.centred_blocks::<18, 2>(rows, at, 1.0),
        BlockType::Q2_0 => out.centred_blocks::<18, 4>(rows, at, 1.0),
        BlockType::Q4_1 => out.blocks::<20>(rows, at),
        BlockType::Q5_1 => out.blocks::<24>(rows, at),
        BlockType::MXFP4 => out.mxfp4(rows, at),
        BlockType::NVFP4 => out.nvfp4(rows, at),
        BlockType::Q2_K => out.q2_k(rows, at),
        BlockType::Q3_K => out.q3_k(rows, at),
        BlockType::Q4_K | BlockType::Q5_K => out.scales_and_mins(rows, at),
        BlockType::Q6_K => out.q6_k(rows, at),
        BlockType::TQ2_0 => out.all_centred(f16_pair(rows.word(at + 62)).1, 1.0),
        BlockType::IQ4_XS => out.iq4_xs(rows, at),
        BlockType::IQ2_XXS => out.iq2_xxs(rows, at),
        BlockType::IQ2_XS => out.iq2_nibbles(rows, at, 66),
        BlockType::IQ2_S => out.iq2_nibbles(rows, at, 74),
        BlockType::IQ3_XXS => out.iq3_xxs(rows, at),
        BlockType::IQ3_S => out.iq3_s(rows, at),
        BlockType::IQ1_S => out.iq1_s(rows, at),
        BlockType::IQ1_M => out.iq1_m(rows, at),
        BlockType::TQ1_0 => unreachable!("no kernel unpacks it in registers"),
    });
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

/// `N_BITS` bits of a word from bit `at` on, as floats.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn bits<const N_BITS: u32>(words: __m512i, at: usize) -> __m512 {
    let shifted = _mm512_srl_epi32(words, _mm_cvtsi32_si128(at as i32));
    _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32((1 << N_BITS) - 1)))
}

/// `factor * (0.5 + number) * part`, in this order.
#[inline]
#[target_feature(enable = "avx512f")]
fn half_more(factor: __m512, number: __m512, part: f32) -> __m512 {
    let sum = _mm512_add_ps(_mm512_set1_ps(0.5), number);
    _mm512_mul_ps(_mm512_mul_ps(factor, sum), _mm512_set1_ps(part))
}

/// `1 + 2 * number`.
#[inline]
#[target_feature(enable = "avx512f")]
fn odd(number: __m512) -> __m512 {
    _mm512_fmadd_ps(_mm512_set1_ps(2.0), number, _mm512_set1_ps(1.0))
}

/// Half of what exponents of E8M0 stand for; 255 is a power like the others.
#[inline]
#[target_feature(enable = "avx512f")]
fn half_powers(exponents: __m512i) -> __m512 {
    let one = _mm512_set1_epi32(1);
    let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, one));
    let is_subnormal = _mm512_cmple_epu32_mask(exponents, one);
    let smallest = _mm512_set1_epi32(0x0020_0000);
    _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, is_subnormal, smallest, exponents))
}

/// Half of what codes of E4M3 without a sign stand for; 0x7f reads as zero.
#[inline]
#[target_feature(enable = "avx512f")]
fn half_ue4m3(codes: __m512i) -> __m512 {
    let codes = _mm512_and_si512(codes, _mm512_set1_epi32(0x7f));
    let is_number = _mm512_cmpneq_epi32_mask(codes, _mm512_set1_epi32(0x7f));
    _mm512_maskz_mul_ps(is_number, e4m3s(codes), _mm512_set1_ps(0.5))
}

impl StepParams {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn centred(&mut self, group: usize, scale: __m512, zero: f32) {
        self.scale[group] = scale;
        self.bias[group] = _mm512_mul_ps(scale, _mm512_set1_ps(-zero));
    }

    /// One scale for all groups.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn all_centred(&mut self, scale: __m512, zero: f32) {
        for group in 0..16 {
            self.centred(group, scale, zero);
        }
    }

    /// `N` blocks of `BYTES` that begin with a scale; the codes of zeros are `zero`. A block is one
    /// group or several groups of 32 columns.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn centred_blocks<const BYTES: usize, const N: usize>(
        &mut self,
        rows: SixteenRows<'_>,
        at: usize,
        zero: f32,
    ) {
        for i in 0..N {
            let (scale, _) = f16_pair(rows.word(at + i * BYTES));
            for group in 8 / N * i..8 / N * (i + 1) {
                self.centred(group, scale, zero);
            }
        }
    }

    /// Eight blocks of `BYTES` that begin with a scale and a bias.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn blocks<const BYTES: usize>(&mut self, rows: SixteenRows<'_>, at: usize) {
        for i in 0..8 {
            (self.scale[i], self.bias[i]) = f16_pair(rows.word(at + i * BYTES));
        }
    }

    /// A power of two before each 32 columns.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn mxfp4(&mut self, rows: SixteenRows<'_>, at: usize) {
        for i in 0..8 {
            self.centred(i, half_powers(byte::<0>(rows.word(at + 17 * i))), 12.0);
        }
    }

    /// Four scales before each 64 columns.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn nvfp4(&mut self, rows: SixteenRows<'_>, at: usize) {
        for i in 0..4 {
            let codes = rows.word(at + 36 * i);
            let shifted = [
                codes,
                _mm512_srli_epi32::<8>(codes),
                _mm512_srli_epi32::<16>(codes),
                _mm512_srli_epi32::<24>(codes),
            ];
            for (k, codes) in shifted.into_iter().enumerate() {
                self.centred(4 * i + k, half_ue4m3(codes), 12.0);
            }
        }
    }

    /// A byte a group: a number of the scale and one of the minimum.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx2")]
    fn q2_k(&mut self, rows: SixteenRows<'_>, at: usize) {
        let (d, min) = f16_pair(rows.word(at + 80));
        let min = _mm512_sub_ps(_mm512_setzero_ps(), min);
        for (i, words) in rows.words(at).into_iter().enumerate() {
            for k in 0..4 {
                self.scale[4 * i + k] = _mm512_mul_ps(d, bits::<4>(words, 8 * k));
                self.bias[4 * i + k] = _mm512_mul_ps(min, bits::<4>(words, 8 * k + 4));
            }
        }
    }

    /// The lower four bits of sixteen numbers, then their upper two bits, then their factor.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx2")]
    fn q3_k(&mut self, rows: SixteenRows<'_>, at: usize) {
        let [_, first, second, upper] = rows.words(at + 92);
        let (_, d) = f16_pair(rows.word(at + 106));
        let (low_four, high_two) = (_mm512_set1_epi32(0x0f0f_0f0f), _mm512_set1_epi32(0x3030_3030));
        let parts = [
            (first, _mm512_slli_epi32::<4>(upper)),
            (second, _mm512_slli_epi32::<2>(upper)),
            (_mm512_srli_epi32::<4>(first), upper),
            (_mm512_srli_epi32::<4>(second), _mm512_srli_epi32::<2>(upper)),
        ];
        for (i, (four, two)) in parts.into_iter().enumerate() {
            let four = _mm512_and_si512(four, low_four);
            let numbers = _mm512_or_si512(four, _mm512_and_si512(two, high_two));
            for (k, number) in bytes(numbers).into_iter().enumerate() {
                let number = _mm512_sub_ps(number, _mm512_set1_ps(32.0));
                self.centred(4 * i + k, _mm512_mul_ps(d, number), 4.0);
            }
        }
    }

    /// Of each eight bytes, the highest four bits.
    #[inline]
    #[target_feature(enable = "avx512f,avx2")]
    fn iq2_xxs(&mut self, rows: SixteenRows<'_>, at: usize) {
        let (d, _) = f16_pair(rows.word(at));
        for g in 0..8 {
            let number = bits::<4>(rows.word(at + 6 + 8 * g), 28);
            self.centred(g, half_more(d, number, 0.25), IQ2_ZERO);
        }
    }

    /// Sixteen numbers of four bits, `first` bytes after the beginning.
    #[inline]
    #[target_feature(enable = "avx512f,avx2")]
    fn iq2_nibbles(&mut self, rows: SixteenRows<'_>, at: usize, first: usize) {
        let (d, _) = f16_pair(rows.word(at));
        for half in 0..2 {
            let words = rows.word(at + first + 4 * half);
            for k in 0..8 {
                let scale = half_more(d, bits::<4>(words, 4 * k), 0.25);
                self.centred(8 * half + k, scale, IQ2_ZERO);
            }
        }
    }

    /// Of each of the last eight words, the highest four bits.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx2")]
    fn iq3_xxs(&mut self, rows: SixteenRows<'_>, at: usize) {
        let (d, _) = f16_pair(rows.word(at));
        for half in 0..2 {
            for (k, words) in rows.words(at + 66 + 16 * half).into_iter().enumerate() {
                let scale = half_more(d, bits::<4>(words, 28), 0.5);
                self.centred(4 * half + k, scale, Codebooks::IQ3_XXS_ZERO.into());
            }
        }
    }

    /// Eight numbers of four bits in the last word.
    #[inline]
    #[target_feature(enable = "avx512f,avx2")]
    fn iq3_s(&mut self, rows: SixteenRows<'_>, at: usize) {
        let (d, _) = f16_pair(rows.word(at));
        let words = rows.word(at + 106);
        for g in 0..8 {
            let scale = _mm512_mul_ps(d, odd(bits::<4>(words, 4 * g)));
            self.centred(g, scale, Codebooks::IQ3_S_ZERO.into());
        }
    }

    /// Of each of the last eight words of 16 bits, three bits below the highest.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx2")]
    fn iq1_s(&mut self, rows: SixteenRows<'_>, at: usize) {
        let (d, _) = f16_pair(rows.word(at));
        for (i, words) in rows.words(at + 34).into_iter().enumerate() {
            for k in 0..2 {
                self.iq1(2 * i + k, d, bits::<3>(words, 16 * k + 12));
            }
        }
    }

    /// Four words of 16 bits: four numbers of three bits each, and a quarter of their factor.
    #[inline]
    #[target_feature(enable = "avx512f,avx2")]
    fn iq1_m(&mut self, rows: SixteenRows<'_>, at: usize) {
        let words = [rows.word(at + 48), rows.word(at + 52)];
        let quarter = |words, shifted, mask| {
            _mm512_and_si512(_mm512_srl_epi32(words, _mm_cvtsi32_si128(shifted)), mask)
        };
        let mask = |at: u32| _mm512_set1_epi32(15 << at);
        let low = _mm512_or_si512(quarter(words[0], 12, mask(0)), quarter(words[0], 24, mask(4)));
        let (third, fourth) = (quarter(words[1], 4, mask(8)), quarter(words[1], 16, mask(12)));
        let (d, _) = f16_pair(_mm512_or_si512(low, _mm512_or_si512(third, fourth)));
        for g in 0..16 {
            self.iq1(g, d, bits::<3>(words[g / 8], g / 4 % 2 * 16 + g % 4 * 3));
        }
    }

    /// A group of the IQ1 types.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn iq1(&mut self, group: usize, d: __m512, number: __m512) {
        let scale = _mm512_mul_ps(_mm512_mul_ps(d, odd(number)), _mm512_set1_ps(0.125));
        self.centred(group, scale, 9.0);
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
