//! Scales and biases of eight rows of blocks, with the rows as lanes, straight from the blocks.

use std::arch::x86_64::*;

use moeflux_core::quant::{BlockType, Codebooks, SmallScale};

use super::block_rows::{StepRows, word_of_rows, words_of_rows};
use super::small_scales::params_of_e2m1;
use super::unpack_blocks::{GROUPS_OF_STEP, of};
use super::vector::load_16;
use crate::cpu::matmul::by_type::by_type;

const IQ2_ZERO: f32 = Codebooks::IQ2_ZERO as f32;

/// Scales and biases of the groups of 256 columns; lanes are rows. Types with groups of 32 columns
/// use the first eight.
pub(super) struct StepParams {
    pub(super) scale: [__m256; GROUPS_OF_STEP],
    pub(super) bias: [__m256; GROUPS_OF_STEP],
}

/// The parameters of 256 columns of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn step_params<const TYPE: u8, const N: usize>(
    rows: StepRows<'_, N>,
    out: &mut StepParams,
) {
    by_type!(TYPE {
        BlockType::Q4_0 => out.centred_blocks::<18, N>(rows, 8.0),
        BlockType::IQ4_NL => out.centred_blocks::<18, N>(rows, 127.0),
        BlockType::Q5_0 => out.centred_blocks::<22, N>(rows, 16.0),
        BlockType::Q8_0 => out.centred_blocks::<34, N>(rows, 128.0),
        BlockType::Q1_0 | BlockType::Q2_0 => out.centred_blocks::<18, N>(rows, 1.0),
        BlockType::Q4_1 => out.blocks::<20, N>(rows),
        BlockType::Q5_1 => out.blocks::<24, N>(rows),
        BlockType::MXFP4 => out.mxfp4(rows),
        BlockType::NVFP4 => out.nvfp4(rows),
        BlockType::Q2_K => out.q2_k(rows),
        BlockType::Q3_K => out.q3_k(rows),
        BlockType::Q4_K | BlockType::Q5_K => out.scales_and_mins(rows),
        BlockType::Q6_K => out.q6_k(rows),
        BlockType::TQ1_0 => out.all_centred(f16_pair(word_of_rows!(rows, 50)).1, 1.0),
        BlockType::TQ2_0 => out.all_centred(f16_pair(word_of_rows!(rows, 62)).1, 1.0),
        BlockType::IQ4_XS => out.iq4_xs(rows),
        BlockType::IQ2_XXS => out.iq2_xxs(rows),
        BlockType::IQ2_XS => out.iq2_nibbles::<66, N>(rows),
        BlockType::IQ2_S => out.iq2_nibbles::<74, N>(rows),
        BlockType::IQ3_XXS => out.iq3_xxs(rows),
        BlockType::IQ3_S => out.iq3_s(rows),
        BlockType::IQ1_S => out.iq1_s(rows),
        BlockType::IQ1_M => out.iq1_m(rows),
    })
}

/// The two `f16` of each lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn f16_pair(words: __m256i) -> (__m256, __m256) {
    let low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    let packed = _mm256_packus_epi32(low, _mm256_srli_epi32::<16>(words));
    // Packing takes 128-bit lanes in turns.
    let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
    let second = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(ordered));
    (_mm256_cvtph_ps(_mm256_castsi256_si128(ordered)), second)
}

/// `N_BITS` bits of a word from bit `at` on, as floats.
#[inline]
#[target_feature(enable = "avx2")]
fn bits<const N_BITS: u32>(words: __m256i, at: usize) -> __m256 {
    let shifted = _mm256_srl_epi32(words, _mm_cvtsi32_si128(at as i32));
    _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32((1 << N_BITS) - 1)))
}

/// `factor * (0.5 + number) * part`, in this order.
#[inline]
#[target_feature(enable = "avx2")]
fn half_more(factor: __m256, number: __m256, part: f32) -> __m256 {
    let sum = _mm256_add_ps(_mm256_set1_ps(0.5), number);
    _mm256_mul_ps(_mm256_mul_ps(factor, sum), _mm256_set1_ps(part))
}

/// Half of what exponents of E8M0 stand for; 255 is a power like the others.
#[inline]
#[target_feature(enable = "avx2")]
fn half_powers(exponents: __m256i) -> __m256 {
    let one = _mm256_set1_epi32(1);
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, one));
    let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponents);
    let is_normal = _mm256_cmpgt_epi32(exponents, one);
    _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal))
}

/// Half of what codes of E4M3 without a sign stand for; 0x7f reads as zero.
#[inline]
#[target_feature(enable = "avx2")]
fn half_ue4m3(codes: __m256i) -> __m256 {
    let largest = _mm256_set1_epi32(0x7f);
    // Exponent and mantissa at the places of those of a single, whose bias is 120 larger.
    let small = _mm256_slli_epi32::<20>(_mm256_and_si256(codes, largest));
    let power = _mm256_castsi256_ps(_mm256_set1_epi32((127 + 119) << 23));
    let value = _mm256_mul_ps(_mm256_castsi256_ps(small), power);
    let is_zero = _mm256_castsi256_ps(_mm256_cmpeq_epi32(codes, largest));
    _mm256_andnot_ps(is_zero, value)
}

/// The bytes of a word, the lowest first.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes(words: __m256i) -> [__m256; 4] {
    let byte = _mm256_set1_epi32(255);
    [
        _mm256_cvtepi32_ps(_mm256_and_si256(words, byte)),
        _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<8>(words), byte)),
        _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<16>(words), byte)),
        _mm256_cvtepi32_ps(_mm256_srli_epi32::<24>(words)),
    ]
}

impl StepParams {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn zero() -> StepParams {
        let zero = [_mm256_setzero_ps(); GROUPS_OF_STEP];
        StepParams { scale: zero, bias: zero }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn centred(&mut self, group: usize, scale: __m256, zero: f32) {
        self.scale[group] = scale;
        self.bias[group] = _mm256_mul_ps(scale, _mm256_set1_ps(-zero));
    }

    /// A byte for each group of E2M1, four to a word.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn set_e2m1<const WORDS: usize>(
        &mut self,
        scale: SmallScale,
        words: [__m256i; WORDS],
    ) {
        for (i, words) in words.into_iter().enumerate() {
            for k in 0..4 {
                let params = params_of_e2m1(scale, words, k);
                (self.scale[4 * i + k], self.bias[4 * i + k]) = (params.scale, params.bias);
            }
        }
    }

    /// One scale for all groups.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn all_centred(&mut self, scale: __m256, zero: f32) {
        for group in 0..GROUPS_OF_STEP {
            self.centred(group, scale, zero);
        }
    }

    /// Blocks of `BYTES` that begin with a scale; the codes of zeros are `zero`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn centred_blocks<const BYTES: usize, const N: usize>(
        &mut self,
        rows: StepRows<'_, N>,
        zero: f32,
    ) {
        let groups_of_32 = const { 8 * BYTES / N };
        for i in 0..const { N / BYTES } {
            let (scale, _) = f16_pair(word_of_rows!(rows, i * BYTES));
            for group in groups_of_32 * i..groups_of_32 * (i + 1) {
                self.centred(group, scale, zero);
            }
        }
    }

    /// Eight blocks of `BYTES` that begin with a scale and a bias.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn blocks<const BYTES: usize, const N: usize>(&mut self, rows: StepRows<'_, N>) {
        for i in 0..8 {
            (self.scale[i], self.bias[i]) = f16_pair(word_of_rows!(rows, i * BYTES));
        }
    }

    /// A power of two before each 32 columns.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn mxfp4<const N: usize>(&mut self, rows: StepRows<'_, N>) {
        for i in 0..8 {
            let word = word_of_rows!(rows, 17 * i);
            let scale = half_powers(_mm256_and_si256(word, _mm256_set1_epi32(255)));
            self.centred(i, scale, 12.0);
        }
    }

    /// Four scales before each 64 columns.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn nvfp4<const N: usize>(&mut self, rows: StepRows<'_, N>) {
        let byte = _mm256_set1_epi32(255);
        for i in 0..4 {
            let mut codes = word_of_rows!(rows, 36 * i);
            for k in 0..4 {
                self.centred(4 * i + k, half_ue4m3(_mm256_and_si256(codes, byte)), 12.0);
                codes = _mm256_srli_epi32::<8>(codes);
            }
        }
    }

    /// A byte a group: a number of the scale and one of the minimum.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn q2_k<const N: usize>(&mut self, rows: StepRows<'_, N>) {
        let (d, min) = f16_pair(word_of_rows!(rows, 80));
        let min = _mm256_sub_ps(_mm256_setzero_ps(), min);
        for (i, words) in words_of_rows!(rows, 0).into_iter().enumerate() {
            for k in 0..4 {
                self.scale[4 * i + k] = _mm256_mul_ps(d, bits::<4>(words, 8 * k));
                self.bias[4 * i + k] = _mm256_mul_ps(min, bits::<4>(words, 8 * k + 4));
            }
        }
    }

    /// The lower four bits of sixteen numbers, then their upper two bits, then their factor.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn q3_k<const N: usize>(&mut self, rows: StepRows<'_, N>) {
        let lower = [word_of_rows!(rows, 96), word_of_rows!(rows, 100)];
        let upper = word_of_rows!(rows, 104);
        let (_, d) = f16_pair(word_of_rows!(rows, 106));
        let (low_four, high_two) = (_mm256_set1_epi32(0x0f0f_0f0f), _mm256_set1_epi32(0x3030_3030));
        for i in 0..4 {
            let four = _mm256_srl_epi32(lower[i % 2], _mm_cvtsi32_si128((i / 2 * 4) as i32));
            let two = match i {
                0 => _mm256_slli_epi32::<4>(upper),
                1 => _mm256_slli_epi32::<2>(upper),
                2 => upper,
                _ => _mm256_srli_epi32::<2>(upper),
            };
            let four = _mm256_and_si256(four, low_four);
            let numbers = _mm256_or_si256(four, _mm256_and_si256(two, high_two));
            for (k, number) in bytes(numbers).into_iter().enumerate() {
                let number = _mm256_sub_ps(number, _mm256_set1_ps(32.0));
                self.centred(4 * i + k, _mm256_mul_ps(d, number), 4.0);
            }
        }
    }

    /// Of each eight bytes, the highest four bits.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn iq2_xxs<const N: usize>(&mut self, rows: StepRows<'_, N>) {
        let (d, _) = f16_pair(word_of_rows!(rows, 0));
        for g in 0..8 {
            let number = bits::<4>(word_of_rows!(rows, 6 + 8 * g), 28);
            self.centred(g, half_more(d, number, 0.25), IQ2_ZERO);
        }
    }

    /// Sixteen numbers of four bits from byte `AT` on.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn iq2_nibbles<const AT: usize, const N: usize>(&mut self, rows: StepRows<'_, N>) {
        let (d, _) = f16_pair(word_of_rows!(rows, 0));
        for half in 0..2 {
            let words = word_of_rows!(rows, AT + 4 * half);
            for k in 0..8 {
                let scale = half_more(d, bits::<4>(words, 4 * k), 0.25);
                self.centred(8 * half + k, scale, IQ2_ZERO);
            }
        }
    }

    /// Of each of the last eight words, the highest four bits.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn iq3_xxs<const N: usize>(&mut self, rows: StepRows<'_, N>) {
        let (d, _) = f16_pair(word_of_rows!(rows, 0));
        for g in 0..8 {
            let number = bits::<4>(word_of_rows!(rows, 66 + 4 * g), 28);
            self.centred(g, half_more(d, number, 0.5), Codebooks::IQ3_XXS_ZERO.into());
        }
    }

    /// Eight numbers of four bits in the last word.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn iq3_s<const N: usize>(&mut self, rows: StepRows<'_, N>) {
        let (d, _) = f16_pair(word_of_rows!(rows, 0));
        let words = word_of_rows!(rows, 106);
        for g in 0..8 {
            let number = bits::<4>(words, 4 * g);
            let factor = _mm256_fmadd_ps(_mm256_set1_ps(2.0), number, _mm256_set1_ps(1.0));
            self.centred(g, _mm256_mul_ps(d, factor), Codebooks::IQ3_S_ZERO.into());
        }
    }

    /// Of each of the last eight words of 16 bits, three bits below the highest.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn iq1_s<const N: usize>(&mut self, rows: StepRows<'_, N>) {
        let (d, _) = f16_pair(word_of_rows!(rows, 0));
        for (i, words) in words_of_rows!(rows, 34).into_iter().enumerate() {
            for k in 0..2 {
                self.iq1(2 * i + k, d, bits::<3>(words, 16 * k + 12));
            }
        }
    }

    /// Four words of 16 bits: four numbers of three bits each, and a quarter of their factor.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn iq1_m<const N: usize>(&mut self, rows: StepRows<'_, N>) {
        let words = [word_of_rows!(rows, 48), word_of_rows!(rows, 52)];
        let nibble = _mm256_set1_epi32(15);
        let mut factor = _mm256_setzero_si256();
        for (i, words) in words.into_iter().enumerate() {
            for k in 0..2 {
                let shift = _mm_cvtsi32_si128(16 * k + 12);
                let four = _mm256_and_si256(_mm256_srl_epi32(words, shift), nibble);
                let place = _mm_cvtsi32_si128(8 * i as i32 + 4 * k);
                factor = _mm256_or_si256(factor, _mm256_sll_epi32(four, place));
            }
        }
        let (d, _) = f16_pair(factor);
        for g in 0..16 {
            self.iq1(g, d, bits::<3>(words[g / 8], g / 4 % 2 * 16 + g % 4 * 3));
        }
    }

    /// A group of the IQ1 types.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn iq1(&mut self, group: usize, d: __m256, number: __m256) {
        let odd = _mm256_fmadd_ps(_mm256_set1_ps(2.0), number, _mm256_set1_ps(1.0));
        let scale = _mm256_mul_ps(_mm256_mul_ps(d, odd), _mm256_set1_ps(0.125));
        self.centred(group, scale, 9.0);
    }

    /// Eight scales and eight minima of six bits each, after their factors.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn scales_and_mins<const N: usize>(&mut self, rows: StepRows<'_, N>) {
        let [factors, scales, mins, lower] = words_of_rows!(rows, 0);
        let (d, min) = f16_pair(factors);
        let min = _mm256_sub_ps(_mm256_setzero_ps(), min);
        let six = _mm256_set1_epi32(0x3f3f_3f3f);
        let (low_four, high_two) = (_mm256_set1_epi32(0x0f0f_0f0f), _mm256_set1_epi32(0x3030_3030));
        let second = |lower: __m256i, upper: __m256i| {
            let upper = _mm256_and_si256(_mm256_srli_epi32::<2>(upper), high_two);
            _mm256_or_si256(_mm256_and_si256(lower, low_four), upper)
        };
        let scales = [_mm256_and_si256(scales, six), second(lower, scales)];
        let mins = [_mm256_and_si256(mins, six), second(_mm256_srli_epi32::<4>(lower), mins)];
        for half in 0..2 {
            for (i, number) in bytes(scales[half]).into_iter().enumerate() {
                self.scale[4 * half + i] = _mm256_mul_ps(number, d);
            }
            for (i, number) in bytes(mins[half]).into_iter().enumerate() {
                self.bias[4 * half + i] = _mm256_mul_ps(number, min);
            }
        }
    }

    /// Sixteen signed bytes, then their factor.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn q6_k<const N: usize>(&mut self, rows: StepRows<'_, N>) {
        let (_, d) = f16_pair(word_of_rows!(rows, 206));
        for (i, words) in words_of_rows!(rows, 192).into_iter().enumerate() {
            let signed = [
                _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(words)),
                _mm256_srai_epi32::<24>(_mm256_slli_epi32::<16>(words)),
                _mm256_srai_epi32::<24>(_mm256_slli_epi32::<8>(words)),
                _mm256_srai_epi32::<24>(words),
            ];
            for (k, number) in signed.into_iter().enumerate() {
                self.centred(4 * i + k, _mm256_mul_ps(_mm256_cvtepi32_ps(number), d), 32.0);
            }
        }
    }

    /// A factor, eight times two upper bits, eight nibbles.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn iq4_xs<const N: usize>(&mut self, rows: StepRows<'_, N>) {
        let (first, mut low) = (word_of_rows!(rows, 0), word_of_rows!(rows, 4));
        let (d, _) = f16_pair(first);
        let mut upper = _mm256_srli_epi32::<16>(first);
        for g in 0..8 {
            let high = _mm256_and_si256(upper, _mm256_set1_epi32(3));
            let nibble = _mm256_and_si256(low, _mm256_set1_epi32(15));
            let number = _mm256_or_si256(nibble, _mm256_slli_epi32::<4>(high));
            let number = _mm256_sub_epi32(number, _mm256_set1_epi32(32));
            self.centred(g, _mm256_mul_ps(d, _mm256_cvtepi32_ps(number)), 127.0);
            (upper, low) = (_mm256_srli_epi32::<2>(upper), _mm256_srli_epi32::<4>(low));
        }
    }
}
