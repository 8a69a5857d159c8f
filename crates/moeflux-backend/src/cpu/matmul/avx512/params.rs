//! Scales and biases of sixteen rows, with the rows as lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use moeflux_core::quant::Float;

use super::ROWS;
use super::transpose::transpose;
use super::vector::{load_halves, load_singles};
use crate::cpu::matmul::IntegerProduct;

/// Groups of one tile.
pub(super) const GROUPS: usize = 16;

/// Scale and bias of each group of a tile; lanes are rows.
pub(super) struct ParamTile {
    pub(super) scale: [__m512; GROUPS],
    pub(super) bias: [__m512; GROUPS],
}

/// The parameters of at most 16 `rows` and at most 16 groups from `group` on;
/// what is absent is zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")]
pub(super) fn param_tile(
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
            let high = _mm512_set1_epi32(0xffff_0000u32 as i32);
            for ((scale, bias), it) in params.zip(part.halves(scales, biases)) {
                *scale = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(it));
                *bias = _mm512_castsi512_ps(_mm512_and_si512(it, high));
            }
        }
        Float::F16 => {
            for ((scale, bias), it) in params.zip(part.halves(scales, biases)) {
                *scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(it));
                *bias = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(it)));
            }
        }
    }
    out
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
            let scale = _mm512_cvtepu16_epi32(load_halves(self.bytes(scales, r, 2)));
            let bias = _mm512_cvtepu16_epi32(load_halves(self.bytes(biases, r, 2)));
            *it = _mm512_or_si512(scale, _mm512_slli_epi32::<16>(bias));
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
