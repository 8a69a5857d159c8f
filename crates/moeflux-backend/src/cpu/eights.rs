//! Vectors of eight floats, half a block of lanes, from memory and back, and their sums.

use std::arch::x86_64::*;

/// Reads half of a block of lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn load(floats: &[f32; 8]) -> __m256 {
    // SAFETY: eight elements are readable, and the load needs no alignment.
    unsafe { _mm256_loadu_ps(floats.as_ptr()) }
}

/// Writes half of a block of lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn store(out: &mut [f32; 8], value: __m256) {
    // SAFETY: eight elements are writable, and the store needs no alignment.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), value) };
}

/// `math::tree_sum` of four dots.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn tree_sums(lower: [__m256; 4], upper: [__m256; 4]) -> __m128 {
    let mut eight = [_mm256_setzero_ps(); 4];
    for r in 0..4 {
        eight[r] = _mm256_add_ps(lower[r], upper[r]);
    }
    let [a, b, c, d] = eight;
    // Four lanes of a, then of b; and of c, then of d.
    let low = _mm256_permute2f128_ps::<0x20>(a, b);
    let ab = _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(a, b));
    let low = _mm256_permute2f128_ps::<0x20>(c, d);
    let cd = _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(c, d));
    // Two lanes of a and c, then of b and d.
    let low = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
    let two = _mm256_add_ps(low, _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd));
    let one = _mm256_add_ps(two, _mm256_movehdup_ps(two));
    let (ac, bd) = (_mm256_castps256_ps128(one), _mm256_extractf128_ps::<1>(one));
    _mm_blend_ps::<0b1010>(ac, _mm_moveldup_ps(bd))
}
