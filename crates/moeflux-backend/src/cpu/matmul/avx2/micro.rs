//! Floats of four bits (E2M1), eight at a time.

use std::arch::x86_64::*;

use moeflux_core::quant::MicroScaled;

use super::vector::{load_floats, store_floats};

/// Elements times their group's scale; `packed` has two a byte.
#[target_feature(enable = "avx2,fma")]
pub(in crate::cpu::matmul) fn decode_e2m1(
    micro: MicroScaled,
    packed: &[u8],
    scales: &[u8],
    out: &mut [f32],
) {
    let groups = out.chunks_exact_mut(micro.group_size);
    let packed = packed.chunks_exact(micro.group_size / 2);
    for ((out, packed), scale) in groups.zip(packed).zip(scales) {
        let scale = _mm256_set1_ps(micro.scale.to_f32(*scale));
        for (out, packed) in out.as_chunks_mut().0.iter_mut().zip(packed.as_chunks().0) {
            store_floats(out, decode(packed, scale));
        }
    }
}

/// Adds the products of some rows with one of activations, column by column to
/// the lanes; `packed` and `scales` have as many columns as `x`.
#[target_feature(enable = "avx2,fma")]
pub(in crate::cpu::matmul) fn multiply_e2m1<const ROWS: usize>(
    micro: MicroScaled,
    packed: [&[u8]; ROWS],
    scales: [&[u8]; ROWS],
    x: &[f32],
    sums: &mut [[f32; 16]; ROWS],
) {
    match micro.group_size {
        16 => multiply::<16, ROWS>(micro, packed, scales, x, sums),
        _ => multiply::<32, ROWS>(micro, packed, scales, x, sums),
    }
}

/// As [`multiply_e2m1`], in groups of so many columns.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply<const GROUP: usize, const ROWS: usize>(
    micro: MicroScaled,
    packed: [&[u8]; ROWS],
    scales: [&[u8]; ROWS],
    x: &[f32],
    sums: &mut [[f32; 16]; ROWS],
) {
    assert_eq!(micro.group_size, GROUP, "columns of a group");
    let mut acc = [[_mm256_setzero_ps(); 2]; ROWS];
    for (acc, sums) in acc.iter_mut().zip(&*sums) {
        for (acc, sums) in acc.iter_mut().zip(sums.as_chunks().0) {
            *acc = load_floats(sums);
        }
    }
    for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        let (x, _) = x.as_chunks::<16>();
        for r in 0..ROWS {
            let scale = _mm256_set1_ps(micro.scale.to_f32(scales[r][g]));
            let (packed, _) = packed[r][g * GROUP / 2..][..GROUP / 2].as_chunks::<8>();
            for (x, packed) in x.iter().zip(packed) {
                let halves = packed.as_chunks().0.iter().zip(x.as_chunks().0);
                for (acc, (packed, x)) in acc[r].iter_mut().zip(halves) {
                    *acc = _mm256_fmadd_ps(decode(packed, scale), load_floats(x), *acc);
                }
            }
        }
    }
    for (acc, sums) in acc.iter().zip(sums) {
        for (acc, sums) in acc.iter().zip(sums.as_chunks_mut().0) {
            store_floats(sums, *acc);
        }
    }
}

/// Eight elements times their scale.
#[inline]
#[target_feature(enable = "avx2")]
fn decode(packed: &[u8; 4], scale: __m256) -> __m256 {
    // A permutation looks at the lowest three bits of its indices; the fourth is the sign.
    let values = _mm256_setr_ps(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0);
    let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    let codes = _mm256_srlv_epi32(_mm256_set1_epi32(i32::from_le_bytes(*packed)), shifts);
    let magnitude = _mm256_permutevar8x32_ps(values, codes);
    let sign = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
    let value = _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0)));
    _mm256_mul_ps(value, scale)
}
