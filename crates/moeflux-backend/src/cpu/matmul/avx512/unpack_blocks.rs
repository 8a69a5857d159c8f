//! The codes of 256 columns in blocks of ggml.

use std::arch::x86_64::*;

use moeflux_core::quant::{BlockType, Codebooks};

use super::lanes::Zmm;
use super::unpack_codebooks::{iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs};
use super::vector::{STEP_LINES, load_16, load_32, load_64};
use crate::cpu::matmul::integers::E2M1_INTEGERS;
use crate::cpu::matmul::lanes::by_instructions;
use crate::cpu::matmul::step_codes::StepCodes;

/// The codes of 256 columns, 64 to a vector.
type Lines = [__m512i; STEP_LINES];

impl StepCodes for Zmm {
    type Codes = Lines;

    by_instructions! {
        fn decoded(block_type: BlockType, step: &[u8]) -> Lines { decoded(block_type, step) }
        fn nibbles_of_32<const BYTES: usize, const AT: usize>(step: &[u8]) -> Lines {
            nibbles_of_32::<BYTES, AT>(step)
        }
        fn add_fifth_bits<const BYTES: usize, const AT: usize>(step: &[u8], codes: Lines) -> Lines {
            add_fifth_bits::<BYTES, AT>(step, codes)
        }
        fn signed_bytes_of_32(step: &[u8]) -> Lines { signed_bytes_of_32(step) }
        fn nibble_planes(packed: &[u8]) -> Lines { nibble_planes(packed) }
        fn add_bit_planes<const VALUE: i8>(bits: &[u8], codes: Lines) -> Lines {
            add_bit_planes::<VALUE>(load_32(bits), codes)
        }
        fn two_bit_planes(packed: &[u8]) -> Lines { two_bit_planes(packed) }
        fn look_up(table: &[u8; 16], codes: Lines) -> Lines { look_up(table, codes) }
        fn q6_k(step: &[u8]) -> Lines { q6_k(step) }
        fn iq4_xs(step: &[u8]) -> Lines { iq4_xs(step) }
        fn nvfp4(step: &[u8]) -> Lines { nvfp4(step) }
        fn q1_0(step: &[u8]) -> Lines { q1_0(step) }
        fn q2_0(step: &[u8]) -> Lines { q2_0(step) }
        fn iq2_xxs(block: &[u8; 66]) -> Lines { iq2_xxs(block) }
        fn iq2_xs(block: &[u8; 74]) -> Lines { iq2_xs(block) }
        fn iq2_s(block: &[u8; 82]) -> Lines { iq2_s(block) }
        fn iq3_xxs(block: &[u8; 98]) -> Lines { iq3_xxs(block) }
        fn iq3_s(block: &[u8; 110]) -> Lines { iq3_s(block) }
        fn iq1_s(block: &[u8; 50]) -> Lines { iq1_s(block) }
        fn iq1_m(block: &[u8; 56]) -> Lines { iq1_m(block) }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn decoded(block_type: BlockType, step: &[u8]) -> Lines {
    let mut codes = [0; 64 * STEP_LINES];
    block_type.decode_codes(step, &mut codes);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (out, codes) in out.iter_mut().zip(codes.as_chunks::<64>().0) {
        *out = load_64(codes);
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn nibbles_of_32<const BYTES: usize, const AT: usize>(step: &[u8]) -> Lines {
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

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add_fifth_bits<const BYTES: usize, const AT: usize>(step: &[u8], mut lines: Lines) -> Lines {
    let sixteen = _mm512_set1_epi8(16);
    for (i, line) in lines.iter_mut().enumerate() {
        let first = u32_at(step, 2 * i * BYTES + AT);
        let second = u32_at(step, (2 * i + 1) * BYTES + AT);
        let mask = u64::from(first) | u64::from(second) << 32;
        *line = _mm512_mask_add_epi8(*line, mask, *line, sixteen);
    }
    lines
}

#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn signed_bytes_of_32(step: &[u8]) -> Lines {
    let sign = _mm512_set1_epi8(-128);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        let block = |k: usize| load_32(&step[(2 * i + k) * 34 + 2..]);
        let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(block(0)), block(1));
        *out = _mm512_xor_si512(both, sign);
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn nibble_planes(packed: &[u8]) -> Lines {
    let shifts = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    let mask = _mm512_set1_epi8(15);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        let both = _mm512_broadcast_i64x4(load_32(&packed[32 * i..]));
        *out = _mm512_and_si512(_mm512_srlv_epi64(both, shifts), mask);
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add_bit_planes<const VALUE: i8>(bits: __m256i, mut lines: Lines) -> Lines {
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

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn two_bit_planes(packed: &[u8]) -> Lines {
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
fn q6_k(block: &[u8]) -> Lines {
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

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn iq4_xs(block: &[u8]) -> Lines {
    let shifts = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    let mask = _mm512_set1_epi8(15);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        let both = _mm512_castsi256_si512(load_32(&block[8 + 32 * i..]));
        let both = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), both);
        *out = _mm512_and_si512(_mm512_srlv_epi64(both, shifts), mask);
    }
    look_up(&Codebooks::IQ4_LEVELS, out)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn nvfp4(step: &[u8]) -> Lines {
    let shifts = _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4);
    let mask = _mm512_set1_epi8(15);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        let packed = _mm512_castsi256_si512(load_32(&step[36 * i + 4..]));
        let both = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), packed);
        *out = _mm512_and_si512(_mm512_srlv_epi64(both, shifts), mask);
    }
    look_up(&E2M1_INTEGERS, out)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn look_up(table: &[u8; 16], mut codes: Lines) -> Lines {
    let table = _mm512_broadcast_i32x4(load_16(table));
    // Not `map`, whose closure is not always inlined.
    for codes in &mut codes {
        *codes = _mm512_shuffle_epi8(table, *codes);
    }
    codes
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn q1_0(step: &[u8]) -> Lines {
    let two = _mm512_set1_epi8(2);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (i, out) in out.iter_mut().enumerate() {
        let bits = u64_at(step, i / 2 * 18 + 2 + i % 2 * 8);
        *out = _mm512_maskz_mov_epi8(bits, two);
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn q2_0(step: &[u8]) -> Lines {
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
