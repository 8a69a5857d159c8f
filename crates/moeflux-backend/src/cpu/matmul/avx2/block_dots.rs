//! Integer dots of 256 columns of eight rows of blocks of ggml.
//!
//! Packed bytes are transposed before they are unpacked, so that the rows are the lanes from there
//! on. The types whose codes come from tables of entries are unpacked row by row, then transposed.

use std::arch::x86_64::*;

use moeflux_core::quant::{BlockType, Codebooks};

use super::block_rows::StepRows;
use super::lane_sums::{GroupSum, QUADS};
use super::lanes::Ymm;
use super::step_x::StepOfX;
use super::vector::{ROWS, load_16, store_bytes};
use crate::cpu::matmul::by_type::by_type;
use crate::cpu::matmul::integers::E2M1_INTEGERS;
use crate::cpu::matmul::lanes::RowBytes;
use crate::cpu::matmul::step_codes;
use crate::cpu::matmul::steps::{GROUPS_OF_STEP, STEP_COLS, of};

/// The dots of the groups of a step; types with groups of 32 columns use the first eight.
pub(super) type StepDots = [__m256i; GROUPS_OF_STEP];

/// Codes of sixteen columns.
pub(super) type Codes = [__m256i; QUADS];

/// The dots of the groups of a step.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn step_dots<const TYPE: u8, const N: usize, const VNNI: bool>(
    rows: StepRows<'_, N>,
    x: &StepOfX,
    out: &mut StepDots,
) {
    by_type!(TYPE {
        BlockType::Q4_0 | BlockType::IQ4_NL => nibbles_of_32::<TYPE, N, VNNI, 18, 2>(rows, x, out),
        BlockType::Q4_1 => nibbles_of_32::<TYPE, N, VNNI, 20, 4>(rows, x, out),
        BlockType::MXFP4 => nibbles_of_32::<TYPE, N, VNNI, 17, 1>(rows, x, out),
        BlockType::IQ4_XS => nibbles_of_32::<TYPE, N, VNNI, 16, 8>(rows, x, out),
        BlockType::Q5_0 => five_bits_of_32::<TYPE, N, VNNI, 22, 2>(rows, x, out),
        BlockType::Q5_1 => five_bits_of_32::<TYPE, N, VNNI, 24, 4>(rows, x, out),
        BlockType::Q8_0 => bytes_of_32::<TYPE, N, VNNI, 34, 2>(rows, x, out),
        BlockType::Q4_K => q4_k::<TYPE, N, VNNI>(rows, x, out),
        BlockType::Q5_K => q5_k::<TYPE, N, VNNI>(rows, x, out),
        BlockType::Q6_K => q6_k::<TYPE, N, VNNI>(rows, x, out),
        BlockType::Q2_K => two_bit_planes::<TYPE, N, VNNI, 16>(rows, x, out),
        BlockType::Q3_K => two_bit_planes::<TYPE, N, VNNI, 32>(rows, x, out),
        BlockType::TQ2_0 => two_bit_planes::<TYPE, N, VNNI, 0>(rows, x, out),
        BlockType::NVFP4 => nvfp4::<TYPE, N, VNNI>(rows, x, out),
        _ => row_by_row::<TYPE, N, VNNI>(rows, x, out),
    })
}

/// The bits `mask` of every byte after a shift to the right.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn bits(packed: Codes, shift: i32, mask: i8) -> Codes {
    let (shift, mask) = (_mm_cvtsi32_si128(shift), _mm256_set1_epi8(mask));
    let mut out = packed;
    for out in &mut out {
        *out = _mm256_and_si256(_mm256_srl_epi16(*out, shift), mask);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn or(a: Codes, b: Codes) -> Codes {
    let mut out = a;
    for (out, b) in out.iter_mut().zip(b) {
        *out = _mm256_or_si256(*out, b);
    }
    out
}

/// What codes of four bits stand for.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn levels<const TYPE: u8>(codes: Codes) -> Codes {
    let table = by_type!(TYPE {
        BlockType::IQ4_NL | BlockType::IQ4_XS => &Codebooks::IQ4_LEVELS,
        BlockType::MXFP4 | BlockType::NVFP4 => &E2M1_INTEGERS,
        _ => return codes,
    });
    let table = _mm256_broadcastsi128_si256(load_16(table));
    let mut out = codes;
    for out in &mut out {
        *out = _mm256_shuffle_epi8(table, *out);
    }
    out
}

/// Eight blocks of `BYTES` whose nibbles begin at `AT`: the lower ones of sixteen bytes, then the
/// upper ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles_of_32<
    const TYPE: u8,
    const N: usize,
    const VNNI: bool,
    const BYTES: usize,
    const AT: usize,
>(
    rows: StepRows<'_, N>,
    x: &StepOfX,
    out: &mut StepDots,
) {
    for i in 0..8 {
        let packed = rows.four_words(Ymm::new(), i * BYTES + AT);
        let (low, high) = (bits(packed, 0, 15), bits(packed, 4, 15));
        let sum = GroupSum::<TYPE, VNNI>::zero().with(levels::<TYPE>(low), &x[8 * i..]);
        out[i] = sum.with(levels::<TYPE>(high), &x[8 * i + QUADS..]).total();
    }
}

/// As [`nibbles_of_32`], after the fifth bits of the 32 columns at `AT`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn five_bits_of_32<
    const TYPE: u8,
    const N: usize,
    const VNNI: bool,
    const BYTES: usize,
    const AT: usize,
>(
    rows: StepRows<'_, N>,
    x: &StepOfX,
    out: &mut StepDots,
) {
    for i in 0..8 {
        let (fifth, packed) = (
            rows.word(Ymm::new(), i * BYTES + AT),
            rows.four_words(Ymm::new(), i * BYTES + AT + 4),
        );
        let low = or(bits(packed, 0, 15), fifth_bits(fifth, 0));
        let high = or(bits(packed, 4, 15), fifth_bits(fifth, 2));
        let sum = GroupSum::<TYPE, VNNI>::zero().with(low, &x[8 * i..]);
        out[i] = sum.with(high, &x[8 * i + QUADS..]).total();
    }
}

/// Sixteen where the bit of a column is set, of the sixteen columns from byte `first` of the bits on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fifth_bits(word: __m256i, first: i32) -> Codes {
    let places = [0x0804_0201, 0x8040_2010_u32.cast_signed()].map(|four| _mm256_set1_epi32(four));
    let sixteen = _mm256_set1_epi8(16);
    let mut out = [_mm256_setzero_si256(); QUADS];
    for (k, out) in out.iter_mut().enumerate() {
        // The byte of these columns, four times.
        let byte = 0x0101_0101 * (first + (k / 2) as i32);
        let (one, two) = (byte, byte + 0x0404_0404);
        let (three, four) = (byte + 0x0808_0808, byte + 0x0c0c_0c0c);
        let spread = _mm256_setr_epi32(one, two, three, four, one, two, three, four);
        let byte = _mm256_shuffle_epi8(word, spread);
        let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(byte, places[k % 2]), places[k % 2]);
        *out = _mm256_and_si256(is_set, sixteen);
    }
    out
}

/// Eight blocks of `BYTES` whose codes begin at `AT`, a byte each; those of Q8_0 are signed.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bytes_of_32<
    const TYPE: u8,
    const N: usize,
    const VNNI: bool,
    const BYTES: usize,
    const AT: usize,
>(
    rows: StepRows<'_, N>,
    x: &StepOfX,
    out: &mut StepDots,
) {
    let zero = if const { matches!(of(TYPE), BlockType::Q8_0) } { -128 } else { 0 };
    let groups_of_32 = const { of(TYPE).group_cols() == 32 };
    for i in 0..8 {
        let mut sum = GroupSum::<TYPE, VNNI>::zero();
        for part in 0..2 {
            let mut codes = rows.four_words(Ymm::new(), i * BYTES + AT + 16 * part);
            for codes in &mut codes {
                *codes = _mm256_xor_si256(*codes, _mm256_set1_epi8(zero));
            }
            sum = sum.with(codes, &x[8 * i + 4 * part..]);
            if !groups_of_32 {
                out[2 * i + part] = sum.total();
                sum = GroupSum::zero();
            }
        }
        if groups_of_32 {
            out[i] = sum.total();
        }
    }
}

/// Two groups for each 32 bytes: the lower nibbles, then the upper ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_k<const TYPE: u8, const N: usize, const VNNI: bool>(
    rows: StepRows<'_, N>,
    x: &StepOfX,
    out: &mut StepDots,
) {
    for i in 0..4 {
        let mut sums = [GroupSum::<TYPE, VNNI>::zero(); 2];
        for part in 0..2 {
            let packed = rows.four_words(Ymm::new(), 16 + 32 * i + 16 * part);
            let x = &x[16 * i + QUADS * part..];
            sums[0] = sums[0].with(bits(packed, 0, 15), x);
            sums[1] = sums[1].with(bits(packed, 4, 15), &x[8..]);
        }
        out[2 * i] = sums[0].total();
        out[2 * i + 1] = sums[1].total();
    }
}

/// As [`q4_k`], after 32 bytes whose bit `g` is the fifth of columns of group `g`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q5_k<const TYPE: u8, const N: usize, const VNNI: bool>(
    rows: StepRows<'_, N>,
    x: &StepOfX,
    out: &mut StepDots,
) {
    let fifth = [rows.four_words(Ymm::new(), 16), rows.four_words(Ymm::new(), 32)];
    macro_rules! two_groups {
        ($($i:literal)*) => {$({
            let mut sums = [GroupSum::<TYPE, VNNI>::zero(); 2];
            for part in 0..2 {
                let packed = rows.four_words(Ymm::new(), 48 + 32 * $i + 16 * part);
                let x = &x[16 * $i + QUADS * part..];
                let low = or(bits(packed, 0, 15), bit_as_fifth::<{ 2 * $i }>(fifth[part]));
                let high = or(bits(packed, 4, 15), bit_as_fifth::<{ 2 * $i + 1 }>(fifth[part]));
                sums[0] = sums[0].with(low, x);
                sums[1] = sums[1].with(high, &x[8..]);
            }
            out[2 * $i] = sums[0].total();
            out[2 * $i + 1] = sums[1].total();
        })*};
    }
    two_groups!(0 1 2 3);
}

/// Sixteen where bit `BIT` of a byte is set.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bit_as_fifth<const BIT: i32>(packed: Codes) -> Codes {
    if BIT > 4 {
        return bits(packed, const { BIT - 4 }, 16);
    }
    let mut out = packed;
    for out in &mut out {
        let shifted = _mm256_sll_epi16(*out, _mm_cvtsi32_si128(const { 4 - BIT }));
        *out = _mm256_and_si256(shifted, _mm256_set1_epi8(16));
    }
    out
}

/// Two halves of 128 columns; of each, 64 bytes of nibbles and 32 with two upper bits a column.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q6_k<const TYPE: u8, const N: usize, const VNNI: bool>(
    rows: StepRows<'_, N>,
    x: &StepOfX,
    out: &mut StepDots,
) {
    for half in 0..2 {
        for part in 0..2 {
            let upper = rows.four_words(Ymm::new(), 128 + 32 * half + 16 * part);
            let first = rows.four_words(Ymm::new(), 64 * half + 16 * part);
            let second = rows.four_words(Ymm::new(), 64 * half + 32 + 16 * part);
            let mut up = upper;
            for up in &mut up {
                *up = _mm256_slli_epi16::<4>(*up);
            }
            let mut up_two = upper;
            for up in &mut up_two {
                *up = _mm256_slli_epi16::<2>(*up);
            }
            let codes = [
                or(bits(first, 0, 15), bits(up, 0, 48)),
                or(bits(second, 0, 15), bits(up_two, 0, 48)),
                or(bits(first, 4, 15), bits(upper, 0, 48)),
                or(bits(second, 4, 15), bits(upper, 2, 48)),
            ];
            for (i, codes) in codes.into_iter().enumerate() {
                let group = 8 * half + 2 * i + part;
                out[group] =
                    GroupSum::<TYPE, VNNI>::zero().with(codes, &x[QUADS * group..]).total();
            }
        }
    }
}

/// Four times 32 columns for each 32 bytes from `AT` on, two bits each. Q3_K has a third bit: bit
/// `i` of its first 32 bytes belongs to the `i`-th 32 columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn two_bit_planes<const TYPE: u8, const N: usize, const VNNI: bool, const AT: usize>(
    rows: StepRows<'_, N>,
    x: &StepOfX,
    out: &mut StepDots,
) {
    let zero = GroupSum::<TYPE, VNNI>::zero();
    let has_third = const { matches!(of(TYPE), BlockType::Q3_K) };
    for half in 0..2 {
        let packed = [
            rows.four_words(Ymm::new(), AT + 32 * half),
            rows.four_words(Ymm::new(), AT + 32 * half + 16),
        ];
        let third = if has_third {
            [rows.four_words(Ymm::new(), 0), rows.four_words(Ymm::new(), 16)]
        } else {
            packed
        };
        for i in 0..4 {
            let at = 4 * half + i;
            let mut codes = [bits(packed[0], 2 * i as i32, 3), bits(packed[1], 2 * i as i32, 3)];
            if has_third {
                for (codes, third) in codes.iter_mut().zip(third) {
                    *codes = or(*codes, third_bits(third, at as i32));
                }
            }
            let x = &x[8 * at..];
            if const { of(TYPE).group_cols() == 32 } {
                out[at] = zero.with(codes[0], x).with(codes[1], &x[QUADS..]).total();
            } else {
                out[2 * at] = zero.with(codes[0], x).total();
                out[2 * at + 1] = zero.with(codes[1], &x[QUADS..]).total();
            }
        }
    }
}

/// Four where bit `bit` of a byte is set.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn third_bits(packed: Codes, bit: i32) -> Codes {
    let mut out = packed;
    for out in &mut out {
        let up = _mm256_slli_epi16::<2>(_mm256_srl_epi16(*out, _mm_cvtsi32_si128(bit)));
        *out = _mm256_and_si256(up, _mm256_set1_epi8(4));
    }
    out
}

/// Four blocks of 64 columns: four scales, then for each sixteen columns the lower nibbles of eight
/// bytes and the upper ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nvfp4<const TYPE: u8, const N: usize, const VNNI: bool>(
    rows: StepRows<'_, N>,
    x: &StepOfX,
    out: &mut StepDots,
) {
    for i in 0..8 {
        let packed = rows.four_words(Ymm::new(), i / 2 * 36 + 4 + i % 2 * 16);
        let low = levels::<TYPE>(bits(packed, 0, 15));
        let high = levels::<TYPE>(bits(packed, 4, 15));
        for part in 0..2 {
            let codes = [low[2 * part], low[2 * part + 1], high[2 * part], high[2 * part + 1]];
            let group = 2 * i + part;
            out[group] = GroupSum::<TYPE, VNNI>::zero().with(codes, &x[QUADS * group..]).total();
        }
    }
}

/// Codes of eight rows, a row after the other.
#[repr(align(64))]
struct Unpacked([[u8; STEP_COLS]; ROWS]);

/// Types that are unpacked row by row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn row_by_row<const TYPE: u8, const N: usize, const VNNI: bool>(
    rows: StepRows<'_, N>,
    x: &StepOfX,
    out: &mut StepDots,
) {
    let mut codes = Unpacked([[0; STEP_COLS]; ROWS]);
    for (row, codes) in rows.0.iter().zip(&mut codes.0) {
        let unpacked = step_codes::codes::<_, TYPE>(Ymm::new(), *row);
        for (vector, codes) in unpacked.into_iter().zip(codes.as_chunks_mut::<32>().0) {
            store_bytes(codes, vector);
        }
    }
    let [a, b, c, d, e, f, g, h] = &codes.0;
    let rows = StepRows([a, b, c, d, e, f, g, h]);
    bytes_of_32::<TYPE, STEP_COLS, VNNI, 32, 0>(rows, x, out);
}
