//! Sums of products whose lanes are rows of the matrix: a vector holds the codes of four columns of
//! eight rows, a byte each.

use std::arch::asm;
use std::arch::x86_64::*;

use super::unpack_blocks::largest_code;
use crate::cpu::matmul::steps::of;

/// The activations of four columns as a vector of codes meets them: their high limbs and their low
/// ones, a byte each, or, for [wide codes](is_wide), the even and the odd columns, 16 bits each.
pub(super) type FourOfX = [i32; 2];

/// Vectors of codes that are added at a time: sixteen columns.
pub(super) const QUADS: usize = 4;

/// Whether kernels take the codes of a type as 16 bits, because sums of their products with limbs
/// fit into 16 bits for too few columns.
pub(super) const fn is_wide(number: u8, vnni: bool) -> bool {
    !vnni && quads_in_16_bits(largest_code(number)) < 2
}

/// Vectors of codes whose sums of products with one limb fit into 16 bits: each adds two products
/// of a code and a limb, which is at least -128.
const fn quads_in_16_bits(max: usize) -> usize {
    (1 << 15) / (2 * 128 * max)
}

/// The dots of one group of eight rows of a type, so far. `VNNI`: the machine has AVX-VNNI.
#[derive(Clone, Copy)]
pub(super) struct GroupSum<const TYPE: u8, const VNNI: bool> {
    /// What counts 256 times, where limbs stay apart up to the end.
    high: __m256i,
    low: __m256i,
}

impl<const TYPE: u8, const VNNI: bool> GroupSum<TYPE, VNNI> {
    const IS_WIDE: bool = is_wide(TYPE, VNNI);

    /// Vectors of codes whose sums fit into 16 bits.
    const IN_16_BITS: usize = quads_in_16_bits(largest_code(TYPE));

    /// Whether the sums of a whole group do.
    const FITS: bool = of(TYPE).group_cols() / 4 <= Self::IN_16_BITS;

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn zero() -> Self {
        GroupSum { high: _mm256_setzero_si256(), low: _mm256_setzero_si256() }
    }

    /// With sixteen more columns.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn with(self, codes: [__m256i; QUADS], x: &[FourOfX]) -> Self {
        let GroupSum { mut high, mut low } = self;
        let x: &[FourOfX; QUADS] = x.first_chunk().expect("sixteen columns");
        if VNNI {
            for (codes, x) in codes.into_iter().zip(x) {
                high = add_fours(high, codes, _mm256_set1_epi32(x[0]));
                low = add_fours(low, codes, _mm256_set1_epi32(x[1]));
            }
        } else if Self::IS_WIDE {
            let byte = _mm256_set1_epi16(255);
            for (codes, x) in codes.into_iter().zip(x) {
                let even = _mm256_and_si256(codes, byte);
                let odd = _mm256_srli_epi16::<8>(codes);
                low = _mm256_add_epi32(low, _mm256_madd_epi16(even, _mm256_set1_epi32(x[0])));
                low = _mm256_add_epi32(low, _mm256_madd_epi16(odd, _mm256_set1_epi32(x[1])));
            }
        } else if Self::FITS {
            for (codes, x) in codes.into_iter().zip(x) {
                high = _mm256_add_epi16(high, twos(codes, x[0]));
                low = _mm256_add_epi16(low, twos(codes, x[1]));
            }
        } else {
            let at_once = const { if Self::IN_16_BITS < QUADS { 2 } else { QUADS } };
            for first in (0..QUADS).step_by(at_once) {
                let (mut of_high, mut of_low) = (_mm256_setzero_si256(), _mm256_setzero_si256());
                for k in first..first + at_once {
                    of_high = _mm256_add_epi16(of_high, twos(codes[k], x[k][0]));
                    of_low = _mm256_add_epi16(of_low, twos(codes[k], x[k][1]));
                }
                low = _mm256_add_epi32(low, both_limbs(of_high, of_low));
            }
        }
        GroupSum { high, low }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn total(self) -> __m256i {
        if VNNI {
            _mm256_add_epi32(_mm256_slli_epi32::<8>(self.high), self.low)
        } else if !Self::IS_WIDE && Self::FITS {
            both_limbs(self.high, self.low)
        } else {
            self.low
        }
    }
}

/// Products of codes and one limb, two of them added up in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn twos(codes: __m256i, limbs: i32) -> __m256i {
    _mm256_maddubs_epi16(codes, _mm256_set1_epi32(limbs))
}

/// Sums of both limbs from sums of 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn both_limbs(high: __m256i, low: __m256i) -> __m256i {
    let high = _mm256_madd_epi16(high, _mm256_set1_epi16(256));
    _mm256_add_epi32(high, _mm256_madd_epi16(low, _mm256_set1_epi16(1)))
}

/// `sum` plus the four products of each 32-bit lane. Only for machines with AVX-VNNI.
#[inline]
#[target_feature(enable = "avx2")]
fn add_fours(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
    let mut sum = sum;
    // SAFETY: callers have `VNNI`, which says that the machine has this instruction; it touches
    // registers only.
    unsafe {
        asm!(
            "{{vex}} vpdpbusd {sum}, {codes}, {x}",
            sum = inout(ymm_reg) sum,
            codes = in(ymm_reg) codes,
            x = in(ymm_reg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}
