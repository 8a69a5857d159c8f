//! Integer dots of consecutive groups, eight at a time, in the order of memory.
//!
//! Weights are spread to 16-bit lanes in registers and meet 16-bit activations
//! that are in the same order: one product takes both limbs, and no sum of two
//! products leaves 32 bits at any width.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::unpack::{byte_places, shift_factors};
use super::vector::{load_16, load_32, load_halves};
use crate::cpu::matmul::integers::width;

/// Groups whose dots make one vector.
pub(super) const GROUPS: usize = 8;

/// Bytes beyond its last group that [`eight_dots`] may read and ignore.
pub(super) const SLACK: usize = 16;

/// Columns that one block of packed bytes holds: 32 bytes where shifting and
/// masking unpacks them, else 32 columns.
pub(super) const fn block_cols(bits: usize) -> usize {
    match bits {
        2 | 4 | 8 => 32 * 8 / bits,
        _ => 32,
    }
}

/// Bytes of eight groups.
pub(super) const fn step_bytes(bits: usize, group: usize) -> usize {
    GROUPS * group * bits / 8
}

/// The place in a block of the column that lane `at` of its activations meets.
pub(super) const fn column_at(bits: usize, at: usize) -> usize {
    let (vector, lane) = (at / 16, at % 16);
    match bits {
        // A lane holds two, four or eight columns; each vector takes one of each lane.
        2 | 4 | 8 => lane * (16 / bits) + vector,
        // 128-bit lanes come from both halves of the block.
        _ => lane / 8 * 16 + vector * 8 + lane % 8,
    }
}

/// The dots of eight groups, in order. `VNNI`: the machine has AVX-VNNI.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn eight_dots<const CODES: usize, const GROUP: usize, const VNNI: bool>(
    packed: &[u8],
    x: &[i16],
) -> __m256i {
    let block_cols = const { block_cols(width(CODES)) };
    // Groups side by side in one vector, and blocks that one vector adds up.
    let n_groups = (block_cols / GROUP).max(1);
    let n_blocks = GROUP.div_ceil(block_cols);
    // With lengths known here, no load below needs a check.
    let packed = &packed[..const { step_bytes(width(CODES), GROUP) + SLACK }];
    let x = &x[..GROUPS * GROUP];
    let mut v = [_mm256_setzero_si256(); 8];
    // Not a loop: indices that are known keep `v` in registers.
    macro_rules! fill {
        ($($k:literal)*) => {$(
            if $k < 8 / n_groups {
                let blocks = $k * n_blocks..($k + 1) * n_blocks;
                v[$k] = lane_sums::<CODES, VNNI>(packed, x, blocks);
            }
        )*};
    }
    fill!(0 1 2 3 4 5 6 7);
    match n_groups {
        1 => add_halves(four(v[0], v[1], v[2], v[3]), four(v[4], v[5], v[6], v[7])),
        2 => {
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            _mm256_permutevar8x32_epi32(four(v[0], v[1], v[2], v[3]), order)
        }
        _ => {
            let order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
            _mm256_permutevar8x32_epi32(add_neighbours(v[0], v[1]), order)
        }
    }
}

/// The products of some blocks of columns, added up lane by lane.
#[inline]
#[target_feature(enable = "avx2")]
fn lane_sums<const CODES: usize, const VNNI: bool>(
    packed: &[u8],
    x: &[i16],
    blocks: Range<usize>,
) -> __m256i {
    let (cols, n_bytes) =
        const { (block_cols(width(CODES)), block_cols(width(CODES)) * width(CODES) / 8) };
    let mut sum = _mm256_setzero_si256();
    for block in blocks {
        let packed = &packed[block * n_bytes..];
        let x = &x[block * cols..][..cols];
        match CODES {
            2 | 4 | 8 => {
                let w = load_32(packed);
                let mask = _mm256_set1_epi16((1 << CODES) - 1);
                macro_rules! add_columns {
                    ($($vector:literal)*) => {$(
                        if $vector * CODES < 16 {
                            let mut columns = w;
                            if $vector > 0 {
                                let by = _mm_cvtsi32_si128(($vector * CODES) as i32);
                                columns = _mm256_srl_epi16(columns, by);
                            }
                            // The highest have nothing above them.
                            if ($vector + 1) * CODES < 16 {
                                columns = _mm256_and_si256(columns, mask);
                            }
                            let x = load_halves(&x[16 * $vector..]);
                            sum = add_products::<VNNI>(sum, columns, x);
                        }
                    )*};
                }
                add_columns!(0 1 2 3 4 5 6 7);
            }
            _ => {
                let columns =
                    _mm256_set_m128i(load_16(&packed[2 * width(CODES)..]), load_16(packed));
                let factors =
                    load_halves(const { &shift_factors(width(CODES), 16 - width(CODES)) });
                let above = _mm_cvtsi32_si128((16 - CODES) as i32);
                let first = load_32(const { &byte_places(width(CODES), 0) });
                let first = _mm256_mullo_epi16(_mm256_shuffle_epi8(columns, first), factors);
                let first = _mm256_srl_epi16(first, above);
                sum = add_products::<VNNI>(sum, first, load_halves(x));
                let second = load_32(const { &byte_places(width(CODES), 8) });
                let second = _mm256_mullo_epi16(_mm256_shuffle_epi8(columns, second), factors);
                let second = _mm256_srl_epi16(second, above);
                sum = add_products::<VNNI>(sum, second, load_halves(&x[16..]));
            }
        }
    }
    sum
}

/// `sum` plus the products of 16-bit lanes, two to a 32-bit lane.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn add_products<const VNNI: bool>(sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
    if VNNI {
        let mut sum = sum;
        // SAFETY: `VNNI` says that the machine has this instruction, which touches registers only.
        unsafe {
            asm!(
                "{{vex}} vpdpwssd {sum}, {w}, {x}",
                sum = inout(ymm_reg) sum,
                w = in(ymm_reg) w,
                x = in(ymm_reg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        return sum;
    }
    _mm256_add_epi32(sum, _mm256_madd_epi16(w, x))
}

/// Each 128-bit lane of the result holds the sums of that lane of each vector.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn four(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    add_neighbours(add_distant(a, b), add_distant(c, d))
}

/// In each 128-bit lane: `a0 + a2, a1 + a3, b0 + b2, b1 + b3`.
#[inline]
#[target_feature(enable = "avx2")]
fn add_distant(a: __m256i, b: __m256i) -> __m256i {
    let (fa, fb) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
    let straight = _mm256_blend_epi32::<0b1100_1100>(a, b);
    let crossed = _mm256_shuffle_ps::<0b01_00_11_10>(fa, fb);
    _mm256_add_epi32(straight, _mm256_castps_si256(crossed))
}

/// In each 128-bit lane: `a0 + a1, a2 + a3, b0 + b1, b2 + b3`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn add_neighbours(a: __m256i, b: __m256i) -> __m256i {
    let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
    let even = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
    let odd = _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
    _mm256_add_epi32(even, odd)
}

/// 128-bit lanes: `a0 + a1, b0 + b1`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn add_halves(a: __m256i, b: __m256i) -> __m256i {
    let straight = _mm256_blend_epi32::<0b1111_0000>(a, b);
    _mm256_add_epi32(straight, _mm256_permute2x128_si256::<0x21>(a, b))
}
