//! Floats of four bits (E2M1), sixteen at a time.

use std::arch::x86_64::*;

use moeflux_core::quant::MicroScaled;

use super::vector::{load_floats, store_floats};

/// Elements times their group's scale; `packed` has two a byte.
#[target_feature(enable = "avx512f,avx512vbmi,fma")]
pub(in crate::cpu::matmul) fn decode_e2m1(
    micro: MicroScaled,
    packed: &[u8],
    scales: &[u8],
    out: &mut [f32],
) {
    let groups = out.chunks_exact_mut(micro.group_size);
    let packed = packed.chunks_exact(micro.group_size / 2);
    for ((out, packed), scale) in groups.zip(packed).zip(scales) {
        let values = values(micro.scale.to_f32(*scale));
        for (out, packed) in out.as_chunks_mut().0.iter_mut().zip(packed.as_chunks().0) {
            store_floats(out, decode(packed, values));
        }
    }
}

/// Adds the products of some rows with one of activations, column by column to
/// the lanes; `packed` and `scales` have as many columns as `x`.
#[target_feature(enable = "avx512f,avx512vbmi,fma")]
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
#[target_feature(enable = "avx512f,avx512vbmi,fma")]
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
            let values = values(micro.scale.to_f32(scales[r][g]));
            let (packed, _) = packed[r][g * GROUP / 2..][..GROUP / 2].as_chunks();
            for (x, packed) in x.iter().zip(packed) {
                acc[r] = _mm512_fmadd_ps(decode(packed, values), load_floats(x), acc[r]);
            }
        }
    }
    for (acc, sums) in acc.iter().zip(sums) {
        store_floats(sums, *acc);
    }
}

/// What codes stand for, times the scale of a group.
#[inline]
#[target_feature(enable = "avx512f")]
fn values(scale: f32) -> __m512 {
    let values = _mm512_setr_ps(
        0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
    );
    _mm512_mul_ps(values, _mm512_set1_ps(scale))
}

/// Sixteen elements, as values of their codes.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi")]
fn decode(packed: &[u8; 8], values: __m512) -> __m512 {
    // Where the lowest byte of a lane begins, in bits; a permutation looks at the lowest
    // four bits of its indices.
    let starts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
    let both = _mm512_set1_epi64(i64::from_le_bytes(*packed));
    // As integers: compilers would permute the scale as well, and multiply last.
    let codes = _mm512_multishift_epi64_epi8(starts, both);
    _mm512_castsi512_ps(_mm512_permutexvar_epi32(codes, _mm512_castps_si512(values)))
}
