//! The types with 256 columns a block and two levels of scales.

use super::parts::{Codes, Params, half};
use super::planes::{IQ4_LEVELS, IQ4_ZERO, nibbles, two_bit_planes};

/// Adds one bit a column, of the weight `1 << to`: bit `i` of 32 bytes belongs to the `i`-th 32
/// columns.
#[inline(always)]
fn add_bit_planes(packed: &[u8; 32], to: u32, codes: &mut [u8; 256]) {
    for (i, plane) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (code, byte) in plane.iter_mut().zip(packed) {
            *code |= (byte >> i & 1) << to;
        }
    }
}

/// Per `N` bytes their lower halves, then their upper halves.
#[inline(always)]
fn nibble_planes<const N: usize>(packed: &[u8; 128], codes: &mut [u8; 256]) {
    let pairs = codes.as_chunks_mut::<N>().0.as_chunks_mut::<2>().0;
    for ([low, high], packed) in pairs.iter_mut().zip(packed.as_chunks::<N>().0) {
        nibbles(packed, low, high);
    }
}

fn chunk<const N: usize>(block: &[u8]) -> &[u8; N] {
    block.first_chunk().expect("a part of a block")
}

#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], codes: &mut Codes<256>) {
    two_bit_planes(chunk(&block[16..]), codes);
}

#[inline(always)]
pub(super) fn q2_k_params(block: &[u8; 84], params: &mut Params<'_, 16>) {
    let (d, min) = (half(&block[80..]), half(&block[82..]));
    for (g, both) in block[..16].iter().enumerate() {
        params.set(g, d * f32::from(both & 15), -(min * f32::from(both >> 4)));
    }
}

#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], codes: &mut Codes<256>) {
    two_bit_planes(chunk(&block[32..]), codes);
    add_bit_planes(chunk(block), 2, codes);
}

#[inline(always)]
pub(super) fn q3_k_params(block: &[u8; 110], params: &mut Params<'_, 16>) {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    const TWO: u32 = 0x0303_0303;
    let packed = u64::from_le_bytes(*chunk(&block[96..]));
    let upper = u32::from_le_bytes(*chunk(&block[104..]));
    let two =
        |shift: u32| u64::from(upper >> shift & TWO) | u64::from(upper >> (shift + 2) & TWO) << 32;
    let halves = [packed & LOW | two(0) << 4, packed >> 4 & LOW | two(4) << 4];
    let d = half(&block[108..]);
    for (g, scale) in halves.map(u64::to_le_bytes).as_flattened().iter().enumerate() {
        params.centred(g, d * (f32::from(*scale) - 32.0), 4);
    }
}

/// Eight scales and eight minima of six bits each, in twelve bytes: four at a time, in a word.
#[inline(always)]
fn scales_and_mins(block: &[u8; 12], d: f32, min: f32, params: &mut Params<'_, 8>) {
    const SIX: u32 = 0x3f3f_3f3f;
    const FOUR: u32 = 0x0f0f_0f0f;
    const TWO: u32 = 0x0303_0303;
    let [scales, mins, lower] = block.as_chunks::<4>().0 else { unreachable!("three words") };
    let [scales, mins, lower] = [scales, mins, lower].map(|word| u32::from_le_bytes(*word));
    let eight = |first: u32, second: u32| u64::from(first) | u64::from(second) << 32;
    let scales = eight(scales & SIX, lower & FOUR | (scales >> 6 & TWO) << 4).to_le_bytes();
    let mins = eight(mins & SIX, lower >> 4 & FOUR | (mins >> 6 & TWO) << 4).to_le_bytes();
    for g in 0..8 {
        params.set(g, d * f32::from(scales[g]), -(min * f32::from(mins[g])));
    }
}

#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], codes: &mut Codes<256>) {
    nibble_planes::<32>(chunk(&block[16..]), codes);
}

#[inline(always)]
pub(super) fn q4_k_params(block: &[u8; 144], params: &mut Params<'_, 8>) {
    scales_and_mins(chunk(&block[4..]), half(block), half(&block[2..]), params);
}

#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], codes: &mut Codes<256>) {
    nibble_planes::<32>(chunk(&block[48..]), codes);
    add_bit_planes(chunk(&block[16..]), 4, codes);
}

#[inline(always)]
pub(super) fn q5_k_params(block: &[u8; 176], params: &mut Params<'_, 8>) {
    scales_and_mins(chunk(&block[4..]), half(block), half(&block[2..]), params);
}

#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], codes: &mut Codes<256>) {
    nibble_planes::<64>(chunk(block), codes);
    let mut upper = [0; 256];
    two_bit_planes(chunk(&block[128..]), &mut upper);
    for (code, upper) in codes.iter_mut().zip(&upper) {
        *code |= upper << 4;
    }
}

#[inline(always)]
pub(super) fn q6_k_params(block: &[u8; 210], params: &mut Params<'_, 16>) {
    let d = half(&block[208..]);
    for (g, scale) in block[192..208].iter().enumerate() {
        params.centred(g, d * f32::from(scale.cast_signed()), 32);
    }
}

#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], codes: &mut Codes<256>) {
    nibble_planes::<16>(chunk(&block[8..]), codes);
    codes.iter_mut().for_each(|code| *code = IQ4_LEVELS[usize::from(*code & 15)]);
}

#[inline(always)]
pub(super) fn iq4_xs_params(block: &[u8; 136], params: &mut Params<'_, 8>) {
    let (d, upper) = (half(block), u16::from_le_bytes([block[2], block[3]]));
    for g in 0..8 {
        let low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
        let high = (upper >> (2 * g) & 3) as u8;
        params.centred(g, d * (f32::from(low | high << 4) - 32.0), IQ4_ZERO);
    }
}
