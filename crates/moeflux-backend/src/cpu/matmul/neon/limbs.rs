//! Limbs of activations, sixteen columns at a time.

use std::arch::aarch64::*;

use crate::cpu::matmul::Quantised;

/// Rows of the matrix that are the lanes of a vector.
pub(super) const ROWS: usize = 4;

/// The activations of sixteen columns.
pub(super) type Chunk = [i8; 16];

/// The bytes of one group of four rows.
pub(super) type FourRows<'a> = [&'a [u8]; ROWS];

/// 128 times the sum of the integers of each group of a row.
pub(super) fn missing(x: &Quantised, row: usize) -> impl Iterator<Item = i32> {
    let sum = |q: &[i8]| q.iter().map(|code| i32::from(*code)).sum::<i32>();
    let high = x.q(row, 0).chunks_exact(x.group_size());
    let low = x.q(row, x.n_limbs() - 1).chunks_exact(x.group_size());
    let two = x.n_limbs() == 2;
    high.zip(low).map(move |(h, l)| 128 * if two { 256 * sum(h) + sum(l) } else { sum(h) })
}

/// The lower halves of two vectors, and the upper halves.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn halves(a: int8x16_t, b: int8x16_t) -> [int8x16_t; 2] {
    [vcombine_s8(vget_low_s8(a), vget_low_s8(b)), vcombine_s8(vget_high_s8(a), vget_high_s8(b))]
}

/// Two limbs' dots as one.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn both_limbs(high: int32x4_t, low: int32x4_t) -> int32x4_t {
    vaddq_s32(vshlq_n_s32::<8>(high), low)
}
