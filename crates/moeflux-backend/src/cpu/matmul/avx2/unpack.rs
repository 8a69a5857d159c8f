//! Packed integers as bytes, 32 columns to a vector, in natural order.

use std::arch::x86_64::*;

use super::vector::{load_16, load_32};
use crate::cpu::matmul::integers::{E2M1, E2M1_INTEGERS, width};

/// The integers of the stream `packed`, a multiple of 32 of them.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn unpack_row(codes: usize, packed: &[u8], out: &mut [u8]) {
    match codes {
        2 => unpack::<2>(packed, out),
        3 => unpack::<3>(packed, out),
        4 => unpack::<4>(packed, out),
        5 => unpack::<5>(packed, out),
        6 => unpack::<6>(packed, out),
        E2M1 => unpack::<E2M1>(packed, out),
        _ => out.copy_from_slice(packed),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn unpack<const CODES: usize>(packed: &[u8], out: &mut [u8]) {
    let (blocks, rest) = out.as_chunks_mut::<32>();
    assert!(
        rest.is_empty() && packed.len() == blocks.len() * 4 * width(CODES),
        "32 columns at a time"
    );
    for (i, block) in blocks.iter_mut().enumerate() {
        let packed = &packed[i * 4 * width(CODES)..];
        let unpacked = match CODES {
            2 => unpack_2(packed),
            4 => unpack_4(packed),
            E2M1 => {
                let table = _mm256_broadcastsi128_si256(load_16(&E2M1_INTEGERS));
                _mm256_shuffle_epi8(table, unpack_4(packed))
            }
            _ if packed.len() >= 2 * CODES + 16 => unpack_odd::<CODES>(packed),
            _ => {
                let mut padded = [0u8; 32];
                padded[..4 * CODES].copy_from_slice(&packed[..4 * CODES]);
                unpack_odd::<CODES>(&padded)
            }
        };
        // SAFETY: the block is 32 writable bytes, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(block.as_mut_ptr().cast(), unpacked) };
    }
}

/// 32 columns of eight bytes: a byte becomes four.
#[inline]
#[target_feature(enable = "avx2")]
fn unpack_2(packed: &[u8]) -> __m256i {
    let bytes = i64::from_le_bytes(packed[..8].try_into().expect("eight bytes"));
    let w = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes));
    let w = _mm256_or_si256(w, _mm256_slli_epi32::<6>(w));
    let w = _mm256_or_si256(w, _mm256_slli_epi32::<12>(w));
    _mm256_and_si256(w, _mm256_set1_epi8(3))
}

/// 32 columns of sixteen bytes: a byte becomes two.
#[inline]
#[target_feature(enable = "avx2")]
fn unpack_4(packed: &[u8]) -> __m256i {
    let w = _mm256_cvtepu8_epi16(load_16(packed));
    let w = _mm256_or_si256(w, _mm256_slli_epi16::<4>(w));
    _mm256_and_si256(w, _mm256_set1_epi8(15))
}

/// 32 columns of at most 6 bits each. Every column gets the
/// two bytes that may hold it; a multiplication shifts it to bit 8.
#[inline]
#[target_feature(enable = "avx2")]
fn unpack_odd<const CODES: usize>(packed: &[u8]) -> __m256i {
    let columns = _mm256_set_m128i(load_16(&packed[2 * width(CODES)..]), load_16(packed));
    let factors = const { &shift_factors(width(CODES), 8) };
    let factors = load_32(bytemuck::cast_slice(factors));
    let first = _mm256_shuffle_epi8(columns, load_32(const { &byte_places(width(CODES), 0) }));
    let second = _mm256_shuffle_epi8(columns, load_32(const { &byte_places(width(CODES), 8) }));
    let first = _mm256_srli_epi16::<8>(_mm256_mullo_epi16(first, factors));
    let second = _mm256_srli_epi16::<8>(_mm256_mullo_epi16(second, factors));
    let mask = _mm256_set1_epi8(((1u32 << width(CODES)) - 1) as i8);
    _mm256_and_si256(_mm256_packus_epi16(first, second), mask)
}

/// In both halves: the bytes of columns `from .. from + 8` of sixteen.
pub(super) const fn byte_places(bits: usize, from: usize) -> [u8; 32] {
    let mut out = [0; 32];
    let mut i = 0;
    while i < 32 {
        let col = from + i % 16 / 2;
        out[i] = (col * bits / 8 + i % 2) as u8;
        i += 1;
    }
    out
}

/// Column `i` begins at bit `i * bits`: what shifts that to bit `to`.
pub(super) const fn shift_factors(bits: usize, to: usize) -> [u16; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = 1 << (to - i * bits % 8);
        i += 1;
    }
    out
}
