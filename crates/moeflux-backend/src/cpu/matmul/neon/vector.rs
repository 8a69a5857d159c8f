//! Vectors from memory and back, without alignment.

use std::arch::aarch64::*;

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_16(bytes: &[u8]) -> uint8x16_t {
    assert!(bytes.len() >= 16);
    // SAFETY: 16 bytes are readable, and the load needs no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_8(bytes: &[u8]) -> uint8x8_t {
    assert!(bytes.len() >= 8);
    // SAFETY: 8 bytes are readable, and the load needs no alignment.
    unsafe { vld1_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_bytes(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: 16 bytes are readable, and the load needs no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_bytes(out: &mut [u8; 16], value: uint8x16_t) {
    // SAFETY: 16 bytes are writable, and the store needs no alignment.
    unsafe { vst1q_u8(out.as_mut_ptr(), value) };
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_signed(bytes: &[i8; 16]) -> int8x16_t {
    // SAFETY: 16 bytes are readable, and the load needs no alignment.
    unsafe { vld1q_s8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_signed(out: &mut [i8; 16], value: int8x16_t) {
    // SAFETY: 16 bytes are writable, and the store needs no alignment.
    unsafe { vst1q_s8(out.as_mut_ptr(), value) };
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_words(words: &[i16; 8]) -> int16x8_t {
    // SAFETY: eight elements are readable, and the load needs no alignment.
    unsafe { vld1q_s16(words.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_floats(floats: &[f32; 4]) -> float32x4_t {
    // SAFETY: four elements are readable, and the load needs no alignment.
    unsafe { vld1q_f32(floats.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_floats(out: &mut [f32; 4], value: float32x4_t) {
    // SAFETY: four elements are writable, and the store needs no alignment.
    unsafe { vst1q_f32(out.as_mut_ptr(), value) };
}

/// The lower halves of two vectors.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn zip_low(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)))
}

/// The upper halves of two vectors.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn zip_high(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)))
}

/// Four bytes of each row side by side: vector `k` of the result holds bytes
/// `4 k .. 4 k + 4` of every row.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn transpose_quads(rows: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
    let [a, b, c, d] = rows.map(|row| vreinterpretq_u32_u8(row));
    let even = |a, b| vreinterpretq_u64_u32(vtrn1q_u32(a, b));
    let odd = |a, b| vreinterpretq_u64_u32(vtrn2q_u32(a, b));
    let (ab_even, ab_odd, cd_even, cd_odd) = (even(a, b), odd(a, b), even(c, d), odd(c, d));
    [
        vreinterpretq_u8_u64(vzip1q_u64(ab_even, cd_even)),
        vreinterpretq_u8_u64(vzip1q_u64(ab_odd, cd_odd)),
        vreinterpretq_u8_u64(vzip2q_u64(ab_even, cd_even)),
        vreinterpretq_u8_u64(vzip2q_u64(ab_odd, cd_odd)),
    ]
}
