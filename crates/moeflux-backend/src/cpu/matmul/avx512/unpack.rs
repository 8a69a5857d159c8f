//! Packed integers as bytes, 64 columns to a vector, in natural order.
//!
//! Eight columns are as many bytes as one has bits. A byte permutation gives each of the eight
//! 64-bit lanes its bytes, a multi-shift takes eight bits from each column's
//! place, and a mask keeps those that belong to the column.

use std::arch::x86_64::*;

use super::vector::{load_16, load_32, load_64, load_first, store_64};
use crate::cpu::matmul::integers::{E2M1, E2M1_INTEGERS, width};

/// Columns of one vector.
pub(super) const COLS: usize = 64;

/// The integers of 64 columns, from exactly eight times as many bytes as one has bits.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(in crate::cpu::matmul) fn unpack<const CODES: usize>(packed: &[u8]) -> __m512i {
    let spread = match CODES {
        8 => return load_64(packed),
        4 | E2M1 => _mm512_cvtepu32_epi64(load_32(packed)),
        2 => _mm512_cvtepu16_epi64(load_16(packed)),
        _ => {
            let bytes = load_first::<CODES>(packed);
            _mm512_permutexvar_epi8(load_64(const { &byte_places(width(CODES)) }), bytes)
        }
    };
    let places = load_64(const { &bit_places(width(CODES)) });
    let shifted = _mm512_multishift_epi64_epi8(places, spread);
    let mask = _mm512_set1_epi8(((1u32 << width(CODES)) - 1) as i8);
    look_up::<CODES>(_mm512_and_si512(shifted, mask))
}

/// The integers that unpacked codes stand for.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
pub(super) fn look_up<const CODES: usize>(codes: __m512i) -> __m512i {
    if CODES != E2M1 {
        return codes;
    }
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_16(&E2M1_INTEGERS)), codes)
}

/// The integers of fewer than 64 columns; the rest is anything.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(in crate::cpu::matmul) fn unpack_part<const CODES: usize>(packed: &[u8]) -> __m512i {
    let mut padded = [0u8; 64];
    padded[..packed.len()].copy_from_slice(packed);
    unpack::<CODES>(&padded[..8 * width(CODES)])
}

/// The integers of the stream `packed`, `bits` each.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(in super::super) fn unpack_row(bits: usize, packed: &[u8], out: &mut [u8]) {
    match bits {
        2 => unpack_bytes::<2>(packed, out),
        3 => unpack_bytes::<3>(packed, out),
        4 => unpack_bytes::<4>(packed, out),
        5 => unpack_bytes::<5>(packed, out),
        6 => unpack_bytes::<6>(packed, out),
        _ => unpack_bytes::<8>(packed, out),
    }
}

#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn unpack_bytes<const BITS: usize>(packed: &[u8], out: &mut [u8]) {
    let (blocks, rest) = out.as_chunks_mut::<COLS>();
    let (packed, packed_rest) = packed.split_at(blocks.len() * 8 * BITS);
    for (block, packed) in blocks.iter_mut().zip(packed.chunks_exact(8 * BITS)) {
        store_64(block, unpack::<BITS>(packed));
    }
    if !rest.is_empty() {
        let mut block = [0u8; COLS];
        store_64(&mut block, unpack_part::<BITS>(packed_rest));
        rest.copy_from_slice(&block[..rest.len()]);
    }
}

/// Byte `j` of 64-bit lane `k` comes from byte `bits * k + j`.
const fn byte_places(bits: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut i = 0;
    while i < 64 {
        // Lanes end with bytes that no column uses; any place within the vector does.
        out[i] = ((bits * (i / 8) + i % 8) % 64) as u8;
        i += 1;
    }
    out
}

/// Column `j` of a 64-bit lane begins at bit `bits * j`.
const fn bit_places(bits: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut i = 0;
    while i < 64 {
        out[i] = (bits * (i % 8)) as u8;
        i += 1;
    }
    out
}
