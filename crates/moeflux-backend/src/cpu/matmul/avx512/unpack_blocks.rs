//! The codes of 256 columns in blocks of ggml, as [`BlockType::decode`] defines them.

use std::arch::x86_64::*;

use moeflux_core::quant::{BlockType, Codebooks};

use super::unpack_codebooks::{iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs};
use super::vector::{STEP_LINES, load_16, load_32, load_64};
use crate::cpu::matmul::by_type::by_type;
use crate::cpu::matmul::steps::{of, step_bytes};

/// The codes of 256 columns, 64 to a vector, in their order.
pub(super) struct Lines(pub(super) [__m512i; STEP_LINES]);

/// Unpacks the blocks of 256 columns.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) fn unpack<const TYPE: u8>(step: &[u8]) -> Lines {
    // With a length known here, no load below needs a check.
    let step = &step[..const { step_bytes(TYPE) }];
    by_type!(TYPE {
        BlockType::Q4_0 => Lines(nibbles_of_32::<18, 2>(step)),
        BlockType::Q4_1 => Lines(nibbles_of_32::<20, 4>(step)),
        BlockType::Q5_0 => Lines(add_fifth_bits::<22, 2>(step, nibbles_of_32::<22, 6>(step))),
        BlockType::Q5_1 => Lines(add_fifth_bits::<24, 4>(step, nibbles_of_32::<24, 8>(step))),
        BlockType::Q8_0 => Lines(bytes_of_32(step)),
        BlockType::IQ4_NL => Lines(nibbles_of_32::<18, 2>(step).map(|codes| levels(codes))),
        BlockType::MXFP4 => Lines(nibbles_of_32::<17, 1>(step).map(|codes| e2m1(codes))),
        BlockType::NVFP4 => Lines(nvfp4(step)),
        BlockType::Q4_K => Lines(nibble_planes(&step[16..])),
        BlockType::Q5_K => {
            let low = nibble_planes(&step[48..]);
            Lines(add_bit_planes::<16>(load_32(&step[16..]), low))
        },
        BlockType::Q6_K => Lines(q6_k(step)),
        BlockType::Q2_K => Lines(two_bit_planes(&step[16..])),
        BlockType::Q3_K => Lines(add_bit_planes::<4>(load_32(step), two_bit_planes(&step[32..]))),
        BlockType::TQ2_0 => Lines(two_bit_planes(step)),
        BlockType::IQ4_XS => Lines(iq4_xs(step)),
        BlockType::Q1_0 => Lines(q1_0(step)),
        BlockType::Q2_0 => Lines(q2_0(step)),
        BlockType::IQ2_XXS => Lines(iq2_xxs(step)),
        BlockType::IQ2_XS => Lines(iq2_xs(step)),
        BlockType::IQ2_S => Lines(iq2_s(step)),
        BlockType::IQ3_XXS => Lines(iq3_xxs(step)),
        BlockType::IQ3_S => Lines(iq3_s(step)),
        BlockType::IQ1_S => Lines(iq1_s(step)),
        BlockType::IQ1_M => Lines(iq1_m(step)),
        BlockType::TQ1_0 => unreachable!("no kernel unpacks it in registers"),
    })
}

/// Eight blocks of 32 columns in `BYTES` bytes, whose nibbles begin at `AT`: the lower ones of
/// sixteen bytes, then the upper ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn nibbles_of_32<const BYTES: usize, const AT: usize>(step: &[u8]) -> [__m512i; STEP_LINES] {
    let shifts = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    let mask = _mm512_set1_epi8(15);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        let block = |k: usize| load_16(&step[(2 * i + k) * BYTES + AT..]);
        let first = _mm512_broadcast_i32x4(block(0));
        let both = _mm512_mask_broadcast_i32x4(first, 0xff00, block(1));
        *out = _mm512_and_si512(_mm512_srlv_epi64(both, shifts), mask);
    }
    out
}

/// Adds sixteen where the bit of a column is set, in eight blocks of 32 columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add_fifth_bits<const BYTES: usize, const AT: usize>(
    step: &[u8],
    mut lines: [__m512i; STEP_LINES],
) -> [__m512i; STEP_LINES] {
    let sixteen = _mm512_set1_epi8(16);
    for (i, line) in lines.iter_mut().enumerate() {
        let first = u32_at(step, 2 * i * BYTES + AT);
        let second = u32_at(step, (2 * i + 1) * BYTES + AT);
        let mask = u64::from(first) | u64::from(second) << 32;
        *line = _mm512_mask_add_epi8(*line, mask, *line, sixteen);
    }
    lines
}

/// Eight blocks of Q8_0.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn bytes_of_32(step: &[u8]) -> [__m512i; STEP_LINES] {
    let sign = _mm512_set1_epi8(-128);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        let block = |k: usize| load_32(&step[(2 * i + k) * 34 + 2..]);
        let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(block(0)), block(1));
        *out = _mm512_xor_si512(both, sign);
    }
    out
}

/// Two groups of 32 columns for each 32 bytes: the lower nibbles, then the upper ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn nibble_planes(packed: &[u8]) -> [__m512i; STEP_LINES] {
    let shifts = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    let mask = _mm512_set1_epi8(15);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        let both = _mm512_broadcast_i64x4(load_32(&packed[32 * i..]));
        *out = _mm512_and_si512(_mm512_srlv_epi64(both, shifts), mask);
    }
    out
}

/// Adds `VALUE` where the bit of a column is set: bit `i` of 32 bytes belongs to the `i`-th 32
/// columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add_bit_planes<const VALUE: i8>(
    bits: __m256i,
    mut lines: [__m512i; STEP_LINES],
) -> [__m512i; STEP_LINES] {
    let bits = _mm512_broadcast_i64x4(bits);
    let value = _mm512_set1_epi8(VALUE);
    for (i, line) in lines.iter_mut().enumerate() {
        let (first, second) =
            (_mm256_set1_epi8(1 << (2 * i)), _mm256_set1_epi8((2 << (2 * i)) as i8));
        let places = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
        let mask = _mm512_test_epi8_mask(bits, places);
        *line = _mm512_mask_add_epi8(*line, mask, *line, value);
    }
    lines
}

/// Four groups of 32 columns for each 32 bytes, two bits each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn two_bit_planes(packed: &[u8]) -> [__m512i; STEP_LINES] {
    let mask = _mm512_set1_epi8(3);
    let shifts =
        [_mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2), _mm512_setr_epi64(4, 4, 4, 4, 6, 6, 6, 6)];
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        let all = _mm512_broadcast_i64x4(load_32(&packed[32 * (i / 2)..]));
        *out = _mm512_and_si512(_mm512_srlv_epi64(all, shifts[i % 2]), mask);
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn q6_k(block: &[u8]) -> [__m512i; STEP_LINES] {
    let mask = _mm512_set1_epi8(15);
    let upper = two_bit_planes(&block[128..]);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for half in 0..2 {
        let packed = load_64(&block[64 * half..]);
        let low = _mm512_and_si512(packed, mask);
        let high = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
        // Codes of two bits stay in their byte.
        let shifted = |upper| _mm512_slli_epi16::<4>(upper);
        out[2 * half] = _mm512_or_si512(low, shifted(upper[2 * half]));
        out[2 * half + 1] = _mm512_or_si512(high, shifted(upper[2 * half + 1]));
    }
    out
}

/// Sixteen bytes for each of eight groups of 32 columns: the lower nibbles, then the upper ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn iq4_xs(block: &[u8]) -> [__m512i; STEP_LINES] {
    let shifts = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    let mask = _mm512_set1_epi8(15);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        let both = _mm512_castsi256_si512(load_32(&block[8 + 32 * i..]));
        let both = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), both);
        *out = levels(_mm512_and_si512(_mm512_srlv_epi64(both, shifts), mask));
    }
    out
}

/// Four blocks of 64 columns, each of four groups of eight bytes: lower nibbles, upper nibbles.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn nvfp4(step: &[u8]) -> [__m512i; STEP_LINES] {
    let shifts = _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4);
    let mask = _mm512_set1_epi8(15);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        let packed = _mm512_castsi256_si512(load_32(&step[36 * i + 4..]));
        let both = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), packed);
        *out = e2m1(_mm512_and_si512(_mm512_srlv_epi64(both, shifts), mask));
    }
    out
}

/// The levels of IQ4 that nibbles stand for.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn levels(codes: __m512i) -> __m512i {
    let table = _mm512_broadcast_i32x4(load_16(&Codebooks::IQ4_LEVELS));
    _mm512_shuffle_epi8(table, codes)
}

/// The integers that codes of E2M1 stand for.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn e2m1(codes: __m512i) -> __m512i {
    let table = _mm512_broadcast_i32x4(load_16(&super::super::integers::E2M1_INTEGERS));
    _mm512_shuffle_epi8(table, codes)
}

/// Two blocks of 128 columns, a bit each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn q1_0(step: &[u8]) -> [__m512i; STEP_LINES] {
    let two = _mm512_set1_epi8(2);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        let bits = u64_at(step, i / 2 * 18 + 2 + i % 2 * 8);
        *out = _mm512_maskz_mov_epi8(bits, two);
    }
    out
}

/// Four blocks of 64 columns, four columns a byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn q2_0(step: &[u8]) -> [__m512i; STEP_LINES] {
    let mask = _mm512_set1_epi8(3);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        // A byte in each lane of 32 bits; its fields are moved to the bytes of the lane.
        let wide = _mm512_cvtepu8_epi32(load_16(&step[18 * i + 2..]));
        let twice = _mm512_or_si512(wide, _mm512_slli_epi32::<6>(wide));
        let fields = _mm512_or_si512(twice, _mm512_slli_epi32::<12>(twice));
        *out = _mm512_and_si512(fields, mask);
    }
    out
}

#[inline(always)]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes"))
}

#[inline(always)]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("four bytes"))
}
