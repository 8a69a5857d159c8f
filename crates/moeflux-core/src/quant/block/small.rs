//! The types whose blocks have one level of scales, and the ternary ones.

use super::parts::{Codes, Params, half};
use super::planes::{IQ4_LEVELS, IQ4_ZERO, nibbles, two_bit_planes};

/// What is added to doubled values of E2M1.
const E2M1_ZERO: u8 = 12;

#[inline(always)]
fn nibbles_of_32(packed: &[u8], codes: &mut [u8; 32]) {
    let packed: &[u8; 16] = packed.first_chunk().expect("16 bytes");
    let [low, high] = codes.as_chunks_mut::<16>().0 else { unreachable!("twice 16 columns") };
    nibbles(packed, low, high);
}

/// Adds sixteen where the bit of a column is set.
#[inline(always)]
fn add_fifth_bits(bits: &[u8], codes: &mut [u8; 32]) {
    let bits = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    for (col, code) in codes.iter_mut().enumerate() {
        *code |= ((bits >> col & 1) << 4) as u8;
    }
}

#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18], codes: &mut Codes<32>) {
    nibbles_of_32(&block[2..], codes);
}

#[inline(always)]
pub(super) fn q4_0_params(block: &[u8; 18], params: &mut Params<'_, 1>) {
    params.centred(0, half(block), 8);
}

#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20], codes: &mut Codes<32>) {
    nibbles_of_32(&block[4..], codes);
}

#[inline(always)]
pub(super) fn q4_1_params(block: &[u8; 20], params: &mut Params<'_, 1>) {
    params.set(0, half(block), half(&block[2..]));
}

#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22], codes: &mut Codes<32>) {
    nibbles_of_32(&block[6..], codes);
    add_fifth_bits(&block[2..], codes);
}

#[inline(always)]
pub(super) fn q5_0_params(block: &[u8; 22], params: &mut Params<'_, 1>) {
    params.centred(0, half(block), 16);
}

#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24], codes: &mut Codes<32>) {
    nibbles_of_32(&block[8..], codes);
    add_fifth_bits(&block[4..], codes);
}

#[inline(always)]
pub(super) fn q5_1_params(block: &[u8; 24], params: &mut Params<'_, 1>) {
    params.set(0, half(block), half(&block[2..]));
}

#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34], codes: &mut Codes<32>) {
    for (code, byte) in codes.iter_mut().zip(&block[2..]) {
        *code = byte ^ 0x80;
    }
}

#[inline(always)]
pub(super) fn q8_0_params(block: &[u8; 34], params: &mut Params<'_, 1>) {
    params.centred(0, half(block), 128);
}

#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18], codes: &mut Codes<32>) {
    nibbles_of_32(&block[2..], codes);
    codes.iter_mut().for_each(|code| *code = IQ4_LEVELS[usize::from(*code & 15)]);
}

#[inline(always)]
pub(super) fn iq4_nl_params(block: &[u8; 18], params: &mut Params<'_, 1>) {
    params.centred(0, half(block), IQ4_ZERO);
}

/// Twice the value of a code of E2M1 and [`E2M1_ZERO`] more, in operations that compilers
/// vectorise.
#[inline(always)]
fn e2m1(code: u8) -> u8 {
    let magnitude = code & 7;
    let more = |from: u8| u8::from(magnitude >= from);
    // 0 1 2 3 4 6 8 12
    let doubled = magnitude + more(5) + more(6) + 3 * more(7);
    if code & 8 == 0 { E2M1_ZERO + doubled } else { E2M1_ZERO - doubled }
}

/// Half of the power of two of an exponent byte. 255 is a power like the others.
#[inline(always)]
fn half_power(exponent: u8) -> f32 {
    match exponent {
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

#[inline(always)]
pub(super) fn mxfp4(block: &[u8; 17], codes: &mut Codes<32>) {
    nibbles_of_32(&block[1..], codes);
    codes.iter_mut().for_each(|code| *code = e2m1(*code));
}

#[inline(always)]
pub(super) fn mxfp4_params(block: &[u8; 17], params: &mut Params<'_, 1>) {
    params.centred(0, half_power(block[0]), E2M1_ZERO);
}

/// Half of an unsigned E4M3 with bias 7; its largest code reads as 0.
#[inline(always)]
fn half_ue4m3(byte: u8) -> f32 {
    if byte == 0x7f {
        return 0.0;
    }
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    if exponent == 0 {
        return mantissa * f32::from_bits((127 - 10) << 23);
    }
    let power = f32::from_bits(((127 - 8 + exponent) as u32) << 23);
    (1.0 + mantissa * 0.125) * power
}

#[inline(always)]
pub(super) fn nvfp4(block: &[u8; 36], codes: &mut Codes<64>) {
    let (codes, packed) = (codes.as_chunks_mut::<16>().0, block[4..].as_chunks::<8>().0);
    for (codes, packed) in codes.iter_mut().zip(packed) {
        let [low, high] = codes.as_chunks_mut::<8>().0 else { unreachable!("twice 8 columns") };
        nibbles(packed, low, high);
        codes.iter_mut().for_each(|code| *code = e2m1(*code));
    }
}

#[inline(always)]
pub(super) fn nvfp4_params(block: &[u8; 36], params: &mut Params<'_, 4>) {
    for (g, scale) in block[..4].iter().enumerate() {
        params.centred(g, half_ue4m3(*scale), E2M1_ZERO);
    }
}

/// A bit a column: one or minus one.
#[inline(always)]
pub(super) fn q1_0(block: &[u8; 18], codes: &mut Codes<128>) {
    for (codes, byte) in codes.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..]) {
        for (bit, code) in codes.iter_mut().enumerate() {
            *code = (byte >> bit & 1) * 2;
        }
    }
}

#[inline(always)]
pub(super) fn q1_0_params(block: &[u8; 18], params: &mut Params<'_, 4>) {
    params.all_centred(half(block), 1);
}

/// Two bits a column, four columns a byte.
#[inline(always)]
pub(super) fn q2_0(block: &[u8; 18], codes: &mut Codes<64>) {
    for (codes, byte) in codes.as_chunks_mut::<4>().0.iter_mut().zip(&block[2..]) {
        *codes = [byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6];
    }
}

#[inline(always)]
pub(super) fn q2_0_params(block: &[u8; 18], params: &mut Params<'_, 2>) {
    params.all_centred(half(block), 1);
}

#[inline(always)]
pub(super) fn tq2_0(block: &[u8; 66], codes: &mut Codes<256>) {
    two_bit_planes(block.first_chunk().expect("64 bytes"), codes);
}

#[inline(always)]
pub(super) fn tq2_0_params(block: &[u8; 66], params: &mut Params<'_, 8>) {
    params.all_centred(half(&block[64..]), 1);
}

/// Five digits to the base of three a byte, as a fraction of 256.
#[inline(always)]
pub(super) fn tq1_0(block: &[u8; 54], codes: &mut Codes<256>) {
    let (fives, rest) = codes.split_at_mut(240);
    let (wide, narrow) = fives.split_at_mut(160);
    digits(&block[..32], wide);
    digits(&block[32..48], narrow);
    digits(&block[48..52], rest);
}

#[inline(always)]
pub(super) fn tq1_0_params(block: &[u8; 54], params: &mut Params<'_, 8>) {
    params.all_centred(half(&block[52..]), 1);
}

/// The first digits of all bytes, then the second ones, as many as `codes` has room for.
#[inline(always)]
fn digits(packed: &[u8], codes: &mut [u8]) {
    let mut power = 1u8;
    for codes in codes.chunks_exact_mut(packed.len()) {
        for (code, byte) in codes.iter_mut().zip(packed) {
            *code = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
        }
        power = power.wrapping_mul(3);
    }
}
