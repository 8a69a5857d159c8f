//! Scales and biases of eight rows, with the rows as lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use moeflux_core::quant::{Float, MatrixView};

use super::ROWS;
use super::vector::{load_16, load_32, transpose};

/// Groups of one tile.
pub(super) const GROUPS: usize = 8;

/// Scale and bias of each group of a tile; lanes are rows.
pub(super) struct ParamTile {
    pub(super) scale: [__m256; GROUPS],
    pub(super) bias: [__m256; GROUPS],
}

/// Where the parameters of a tile lie.
#[derive(Clone)]
pub(super) struct Place {
    /// At most eight; lanes of absent ones repeat the last.
    pub(super) rows: Range<usize>,
    /// The first of eight groups; what lies beyond a row's last is anything.
    pub(super) group: usize,
    /// Groups of a row.
    pub(super) n_groups: usize,
}

/// The parameters at `place`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn param_tile(weight: &MatrixView<'_>, format: Float, place: &Place) -> ParamTile {
    if format == Float::BF16 {
        return ParamTile {
            scale: bf16_lanes(place.rows::<2, _>(weight.scales, |it| load_16(it))),
            bias: bf16_lanes(place.rows::<2, _>(weight.biases, |it| load_16(it))),
        };
    }
    rarer_param_tile(weight, format, place)
}

/// Apart, so that the usual format stays short.
#[inline(never)]
#[target_feature(enable = "avx2,f16c")]
fn rarer_param_tile(weight: &MatrixView<'_>, format: Float, place: &Place) -> ParamTile {
    let lanes = |all| match format {
        Float::F32 => transpose(place.rows::<4, _>(all, |it| f32s(it))),
        Float::F16 => transpose(place.rows::<2, _>(all, |it| f16(it))),
        Float::BF16 => bf16_lanes(place.rows::<2, _>(all, |it| load_16(it))),
    };
    ParamTile { scale: lanes(weight.scales), bias: lanes(weight.biases) }
}

/// Vector `g` of the result holds element `g` of every row.
#[inline]
#[target_feature(enable = "avx2")]
fn bf16_lanes(rows: [__m128i; ROWS]) -> [__m256; GROUPS] {
    // Rows `r` and `r + 4` go through the same steps, in the halves of a vector.
    let both = |r: usize| _mm256_set_m128i(rows[r + 4], rows[r]);
    let (a, b, c, d) = (both(0), both(1), both(2), both(3));
    let (ab_low, ab_high) = (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
    let (cd_low, cd_high) = (_mm256_unpacklo_epi16(c, d), _mm256_unpackhi_epi16(c, d));
    let pairs = [
        _mm256_unpacklo_epi32(ab_low, cd_low),
        _mm256_unpackhi_epi32(ab_low, cd_low),
        _mm256_unpacklo_epi32(ab_high, cd_high),
        _mm256_unpackhi_epi32(ab_high, cd_high),
    ];
    let zero = _mm256_setzero_si256();
    let mut out = [_mm256_setzero_ps(); GROUPS];
    for (out, pair) in out.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
        // The upper half of a single.
        out[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, pair));
        out[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, pair));
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn f16(bytes: &[u8]) -> __m256 {
    _mm256_cvtph_ps(load_16(bytes))
}

#[inline]
#[target_feature(enable = "avx2")]
fn f32s(bytes: &[u8]) -> __m256 {
    _mm256_castsi256_ps(load_32(bytes))
}

impl Place {
    /// Eight elements of `SIZE` bytes of every row, as `load` gives them.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn rows<const SIZE: usize, V: Copy>(&self, all: &[u8], load: impl Fn(&[u8]) -> V) -> [V; ROWS] {
        let row_bytes = self.n_groups * SIZE;
        let stored = &all[self.rows.start * row_bytes + self.group * SIZE..];
        // Elements behind a row's last may be those of the next row.
        if self.rows.len() < ROWS || stored.len() < (ROWS - 1) * row_bytes + GROUPS * SIZE {
            return self.padded_rows::<SIZE, V>(stored, load);
        }
        let row = |r: usize| {
            // SAFETY: this is the end of the last row at most, which lies inside.
            unsafe { stored.get_unchecked(r * row_bytes..r * row_bytes + GROUPS * SIZE) }
        };
        let mut out = [load(row(0)); ROWS];
        for (r, it) in out.iter_mut().enumerate().skip(1) {
            *it = load(row(r));
        }
        out
    }

    /// As [`Place::rows`], where rows are missing or memory ends.
    #[cold]
    #[inline(never)]
    #[target_feature(enable = "avx2,f16c")]
    fn padded_rows<const SIZE: usize, V: Copy>(
        &self,
        stored: &[u8],
        load: impl Fn(&[u8]) -> V,
    ) -> [V; ROWS] {
        let (row_bytes, last) = (self.n_groups * SIZE, self.rows.len() - 1);
        let n = GROUPS.min(self.n_groups - self.group) * SIZE;
        let mut padded = [[0u8; GROUPS * 4]; ROWS];
        for (r, it) in padded.iter_mut().enumerate() {
            it[..n].copy_from_slice(&stored[r.min(last) * row_bytes..][..n]);
        }
        let mut out = [load(&padded[0]); ROWS];
        for (it, padded) in out.iter_mut().zip(&padded).skip(1) {
            *it = load(padded);
        }
        out
    }
}
