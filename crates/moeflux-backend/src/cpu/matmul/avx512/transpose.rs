//! Sixteen rows as the lanes of vectors.

use std::arch::x86_64::*;

/// Vector `c` of the result holds lane `c` of every row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(in crate::cpu::matmul) fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    let zero = _mm512_setzero_si512();
    // Pairs of rows, then quads: within each 128-bit lane.
    let mut pairs = [zero; 16];
    for i in (0..16).step_by(2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    // quads[4 q + c] lane L: rows 4 q .. 4 q + 4 of column 4 L + c.
    let mut quads = [zero; 16];
    for i in (0..16).step_by(4) {
        quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    let mut out = [zero; 16];
    for c in 0..4 {
        let even_low = _mm512_shuffle_i32x4::<EVEN>(quads[c], quads[4 + c]);
        let odd_low = _mm512_shuffle_i32x4::<ODD>(quads[c], quads[4 + c]);
        let even_high = _mm512_shuffle_i32x4::<EVEN>(quads[8 + c], quads[12 + c]);
        let odd_high = _mm512_shuffle_i32x4::<ODD>(quads[8 + c], quads[12 + c]);
        out[c] = _mm512_shuffle_i32x4::<EVEN>(even_low, even_high);
        out[8 + c] = _mm512_shuffle_i32x4::<ODD>(even_low, even_high);
        out[4 + c] = _mm512_shuffle_i32x4::<EVEN>(odd_low, odd_high);
        out[12 + c] = _mm512_shuffle_i32x4::<ODD>(odd_low, odd_high);
    }
    out
}

/// As [`transpose`] for rows of eight lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose_halves(rows: [__m256i; 16]) -> [__m512i; 8] {
    let zero = _mm512_setzero_si512();
    // Row `i` next to row `8 + i`.
    let mut both = [zero; 8];
    for i in 0..8 {
        both[i] = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(rows[i]), rows[8 + i]);
    }
    let [a, b, c, d, e, f, g, h] = both;
    let low = transpose_lanes([a, b, c, d]);
    let high = transpose_lanes([e, f, g, h]);
    let even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    let odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    let mut out = [zero; 8];
    for c in 0..4 {
        out[c] = _mm512_permutex2var_epi64(low[c], even, high[c]);
        out[4 + c] = _mm512_permutex2var_epi64(low[c], odd, high[c]);
    }
    out
}

/// Vector `c` of the result holds column `c` of each 128-bit lane of every
/// vector.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose_lanes([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab_low, cd_low),
        _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// As [`transpose`] for rows of `N` lanes, 1, 2, 4 or 8, that follow each other in `N`
/// vectors.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose_narrow<const N: usize>(mut v: [__m512i; N]) -> [__m512i; N] {
    const { assert!(N.is_power_of_two() && N <= 8) };
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    // Each step moves the lowest bit of every place to the top.
    let mut width = N;
    while width > 1 {
        let old = v;
        for i in 0..N / 2 {
            v[i] = _mm512_permutex2var_epi32(old[2 * i], even, old[2 * i + 1]);
            v[N / 2 + i] = _mm512_permutex2var_epi32(old[2 * i], odd, old[2 * i + 1]);
        }
        width /= 2;
    }
    v
}
