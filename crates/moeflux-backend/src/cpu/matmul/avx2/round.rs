//! Rounding of activations, with the bits of the plain definition.

use std::arch::x86_64::*;

use super::vector::load_floats;
use crate::cpu::matmul::rounded_row::RoundedRow;

/// Rounds a row in groups of a multiple of 32; `largest` fits 16 bits.
#[target_feature(enable = "avx2")]
pub(in crate::cpu::matmul) fn quantise_row(
    x: &[f32],
    group_size: usize,
    largest: i32,
    out: RoundedRow<'_>,
) {
    let (high, low) = out.q.split_at_mut(out.q_stride);
    let (x, _) = x.as_chunks::<32>();
    let (high, low) = (high.as_chunks_mut::<32>().0, low.as_chunks_mut::<32>().0);
    let pairs = out.pairs.as_chunks_mut::<16>().0;
    let each = group_size / 32;
    for (g, (s, st)) in out.s.iter_mut().zip(out.st).enumerate() {
        let x = &x[g * each..(g + 1) * each];
        let max = greatest_magnitude(x.as_flattened());
        let factor = if max == 0.0 { 0.0 } else { largest as f32 / max };
        let mut sum = _mm256_setzero_si256();
        for (i, x) in x.iter().enumerate() {
            let (x, at) = (x.as_chunks::<8>().0, g * each + i);
            let codes = |i: usize| rounded(load_floats(&x[i]), factor, largest);
            let (a, b, c, d) = (codes(0), codes(1), codes(2), codes(3));
            sum = _mm256_add_epi32(
                sum,
                _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d)),
            );
            // Packing takes 128-bit lanes in turns.
            let (ab, cd) = (in_order(_mm256_packs_epi32(a, b)), in_order(_mm256_packs_epi32(c, d)));
            if let Some(pairs) = pairs.get_mut(at) {
                let (ab_out, cd_out) = pairs.split_at_mut(8);
                store(bytemuck::cast_slice_mut(ab_out), ab);
                store(bytemuck::cast_slice_mut(cd_out), cd);
            }
            let Some(low) = low.get_mut(at) else {
                store(
                    bytemuck::cast_slice_mut(&mut high[at]),
                    in_order(_mm256_packs_epi16(ab, cd)),
                );
                continue;
            };
            let half = _mm256_set1_epi16(128);
            let upper = |value| _mm256_srai_epi16::<8>(_mm256_add_epi16(value, half));
            let lower = |value| _mm256_and_si256(value, _mm256_set1_epi16(255));
            let upper = in_order(_mm256_packs_epi16(upper(ab), upper(cd)));
            store(bytemuck::cast_slice_mut(&mut high[at]), upper);
            let lower = in_order(_mm256_packus_epi16(lower(ab), lower(cd)));
            store(bytemuck::cast_slice_mut(low), lower);
        }
        *s = max / largest as f32;
        *st = *s * add_lanes(sum) as f32;
    }
}

/// Of all numbers NaN counts as the greatest.
#[inline]
#[target_feature(enable = "avx2")]
fn greatest_magnitude(x: &[f32]) -> f32 {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let mut max = _mm256_setzero_si256();
    for x in x.as_chunks::<8>().0 {
        let bits = _mm256_castps_si256(load_floats(x));
        max = _mm256_max_epu32(max, _mm256_and_si256(bits, magnitude));
    }
    let mut lanes = [0u32; 8];
    store(bytemuck::cast_slice_mut(&mut lanes), max);
    f32::from_bits(lanes.into_iter().fold(0, u32::max))
}

/// To the nearest integers, ties to even, within bounds; NaN gives 0.
#[inline]
#[target_feature(enable = "avx2")]
fn rounded(x: __m256, factor: f32, largest: i32) -> __m256i {
    let x = _mm256_mul_ps(x, _mm256_set1_ps(factor));
    let x = _mm256_and_ps(x, _mm256_cmp_ps::<_CMP_ORD_Q>(x, x));
    let bound = _mm256_set1_ps(largest as f32);
    let x = _mm256_min_ps(x, bound);
    let x = _mm256_max_ps(x, _mm256_sub_ps(_mm256_setzero_ps(), bound));
    _mm256_cvtps_epi32(x)
}

/// Undoes what packing does to 64-bit quarters.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(packed: __m256i) -> __m256i {
    _mm256_permute4x64_epi64::<0b11_01_10_00>(packed)
}

#[inline]
#[target_feature(enable = "avx2")]
fn add_lanes(sums: __m256i) -> i32 {
    let mut lanes = [0i32; 8];
    store(bytemuck::cast_slice_mut(&mut lanes), sums);
    lanes.iter().sum()
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(out: &mut [u8], value: __m256i) {
    assert!(out.len() >= 32);
    // SAFETY: 32 bytes are writable, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), value) };
}
