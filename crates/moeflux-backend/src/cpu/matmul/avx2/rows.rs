//! Few rows of activations and weights of four bits: eight rows of the matrix
//! side by side, 64 or 128 columns of each at a time.
//!
//! Nibbles become bytes and meet one limb of the activations at a time. No sum
//! of a group leaves 16 bits before it is half added up, and what is added up
//! last are already the lanes of the chains of `fma`.

use std::arch::x86_64::*;
use std::ops::Range;

use super::dots::{add_halves, add_neighbours};
use super::order::{Limbs, Scratch};
use super::params::{GROUPS, ParamTile, Place};
use super::stream::{Scales, Sums, X_ROWS, prefetch};
use super::vector::ROWS;
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::rows::OutPart;

/// How far ahead of its use a packed byte is asked for, at least.
const DISTANCE: usize = 8192;

/// Columns of a vector of nibbles.
const VECTOR_COLS: usize = 64;

/// Whether [`integer_rows`] takes matrices of this many columns in groups of 32.
pub(super) fn is_supported(cols: usize) -> bool {
    cols.is_multiple_of(VECTOR_COLS)
}

/// The outputs of `rows` for all rows of the activations; groups have 64 columns or 128, which is
/// `VECTORS` times 64, or 32: then a vector holds two.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn integer_rows<const VECTORS: usize, const GROUPS_OF_VECTOR: usize>(
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    out: &mut OutPart<'_>,
) {
    let n = product.x_rows.len();
    assert!(n <= X_ROWS, "{n} rows of activations");
    let mut scratch = Scratch::take();
    let mut places = [0; X_ROWS];
    let mut scales = [Scales::default(); X_ROWS];
    for (i, scales) in scales[..n].iter_mut().enumerate() {
        let (x, x_row) = (product.x, product.x_rows.at(i));
        let (held, rest) = places.split_at_mut(i);
        rest[0] = scratch.split_limbs(x, x_row, held);
        *scales = Scales { s: x.s(x_row), st: x.st(x_row) };
    }
    let mut padded = std::mem::take(&mut scratch.padded);
    let row_bytes = product.row_bytes();
    for row in rows.clone().step_by(ROWS) {
        let block = row..rows.end.min(row + ROWS);
        let mut packed = &product.weight.weight[row * row_bytes..];
        if block.len() < ROWS {
            // The contents of absent rows change nothing.
            padded.resize(ROWS * row_bytes, 0);
            let n_bytes = block.len() * row_bytes;
            padded[..n_bytes].copy_from_slice(&packed[..n_bytes]);
            packed = &padded;
        }
        let packed = EightRows::new(packed, row_bytes);
        for (i, (place, scales)) in places[..n].iter().zip(&scales).enumerate() {
            let x = Input { limbs: scratch.limbs(*place).as_chunks().0, scales: *scales };
            let sums =
                sums_of_rows::<VECTORS, GROUPS_OF_VECTOR>(&product, block.clone(), packed, x);
            out.put(i, row, &sums.total()[..block.len()]);
        }
    }
    scratch.padded = padded;
    scratch.keep();
}

/// Eight rows of packed weights, one after the other.
#[derive(Clone, Copy)]
struct EightRows<'a> {
    /// Invariant: at least eight times `row_bytes`.
    bytes: &'a [u8],
    row_bytes: usize,
    three_rows: usize,
}

impl<'a> EightRows<'a> {
    fn new(bytes: &'a [u8], row_bytes: usize) -> EightRows<'a> {
        assert!(bytes.len() >= ROWS * row_bytes, "eight rows");
        EightRows { bytes, row_bytes, three_rows: 3 * row_bytes }
    }

    /// The 32 bytes from `at` on of a row.
    ///
    /// # Safety
    /// There is such a row, and it has at least as many bytes.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(self, row: usize, at: usize) -> __m256i {
        debug_assert!(row < ROWS && at + 32 <= self.row_bytes, "32 bytes of a row");
        let first = self.bytes.as_ptr().wrapping_add(at);
        // Sums that addresses of this processor can hold, of one stride and three.
        let (stride, three) = (self.row_bytes, self.three_rows);
        let first = match row {
            0 => first,
            1 => first.wrapping_add(stride),
            2 => first.wrapping_add(2 * stride),
            3 => first.wrapping_add(three),
            4 => first.wrapping_add(4 * stride),
            5 => first.wrapping_add(three).wrapping_add(2 * stride),
            6 => first.wrapping_add(2 * three),
            _ => first.wrapping_add(three).wrapping_add(4 * stride),
        };
        // SAFETY: by the contract of this function and the invariant the 32 bytes are inside
        // `bytes`, and the load needs no alignment.
        unsafe { _mm256_loadu_si256(first.cast()) }
    }
}

/// A row of the activations.
#[derive(Clone, Copy)]
struct Input<'a, const VECTORS: usize> {
    /// One element a step: a group, or the two groups of a vector.
    limbs: &'a [[Limbs; VECTORS]],
    scales: Scales<'a>,
}

/// Adds up all groups of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sums_of_rows<const VECTORS: usize, const GROUPS_OF_VECTOR: usize>(
    product: &IntegerProduct<'_>,
    rows: Range<usize>,
    packed: EightRows<'_>,
    x: Input<'_, VECTORS>,
) -> Sums {
    let n_groups = product.n_groups();
    let Input { limbs, scales: Scales { s, st } } = x;
    let (s, st, limbs) = (&s[..n_groups], &st[..n_groups], &limbs[..n_groups / GROUPS_OF_VECTOR]);
    let param_bytes = product.integers.params.scale_bytes();
    let distance = DISTANCE.max(ROWS * packed.row_bytes);
    let Sums { mut acc, mut off } = Sums::zero();
    let mut tile = ParamTile::zero();
    for first in (0..n_groups).step_by(GROUPS) {
        for line in 0..ROWS * GROUPS * param_bytes / 64 {
            let at = (rows.end * n_groups + first * ROWS) * param_bytes + 64 * line;
            prefetch(product.weight.scales, at);
            if product.integers.params.has_biases() {
                prefetch(product.weight.biases, at);
            }
        }
        let place = Place { rows: rows.clone(), group: first, n_groups };
        tile.load(&product.weight, product.integers.params, &place);
        let groups = first..n_groups.min(first + GROUPS);
        let factors = s[groups.clone()].iter().zip(&st[groups.clone()]);
        for ((scale, bias), (s, st)) in tile.scale.iter_mut().zip(&tile.bias).zip(factors) {
            *scale = _mm256_mul_ps(*scale, _mm256_set1_ps(*s));
            off = _mm256_fmadd_ps(*bias, _mm256_set1_ps(*st), off);
        }
        let steps = groups.start / GROUPS_OF_VECTOR..groups.end / GROUPS_OF_VECTOR;
        let scales = tile.scale.as_chunks::<GROUPS_OF_VECTOR>().0;
        for ((step, x), scales) in steps.clone().zip(&limbs[steps]).zip(scales) {
            // A little at a time: many requests at once block the loads after them.
            for line in 0..ROWS * VECTORS / 2 {
                prefetch(packed.bytes, distance + step * (ROWS * VECTORS * 32) + 64 * line);
            }
            // SAFETY: each row has this step.
            let dots = unsafe { step_dots::<VECTORS, GROUPS_OF_VECTOR>(packed, step, x) };
            for (dots, scale) in dots.into_iter().zip(scales) {
                acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), *scale, acc);
            }
        }
    }
    Sums { acc, off }
}

/// The dots of the groups of a step of the eight rows, in their order.
///
/// # Safety
/// The rows have such a step.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn step_dots<const VECTORS: usize, const GROUPS_OF_VECTOR: usize>(
    packed: EightRows<'_>,
    step: usize,
    x: &[Limbs; VECTORS],
) -> [__m256i; GROUPS_OF_VECTOR] {
    // Four rows follow each other in both halves of a vector, which hold the two halves of a step.
    macro_rules! four_rows {
        ($($a:literal $b:literal)*) => {
            add_neighbours($({
                // SAFETY: passed on to the caller.
                let a = unsafe { row_dots(packed, $a, step, x) };
                // SAFETY: passed on to the caller.
                let b = unsafe { row_dots(packed, $b, step, x) };
                let (high, low) = (add_distant(a.high, b.high), add_distant(a.low, b.low));
                let high = _mm256_madd_epi16(high, _mm256_set1_epi16(256));
                _mm256_add_epi32(high, _mm256_madd_epi16(low, _mm256_set1_epi16(1)))
            }),*)
        };
    }
    let (first, last) = (four_rows!(0 1 2 3), four_rows!(4 5 6 7));
    let mut dots = [_mm256_setzero_si256(); GROUPS_OF_VECTOR];
    if GROUPS_OF_VECTOR == 1 {
        dots[0] = add_halves(first, last);
    } else {
        dots[0] = _mm256_permute2x128_si256::<0x20>(first, last);
        dots[1] = _mm256_permute2x128_si256::<0x31>(first, last);
    }
    dots
}

/// Sums of products of each limb, in 16-bit lanes.
#[derive(Clone, Copy)]
struct LaneSums {
    high: __m256i,
    low: __m256i,
}

/// A step of one row. Two products of 4 and 8 bits are at most 3,840, so that four of them,
/// the sums of a group of 128, are at most 15,360 and can be added up once more.
///
/// # Safety
/// There is such a row, and it has such a step.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn row_dots<const VECTORS: usize>(
    packed: EightRows<'_>,
    row: usize,
    step: usize,
    x: &[Limbs; VECTORS],
) -> LaneSums {
    let mask = _mm256_set1_epi8(15);
    let zero = _mm256_setzero_si256();
    let mut sums = LaneSums { high: zero, low: zero };
    for (i, x) in x.iter().enumerate() {
        // SAFETY: passed on to the caller: the step has these bytes.
        let w = unsafe { packed.load(row, (step * VECTORS + i) * 32) };
        let even = _mm256_and_si256(w, mask);
        let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(w), mask);
        let both = |limbs: &[__m256i; 2]| {
            let even = _mm256_maddubs_epi16(even, limbs[0]);
            _mm256_add_epi16(even, _mm256_maddubs_epi16(odd, limbs[1]))
        };
        let (high, low) = (both(&x.high), both(&x.low));
        sums.high = _mm256_add_epi16(sums.high, high);
        sums.low = _mm256_add_epi16(sums.low, low);
    }
    sums
}

/// In each 128-bit lane of eight: `a0 + a4 .. a3 + a7, b0 + b4 .. b3 + b7`.
#[inline]
#[target_feature(enable = "avx2")]
fn add_distant(a: __m256i, b: __m256i) -> __m256i {
    let (fa, fb) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
    let straight = _mm256_blend_epi32::<0b1100_1100>(a, b);
    let crossed = _mm256_shuffle_ps::<0b01_00_11_10>(fa, fb);
    _mm256_add_epi16(straight, _mm256_castps_si256(crossed))
}
