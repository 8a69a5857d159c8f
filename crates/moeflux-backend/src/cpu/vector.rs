//! Vectors of sixteen floats from memory and back, and turned.

use std::arch::x86_64::*;

use super::math::{EXP_MAGIC, EXP_MAX, EXP_MIN, EXP_POLYNOMIAL, LN2_HI, LN2_LO};

/// What fills a vector, in one line of the cache.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; 16]);

impl Line {
    pub(super) const ZERO: Line = Line([0.0; 16]);
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(floats: &[f32; 16]) -> __m512 {
    // SAFETY: sixteen elements are readable, and the load needs no alignment.
    unsafe { _mm512_loadu_ps(floats.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(out: &mut [f32; 16], value: __m512) {
    // SAFETY: sixteen elements are writable, and the store needs no alignment.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), value) };
}

/// Up to sixteen floats, and zeros.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_first(floats: &[f32]) -> __m512 {
    if let Ok(floats) = floats.try_into() {
        return load(floats);
    }
    // SAFETY: the mask lets only the slice's own elements be read.
    unsafe { _mm512_maskz_loadu_ps(first_lanes(floats.len()), floats.as_ptr()) }
}

/// The first of sixteen floats.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_first(out: &mut [f32], value: __m512) {
    if let Ok(out) = out.try_into() {
        return store(out, value);
    }
    // SAFETY: the mask lets only the slice's own elements be written.
    unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), first_lanes(out.len()), value) };
}

/// The mask of the first `n` lanes.
#[inline]
pub(super) fn first_lanes(n: usize) -> __mmask16 {
    assert!(n <= 16, "lanes of a vector");
    ((1u32 << n) - 1) as __mmask16
}

/// `math::tree_sum` of sixteen vectors: of `sums[a][b]` at `4 * b + a`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn tree_sums(sums: [[__m512; 4]; 4]) -> __m512 {
    const LOW: i32 = 0b01_00_01_00;
    const HIGH: i32 = 0b11_10_11_10;
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    // Each four vectors, reduced to four lanes each.
    let mut fours = [_mm512_setzero_ps(); 4];
    for (four, [a, b, c, d]) in fours.iter_mut().zip(sums) {
        let low =
            _mm512_add_ps(_mm512_shuffle_f32x4::<LOW>(a, b), _mm512_shuffle_f32x4::<HIGH>(a, b));
        let high =
            _mm512_add_ps(_mm512_shuffle_f32x4::<LOW>(c, d), _mm512_shuffle_f32x4::<HIGH>(c, d));
        *four = _mm512_add_ps(
            _mm512_shuffle_f32x4::<EVEN>(low, high),
            _mm512_shuffle_f32x4::<ODD>(low, high),
        );
    }
    let [a, b, c, d] = fours;
    let low = _mm512_add_ps(_mm512_shuffle_ps::<LOW>(a, b), _mm512_shuffle_ps::<HIGH>(a, b));
    let high = _mm512_add_ps(_mm512_shuffle_ps::<LOW>(c, d), _mm512_shuffle_ps::<HIGH>(c, d));
    _mm512_add_ps(_mm512_shuffle_ps::<EVEN>(low, high), _mm512_shuffle_ps::<ODD>(low, high))
}

/// `math::exp` of every lane.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn exp(x: __m512) -> __m512 {
    let all = |value: f32| _mm512_set1_ps(value);
    let add = |sum: f32, a, b| _mm512_fmadd_ps(a, b, all(sum));
    // If `x` is NaN, it stays so: the second operand is returned.
    let clamped = _mm512_min_ps(all(EXP_MAX), _mm512_max_ps(all(EXP_MIN), x));
    let shifted = add(EXP_MAGIC, clamped, all(std::f32::consts::LOG2_E));
    let n = _mm512_sub_ps(shifted, all(EXP_MAGIC));
    let high = _mm512_fmadd_ps(n, all(-LN2_HI), clamped);
    let r = _mm512_fmadd_ps(n, all(-LN2_LO), high);
    let p = EXP_POLYNOMIAL[1..].iter().fold(all(EXP_POLYNOMIAL[0]), |p, next| add(*next, p, r));
    let fraction = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r);
    let mantissa = _mm512_add_ps(fraction, all(1.0));
    let bias = _mm512_set1_epi32(127 - EXP_MAGIC.to_bits() as i32);
    let exponent = _mm512_add_epi32(_mm512_castps_si512(shifted), bias);
    let power = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent));
    let value = _mm512_mul_ps(mantissa, power);
    let is_tiny = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, all(EXP_MIN));
    _mm512_mask_mov_ps(value, is_tiny, all(0.0))
}

/// Has what will be read soon brought into the second cache.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn prefetch(floats: &[f32; 16]) {
    _mm_prefetch::<_MM_HINT_T1>(floats.as_ptr().cast());
}

/// Vector `c` of the result holds lane `c` of every row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn transpose(rows: [__m512; 16]) -> [__m512; 16] {
    let zero = _mm512_setzero_ps();
    // Pairs of rows, then quads: within each 128-bit lane.
    let mut pairs = [zero; 16];
    for i in (0..16).step_by(2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    const LOW: i32 = 0b01_00_01_00;
    const HIGH: i32 = 0b11_10_11_10;
    // quads[4 q + c] lane L: rows 4 q .. 4 q + 4 of column 4 L + c.
    let mut quads = [zero; 16];
    for i in (0..16).step_by(4) {
        quads[i] = _mm512_shuffle_ps::<LOW>(pairs[i], pairs[i + 2]);
        quads[i + 1] = _mm512_shuffle_ps::<HIGH>(pairs[i], pairs[i + 2]);
        quads[i + 2] = _mm512_shuffle_ps::<LOW>(pairs[i + 1], pairs[i + 3]);
        quads[i + 3] = _mm512_shuffle_ps::<HIGH>(pairs[i + 1], pairs[i + 3]);
    }
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    let mut out = [zero; 16];
    for c in 0..4 {
        let even_low = _mm512_shuffle_f32x4::<EVEN>(quads[c], quads[4 + c]);
        let odd_low = _mm512_shuffle_f32x4::<ODD>(quads[c], quads[4 + c]);
        let even_high = _mm512_shuffle_f32x4::<EVEN>(quads[8 + c], quads[12 + c]);
        let odd_high = _mm512_shuffle_f32x4::<ODD>(quads[8 + c], quads[12 + c]);
        out[c] = _mm512_shuffle_f32x4::<EVEN>(even_low, even_high);
        out[8 + c] = _mm512_shuffle_f32x4::<ODD>(even_low, even_high);
        out[4 + c] = _mm512_shuffle_f32x4::<EVEN>(odd_low, odd_high);
        out[12 + c] = _mm512_shuffle_f32x4::<ODD>(odd_low, odd_high);
    }
    out
}
