//! Floats of four bits (E2M1), sixteen at a time.

use std::arch::x86_64::*;

use moeflux_core::quant::MicroScaled;

use super::vector::{load_floats, store_floats};

/// Elements times their group's scale; `packed` has two a byte.
#[target_feature(enable = "avx512f,fma")]
pub(in crate::cpu::matmul) fn decode_e2m1(
    micro: MicroScaled,
    packed: &[u8],
    scales: &[u8],
    out: &mut [f32],
) {
    let groups = out.chunks_exact_mut(micro.group_size);
    let packed = packed.chunks_exact(micro.group_size / 2);
    for ((out, packed), scale) in groups.zip(packed).zip(scales) {
        let scale = _mm512_set1_ps(micro.scale.to_f32(*scale));
        for (out, packed) in out.as_chunks_mut().0.iter_mut().zip(packed.as_chunks().0) {
            store_floats(out, decode(packed, scale));
        }
    }
}

/// Adds the products of some rows with one of activations, column by column to
/// the lanes; `packed` and `scales` have as many columns as `x`.
#[target_feature(enable = "avx512f,fma")]
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
#[target_feature(enable = "avx512f,fma")]
fn multiply<const GROUP: usize, const ROWS: usize>(
    micro: MicroScaled,
    packed: [&[u8]; ROWS],
    scales: [&[u8]; ROWS],
    x: &[f32],
    sums: &mut [[f32; 16]; ROWS],
) {
    assert_eq!(micro.group_size, GROUP, "columns of a group");
    let mut acc = [_mm512_setzero_ps(); ROWS];
    for (acc, sums) in acc.iter_mut().zip(&*sums) {
        *acc = load_floats(sums);
    }
    for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        let (x, _) = x.as_chunks();
        for r in 0..ROWS {
            let scale = _mm512_set1_ps(micro.scale.to_f32(scales[r][g]));
            let (packed, _) = packed[r][g * GROUP / 2..][..GROUP / 2].as_chunks();
            for (x, packed) in x.iter().zip(packed) {
                acc[r] = _mm512_fmadd_ps(decode(packed, scale), load_floats(x), acc[r]);
            }
        }
    }
    for (acc, sums) in acc.iter().zip(sums) {
        store_floats(sums, *acc);
    }
}

/// Sixteen elements times their scale.
#[inline]
#[target_feature(enable = "avx512f")]
fn decode(packed: &[u8; 8], scale: __m512) -> __m512 {
    // A permutation looks at the lowest four bits of its indices.
    let values = _mm512_setr_ps(
        0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
    );
    let shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    let halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    let both = _mm512_set1_epi64(i64::from_le_bytes(*packed));
    let codes = _mm512_srlv_epi32(_mm512_permutexvar_epi32(halves, both), shifts);
    _mm512_mul_ps(_mm512_permutexvar_ps(codes, values), scale)
}
