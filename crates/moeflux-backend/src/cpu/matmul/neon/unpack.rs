//! Packed integers as bytes, 16 columns to a vector.

use std::arch::aarch64::*;

use super::vector::{load_8, load_16, load_bytes, load_words, store_bytes, zip_high, zip_low};
use crate::cpu::matmul::integers::{E2M1, E2M1_INTEGERS, width};

/// The integers of a group; smaller groups leave vectors unused.
pub(super) type Group = [uint8x16_t; 8];

/// The integers of the stream `packed`, a multiple of 32 of them.
#[target_feature(enable = "neon")]
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
#[target_feature(enable = "neon")]
fn unpack<const CODES: usize>(packed: &[u8], out: &mut [u8]) {
    let (blocks, rest) = out.as_chunks_mut::<32>();
    assert!(
        rest.is_empty() && packed.len() == blocks.len() * 4 * width(CODES),
        "32 columns at a time"
    );
    for (block, packed) in blocks.iter_mut().zip(packed.chunks_exact(4 * width(CODES))) {
        let unpacked = unpack_32::<CODES>(packed);
        for (out, it) in block.as_chunks_mut::<16>().0.iter_mut().zip(unpacked) {
            store_bytes(out, it);
        }
    }
}

/// 32 columns, in natural order.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn unpack_32<const CODES: usize>(packed: &[u8]) -> [uint8x16_t; 2] {
    match CODES {
        2 => {
            let bytes = load_8(packed);
            let pairs = vcombine_u8(bytes, vshr_n_u8::<2>(bytes));
            let pairs = vzip1q_u8(pairs, vextq_u8::<8>(pairs, pairs));
            let (even, odd) = (pairs, vshrq_n_u8::<4>(pairs));
            let (even, odd) = (vreinterpretq_u16_u8(even), vreinterpretq_u16_u8(odd));
            let mask = vdupq_n_u8(3);
            [
                vandq_u8(vreinterpretq_u8_u16(vzip1q_u16(even, odd)), mask),
                vandq_u8(vreinterpretq_u8_u16(vzip2q_u16(even, odd)), mask),
            ]
        }
        4 | E2M1 => {
            let [even, odd] = split_4::<CODES>(load_16(packed));
            [vzip1q_u8(even, odd), vzip2q_u8(even, odd)]
        }
        8 => [load_16(packed), load_16(&packed[16..])],
        _ => unpack_odd::<CODES>(packed),
    }
}

/// 32 columns of 3, 5 or 6 bits each. Every column gets
/// the two bytes that may hold it, and is shifted down.
#[inline]
#[target_feature(enable = "neon")]
fn unpack_odd<const CODES: usize>(packed: &[u8]) -> [uint8x16_t; 2] {
    let (first, second) = if CODES == 3 {
        let rest = u32::from_le_bytes([packed[8], packed[9], packed[10], packed[11]]);
        let all = vcombine_u8(load_8(packed), vreinterpret_u8_u32(vdup_n_u32(rest)));
        (all, all)
    } else {
        (load_16(packed), load_16(&packed[second_half(width(CODES))..]))
    };
    let columns = |bytes, places: &[u8; 16], shifts: &[i16; 8]| {
        let pair = vreinterpretq_u16_u8(vqtbl1q_u8(bytes, load_bytes(places)));
        vreinterpretq_u8_u16(vshlq_u16(pair, load_words(shifts)))
    };
    let shifts = const { &[shifts(width(CODES), 0), shifts(width(CODES), 8)] };
    let places = const {
        let from = second_half(width(CODES));
        &[
            places(width(CODES), 0, 0),
            places(width(CODES), 8, 0),
            places(width(CODES), 16, from),
            places(width(CODES), 24, from),
        ]
    };
    let mask = vdupq_n_u8(((1u32 << width(CODES)) - 1) as u8);
    let half = |bytes, places: &[[u8; 16]]| {
        let low = columns(bytes, &places[0], &shifts[0]);
        let high = columns(bytes, &places[1], &shifts[1]);
        vandq_u8(vuzp1q_u8(low, high), mask)
    };
    [half(first, &places[..2]), half(second, &places[2..])]
}

/// Where the bytes are loaded that hold columns 16 to 31: so that they end
/// with the last, or with all where they are fewer than a vector.
const fn second_half(bits: usize) -> usize {
    (4 * bits).saturating_sub(16)
}

/// The bytes of columns `col .. col + 8`, counted from byte `from`. What is
/// beyond the vector is zero.
const fn places(bits: usize, col: usize, from: usize) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = ((col + i / 2) * bits / 8 - from + i % 2) as u8;
        i += 1;
    }
    out
}

/// What shifts columns `col .. col + 8` to bit 0.
const fn shifts(bits: usize, col: usize) -> [i16; 8] {
    let mut out = [0; 8];
    let mut i = 0;
    while i < 8 {
        out[i] = -(((col + i) * bits % 8) as i16);
        i += 1;
    }
    out
}

/// The integers of a group in the order of [`in_group_order`].
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn unpack_group<const CODES: usize, const GROUP: usize>(packed: &[u8]) -> Group {
    let mut out = [vdupq_n_u8(0); 8];
    match (CODES, GROUP) {
        (8, 16) => out[0] = load_16(packed),
        (2, 32) => {
            let bytes = load_8(packed);
            let bytes = vcombine_u8(bytes, vshr_n_u8::<4>(bytes));
            let mask = vdupq_n_u8(3);
            out[0] = vandq_u8(bytes, mask);
            out[1] = vandq_u8(vshrq_n_u8::<2>(bytes), mask);
        }
        (2, _) => {
            for i in 0..GROUP / 64 {
                let it = split_2(load_16(&packed[16 * i..]));
                (out[4 * i], out[4 * i + 1]) = (it[0], it[1]);
                (out[4 * i + 2], out[4 * i + 3]) = (it[2], it[3]);
            }
        }
        (4 | E2M1, _) => {
            for i in 0..GROUP / 32 {
                let it = split_4::<CODES>(load_16(&packed[16 * i..]));
                (out[2 * i], out[2 * i + 1]) = (it[0], it[1]);
            }
        }
        _ => {
            for i in 0..GROUP / 32 {
                let it = unpack_32::<CODES>(&packed[4 * width(CODES) * i..][..4 * width(CODES)]);
                (out[2 * i], out[2 * i + 1]) = (it[0], it[1]);
            }
        }
    }
    out
}

/// A group of two rows in the order of [`in_group_order`]: of each vector of
/// the two the lower halves, then the upper halves.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn unpack_pair<const CODES: usize, const GROUP: usize>(
    a: &[u8],
    b: &[u8],
) -> [[uint8x16_t; 2]; 8] {
    let mut out = [[vdupq_n_u8(0); 2]; 8];
    match (CODES, GROUP) {
        (2, 32) => {
            let it = split_2(vcombine_u8(load_8(a), load_8(b)));
            (out[0], out[1]) = ([it[0], it[2]], [it[1], it[3]]);
        }
        (2, _) => {
            for i in 0..GROUP / 64 {
                let (a, b) = (load_16(&a[16 * i..]), load_16(&b[16 * i..]));
                let (low, high) = (split_2(zip_low(a, b)), split_2(zip_high(a, b)));
                for k in 0..4 {
                    out[4 * i + k] = [low[k], high[k]];
                }
            }
        }
        (4 | E2M1, _) => {
            for i in 0..GROUP / 32 {
                let (a, b) = (load_16(&a[16 * i..]), load_16(&b[16 * i..]));
                let (low, high) =
                    (split_4::<CODES>(zip_low(a, b)), split_4::<CODES>(zip_high(a, b)));
                (out[2 * i], out[2 * i + 1]) = ([low[0], high[0]], [low[1], high[1]]);
            }
        }
        _ => {
            let (a, b) = (unpack_group::<CODES, GROUP>(a), unpack_group::<CODES, GROUP>(b));
            for k in 0..GROUP / 16 {
                out[k] = [zip_low(a[k], b[k]), zip_high(a[k], b[k])];
            }
        }
    }
    out
}

/// The four integers of every byte.
#[inline]
#[target_feature(enable = "neon")]
fn split_2(bytes: uint8x16_t) -> [uint8x16_t; 4] {
    let mask = vdupq_n_u8(3);
    [
        vandq_u8(bytes, mask),
        vandq_u8(vshrq_n_u8::<2>(bytes), mask),
        vandq_u8(vshrq_n_u8::<4>(bytes), mask),
        vshrq_n_u8::<6>(bytes),
    ]
}

/// The two integers of every byte.
#[inline]
#[target_feature(enable = "neon")]
fn split_4<const CODES: usize>(bytes: uint8x16_t) -> [uint8x16_t; 2] {
    let two = [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)];
    if CODES == E2M1 { two.map(|codes| vqtbl1q_u8(load_bytes(&E2M1_INTEGERS), codes)) } else { two }
}

/// A group of activations in the order in which [`unpack_group`] has the
/// weights: where a byte holds several columns, vectors take every second or
/// every fourth of them.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn in_group_order<const CODES: usize, const GROUP: usize>(
    mut x: [int8x16_t; 8],
) -> [int8x16_t; 8] {
    if matches!(width(CODES), 2 | 4) {
        x = every_second::<GROUP>(x);
    }
    match (CODES, GROUP) {
        (2, 32) => {
            // Columns 0, 4, … and 2, 6, … make one vector.
            for it in x.iter_mut().take(2) {
                *it = vuzp1q_s8(*it, vextq_s8::<1>(*it, *it));
            }
        }
        (2, _) => {
            for i in (0..GROUP / 16).step_by(4) {
                let (even, odd) = ((x[i], x[i + 2]), (x[i + 1], x[i + 3]));
                (x[i], x[i + 1]) = (vuzp1q_s8(even.0, even.1), vuzp1q_s8(odd.0, odd.1));
                (x[i + 2], x[i + 3]) = (vuzp2q_s8(even.0, even.1), vuzp2q_s8(odd.0, odd.1));
            }
        }
        _ => {}
    }
    x
}

/// Of each 32 columns those at even and those at odd places.
#[inline]
#[target_feature(enable = "neon")]
fn every_second<const GROUP: usize>(mut x: [int8x16_t; 8]) -> [int8x16_t; 8] {
    for i in (0..GROUP / 16).step_by(2) {
        (x[i], x[i + 1]) = (vuzp1q_s8(x[i], x[i + 1]), vuzp2q_s8(x[i], x[i + 1]));
    }
    x
}
