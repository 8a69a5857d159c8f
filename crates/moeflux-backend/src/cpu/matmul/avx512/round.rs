//! Rounding of activations, with the bits of the plain definition.

use std::arch::x86_64::*;

use crate::cpu::matmul::rounded_row::RoundedRow;
use crate::cpu::vector::load;

/// Elements of a vector.
const LANES: usize = 16;

/// Rounds a row in groups of a multiple of 16; `largest` fits 16 bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(in crate::cpu::matmul) fn quantise_row(
    x: &[f32],
    group_size: usize,
    largest: i32,
    out: RoundedRow<'_>,
) {
    let RoundedRow { q, q_stride, s, st, .. } = out;
    let (high, low) = q.split_at_mut(q_stride);
    let sums = s.iter_mut().zip(st);
    for (g, (x, (s, st))) in x.chunks_exact(group_size).zip(sums).enumerate() {
        let at = g * group_size..(g + 1) * group_size;
        let x = x.as_chunks::<LANES>().0;
        let max = greatest_magnitude(x);
        let rounding = Rounding::new(if max == 0.0 { 0.0 } else { largest as f32 / max }, largest);
        let high = high[at.clone()].as_chunks_mut::<LANES>().0;
        let sum = match low.get_mut(at) {
            Some(low) => rounding.two_limbs(x, high, low.as_chunks_mut().0),
            None => rounding.one_limb(x, high),
        };
        *s = max / largest as f32;
        *st = *s * sum as f32;
    }
}

/// Of all numbers NaN counts as the greatest.
#[inline]
#[target_feature(enable = "avx512f")]
fn greatest_magnitude(x: &[[f32; LANES]]) -> f32 {
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    let mut max = _mm512_setzero_si512();
    for x in x {
        max = _mm512_max_epu32(max, _mm512_and_si512(_mm512_castps_si512(load(x)), magnitude));
    }
    f32::from_bits(_mm512_reduce_max_epu32(max))
}

#[derive(Clone, Copy)]
struct Rounding {
    factor: __m512,
    bound: __m512,
}

impl Rounding {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(factor: f32, largest: i32) -> Rounding {
        Rounding { factor: _mm512_set1_ps(factor), bound: _mm512_set1_ps(largest as f32) }
    }

    /// To the nearest integers, ties to even, within bounds; NaN gives 0.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn codes(self, x: &[f32; LANES]) -> __m512i {
        let x = _mm512_mul_ps(load(x), self.factor);
        let numbers = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x);
        let x = _mm512_min_ps(x, self.bound);
        let x = _mm512_max_ps(x, _mm512_sub_ps(_mm512_setzero_ps(), self.bound));
        _mm512_maskz_cvtps_epi32(numbers, x)
    }

    /// The sum of what it writes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn one_limb(self, x: &[[f32; LANES]], out: &mut [[i8; LANES]]) -> i32 {
        let mut sum = _mm512_setzero_si512();
        for (x, out) in x.iter().zip(out) {
            let codes = self.codes(x);
            sum = _mm512_add_epi32(sum, codes);
            store_bytes(out, codes);
        }
        _mm512_reduce_add_epi32(sum)
    }

    /// The sum of what it writes, as whole numbers.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn two_limbs(
        self,
        x: &[[f32; LANES]],
        high: &mut [[i8; LANES]],
        low: &mut [[i8; LANES]],
    ) -> i32 {
        let half = _mm512_set1_epi32(128);
        let mut sum = _mm512_setzero_si512();
        for (x, (high, low)) in x.iter().zip(high.iter_mut().zip(low)) {
            let codes = self.codes(x);
            sum = _mm512_add_epi32(sum, codes);
            store_bytes(high, _mm512_srai_epi32::<8>(_mm512_add_epi32(codes, half)));
            store_bytes(low, codes);
        }
        _mm512_reduce_add_epi32(sum)
    }
}

/// The lowest byte of every lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn store_bytes(out: &mut [i8; LANES], lanes: __m512i) {
    let bytes = _mm512_cvtepi32_epi8(lanes);
    // SAFETY: sixteen bytes are writable, and the store needs no alignment.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), bytes) };
}
