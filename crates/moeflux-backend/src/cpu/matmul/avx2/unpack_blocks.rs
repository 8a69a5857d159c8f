//! The codes of 256 columns in blocks of ggml.

use std::arch::x86_64::*;

use moeflux_core::quant::{BlockType, Codebooks};

use super::lanes::Ymm;
use super::unpack_codebooks::{iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs};
use super::vector::{VECTORS, load_16, load_32};
use crate::cpu::matmul::lanes::by_instructions;
use crate::cpu::matmul::step_codes::StepCodes;
use crate::cpu::matmul::steps::of;

/// The largest code of a type.
pub(super) const fn largest_code(number: u8) -> usize {
    match of(number) {
        BlockType::Q1_0 | BlockType::TQ1_0 | BlockType::TQ2_0 => 2,
        BlockType::Q2_0 | BlockType::Q2_K => 3,
        BlockType::Q3_K => 7,
        BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q4_K => 15,
        BlockType::IQ1_S | BlockType::IQ1_M => 18,
        BlockType::MXFP4 | BlockType::NVFP4 => 24,
        BlockType::IQ3_S => 2 * Codebooks::IQ3_S_ZERO as usize,
        BlockType::Q5_0 | BlockType::Q5_1 | BlockType::Q5_K => 31,
        BlockType::Q6_K => 63,
        BlockType::IQ2_XXS | BlockType::IQ2_XS | BlockType::IQ2_S => {
            2 * Codebooks::IQ2_ZERO as usize
        }
        BlockType::IQ3_XXS => 2 * Codebooks::IQ3_XXS_ZERO as usize,
        BlockType::Q8_0 | BlockType::IQ4_NL | BlockType::IQ4_XS => 255,
    }
}

/// The codes of 256 columns, 32 to a vector.
type Vectors = [__m256i; VECTORS];

impl StepCodes for Ymm {
    type Codes = Vectors;

    by_instructions! {
        fn decoded(block_type: BlockType, step: &[u8]) -> Vectors { decoded(block_type, step) }
        fn nibbles_of_32<const BYTES: usize, const AT: usize>(step: &[u8]) -> Vectors {
            nibbles_of_32::<BYTES, AT>(step)
        }
        fn add_fifth_bits<const BYTES: usize, const AT: usize>(step: &[u8], codes: Vectors) -> Vectors {
            add_fifth_bits::<BYTES, AT>(step, codes)
        }
        fn signed_bytes_of_32(step: &[u8]) -> Vectors { signed_bytes_of_32(step) }
        fn nibble_planes(packed: &[u8]) -> Vectors { nibble_planes(packed) }
        fn add_bit_planes<const VALUE: i8>(bits: &[u8], codes: Vectors) -> Vectors {
            add_bit_planes::<VALUE>(load_32(bits), codes)
        }
        fn two_bit_planes(packed: &[u8]) -> Vectors { two_bit_planes(packed) }
        fn look_up(table: &[u8; 16], codes: Vectors) -> Vectors { look_up(table, codes) }
        fn q6_k(step: &[u8]) -> Vectors { q6_k(step) }
        fn iq2_xxs(block: &[u8; 66]) -> Vectors { iq2_xxs(block) }
        fn iq2_xs(block: &[u8; 74]) -> Vectors { iq2_xs(block) }
        fn iq2_s(block: &[u8; 82]) -> Vectors { iq2_s(block) }
        fn iq3_xxs(block: &[u8; 98]) -> Vectors { iq3_xxs(block) }
        fn iq3_s(block: &[u8; 110]) -> Vectors { iq3_s(block) }
        fn iq1_s(block: &[u8; 50]) -> Vectors { iq1_s(block) }
        fn iq1_m(block: &[u8; 56]) -> Vectors { iq1_m(block) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn decoded(block_type: BlockType, step: &[u8]) -> Vectors {
    let mut codes = [0; 256];
    block_type.decode_codes(step, &mut codes);
    let mut out = [_mm256_setzero_si256(); VECTORS];
    for (out, codes) in out.iter_mut().zip(codes.as_chunks::<32>().0) {
        *out = load_32(codes);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
fn nibbles_of_32<const BYTES: usize, const AT: usize>(step: &[u8]) -> Vectors {
    let shifts = _mm256_setr_epi64x(0, 0, 4, 4);
    let mask = _mm256_set1_epi8(15);
    let mut out = [_mm256_setzero_si256(); VECTORS];
    for (i, out) in out.iter_mut().enumerate() {
        let both = _mm256_broadcastsi128_si256(load_16(&step[i * BYTES + AT..]));
        *out = _mm256_and_si256(_mm256_srlv_epi64(both, shifts), mask);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
fn add_fifth_bits<const BYTES: usize, const AT: usize>(step: &[u8], mut codes: Vectors) -> Vectors {
    // Byte `i` of the bits in every column of eight, and its bit there.
    let spread =
        _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let places = _mm256_set1_epi64x(0x8040_2010_0804_0201u64.cast_signed());
    for (i, codes) in codes.iter_mut().enumerate() {
        let at = i * BYTES + AT;
        let bits = i32::from_le_bytes([step[at], step[at + 1], step[at + 2], step[at + 3]]);
        let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread);
        let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, places), places);
        *codes = _mm256_or_si256(*codes, _mm256_and_si256(is_set, _mm256_set1_epi8(16)));
    }
    codes
}

#[inline]
#[target_feature(enable = "avx2")]
fn signed_bytes_of_32(step: &[u8]) -> Vectors {
    let mut out = [_mm256_setzero_si256(); VECTORS];
    for (i, out) in out.iter_mut().enumerate() {
        *out = _mm256_xor_si256(load_32(&step[34 * i + 2..]), _mm256_set1_epi8(-128));
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
fn nibble_planes(packed: &[u8]) -> Vectors {
    let mask = _mm256_set1_epi8(15);
    let mut out = [_mm256_setzero_si256(); VECTORS];
    for (i, [low, high]) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let both = load_32(&packed[32 * i..]);
        *low = _mm256_and_si256(both, mask);
        *high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
fn add_bit_planes<const VALUE: i8>(bits: __m256i, mut codes: Vectors) -> Vectors {
    let value = _mm256_set1_epi8(VALUE);
    for (i, codes) in codes.iter_mut().enumerate() {
        let place = _mm256_set1_epi8((1u8 << i).cast_signed());
        let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, place), place);
        *codes = _mm256_or_si256(*codes, _mm256_and_si256(is_set, value));
    }
    codes
}

#[inline]
#[target_feature(enable = "avx2")]
fn two_bit_planes(packed: &[u8]) -> Vectors {
    let mask = _mm256_set1_epi8(3);
    let mut out = [_mm256_setzero_si256(); VECTORS];
    for (i, planes) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let all = load_32(&packed[32 * i..]);
        *planes = [
            _mm256_and_si256(all, mask),
            _mm256_and_si256(_mm256_srli_epi16::<2>(all), mask),
            _mm256_and_si256(_mm256_srli_epi16::<4>(all), mask),
            _mm256_and_si256(_mm256_srli_epi16::<6>(all), mask),
        ];
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
fn q6_k(block: &[u8]) -> Vectors {
    let mask = _mm256_set1_epi8(15);
    let mut out = two_bit_planes(&block[128..]);
    for half in 0..2 {
        for part in 0..2 {
            let packed = load_32(&block[64 * half + 32 * part..]);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask);
            for (at, low) in [(0, _mm256_and_si256(packed, mask)), (2, high)] {
                let out = &mut out[4 * half + part + at];
                // Codes of two bits stay in their byte.
                *out = _mm256_or_si256(low, _mm256_slli_epi16::<4>(*out));
            }
        }
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
fn look_up(table: &[u8; 16], mut codes: Vectors) -> Vectors {
    let table = _mm256_broadcastsi128_si256(load_16(table));
    // Not `map`, whose closure is not always inlined.
    for codes in &mut codes {
        *codes = _mm256_shuffle_epi8(table, *codes);
    }
    codes
}
