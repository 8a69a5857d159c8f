//! Scales and biases of sixteen rows, with the rows as lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use moeflux_core::quant::Float;

use super::ROWS;
use super::transpose::{transpose, transpose_narrow};
use super::vector::{load_32, load_64, load_halves, load_singles, pair_halves};
use crate::cpu::matmul::IntegerProduct;

/// Groups of one tile.
pub(in crate::cpu::matmul) const GROUPS: usize = 16;

/// Scale and bias of each group of a tile; lanes are rows.
pub(in crate::cpu::matmul) struct ParamTile {
    pub(in crate::cpu::matmul) scale: [__m512; GROUPS],
    pub(in crate::cpu::matmul) bias: [__m512; GROUPS],
}

/// The parameters of at most 16 `rows` and at most 16 groups from `group` on;
/// what is absent is zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")]
pub(in crate::cpu::matmul) fn param_tile(
    product: &IntegerProduct<'_>,
    rows: Range<usize>,
    group: usize,
) -> ParamTile {
    let part = Part { n_groups: product.n_groups(), rows, group };
    let (scales, biases) = (product.weight.scales, product.weight.biases);
    let zero = [_mm512_setzero_ps(); GROUPS];
    let mut out = ParamTile { scale: zero, bias: zero };
    let params = out.scale.iter_mut().zip(&mut out.bias);
    match product.affine.params {
        Float::F32 => {
            let both = part.singles(scales).into_iter().zip(part.singles(biases));
            for ((scale, bias), it) in params.zip(both) {
                *scale = _mm512_castsi512_ps(it.0);
                *bias = _mm512_castsi512_ps(it.1);
            }
        }
        Float::BF16 => {
            for ((scale, bias), it) in params.zip(part.halves(scales, biases)) {
                (*scale, *bias) = bf16_pair(it);
            }
        }
        Float::F16 => {
            for ((scale, bias), it) in params.zip(part.halves(scales, biases)) {
                (*scale, *bias) = f16_pair(it);
            }
        }
    }
    out
}

/// Scale and bias from the lower and upper halves of lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn bf16_pair(it: __m512i) -> (__m512, __m512) {
    let high = _mm512_set1_epi32(0xffff_0000u32 as i32);
    let scale = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(it));
    (scale, _mm512_castsi512_ps(_mm512_and_si512(it, high)))
}

/// Scale and bias from the lower and upper halves of lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn f16_pair(it: __m512i) -> (__m512, __m512) {
    let scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(it));
    (scale, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(it))))
}

/// Scale and bias of each group of sixteen rows from `row` on that have `N`
/// groups each, 1, 2, 4 or 8: those rows' parameters are one stream.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")]
pub(super) fn narrow_params<const N: usize>(
    product: &IntegerProduct<'_>,
    row: usize,
) -> [(__m512, __m512); N] {
    let size = product.affine.params.bytes();
    let span = row * N * size..(row + ROWS) * N * size;
    let (scales, biases) = (&product.weight.scales[span.clone()], &product.weight.biases[span]);
    let mut out = [(_mm512_setzero_ps(), _mm512_setzero_ps()); N];
    match product.affine.params {
        Float::F32 => {
            let (scales, biases) = (narrow_singles::<N>(scales), narrow_singles::<N>(biases));
            for g in 0..N {
                out[g] = (_mm512_castsi512_ps(scales[g]), _mm512_castsi512_ps(biases[g]));
            }
        }
        Float::BF16 => {
            for (out, it) in out.iter_mut().zip(narrow_halves::<N>(scales, biases)) {
                *out = bf16_pair(it);
            }
        }
        Float::F16 => {
            for (out, it) in out.iter_mut().zip(narrow_halves::<N>(scales, biases)) {
                *out = f16_pair(it);
            }
        }
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
fn narrow_halves<const N: usize>(scales: &[u8], biases: &[u8]) -> [__m512i; N] {
    let mut v = [_mm512_setzero_si512(); N];
    for (k, it) in v.iter_mut().enumerate() {
        *it = pair_halves(load_32(&scales[32 * k..]), load_32(&biases[32 * k..]));
    }
    transpose_narrow(v)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
fn narrow_singles<const N: usize>(all: &[u8]) -> [__m512i; N] {
    let mut v = [_mm512_setzero_si512(); N];
    for (k, it) in v.iter_mut().enumerate() {
        *it = load_64(&all[64 * k..]);
    }
    transpose_narrow(v)
}

struct Part {
    n_groups: usize,
    rows: Range<usize>,
    group: usize,
}

impl Part {
    /// The bytes of one row's part; none for a row beyond the last.
    #[inline]
    fn bytes<'a>(&self, all: &'a [u8], row: usize, size: usize) -> &'a [u8] {
        let row = self.rows.start + row;
        if row >= self.rows.end {
            return &[];
        }
        let n = GROUPS.min(self.n_groups - self.group);
        &all[(row * self.n_groups + self.group) * size..][..n * size]
    }

    /// Transposed 16-bit scales in the lower halves, biases in the upper.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
    fn halves(&self, scales: &[u8], biases: &[u8]) -> [__m512i; GROUPS] {
        let mut rows = [_mm512_setzero_si512(); ROWS];
        for (r, it) in rows.iter_mut().enumerate() {
            let scale = load_halves(self.bytes(scales, r, 2));
            *it = pair_halves(scale, load_halves(self.bytes(biases, r, 2)));
        }
        transpose(rows)
    }

    /// Transposed 32-bit parameters.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
    fn singles(&self, all: &[u8]) -> [__m512i; GROUPS] {
        let mut rows = [_mm512_setzero_si512(); ROWS];
        for (r, it) in rows.iter_mut().enumerate() {
            *it = load_singles(self.bytes(all, r, 4));
        }
        transpose(rows)
    }
}
