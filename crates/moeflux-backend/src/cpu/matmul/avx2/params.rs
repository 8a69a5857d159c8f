//! Scales and biases of eight rows, with the rows as lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use moeflux_core::quant::{Float, MatrixView};

use super::vector::{ROWS, load_16, load_32, transpose};
use crate::cpu::matmul::integers::{BIAS_OF_E8M0, ParamFormat};

/// Groups of one tile.
pub(super) const GROUPS: usize = 8;

/// Scale and bias of each group of a tile; lanes are rows.
pub(super) struct ParamTile {
    pub(super) scale: [__m256; GROUPS],
    pub(super) bias: [__m256; GROUPS],
}

/// Where the parameters of a tile are stored.
#[derive(Clone)]
pub(super) struct Place {
    /// At most eight; lanes of absent ones repeat the last.
    pub(super) rows: Range<usize>,
    /// The first of eight groups; those beyond a row's last are unspecified.
    pub(super) group: usize,
    /// Groups of a row.
    pub(super) n_groups: usize,
}

impl ParamTile {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn zero() -> ParamTile {
        let zero = [_mm256_setzero_ps(); GROUPS];
        ParamTile { scale: zero, bias: zero }
    }

    /// Takes the parameters at `place`.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn load(&mut self, weight: &MatrixView<'_>, format: ParamFormat, place: &Place) {
        let MatrixView { scales, biases, .. } = weight;
        let is_usual = format == ParamFormat::Floats(Float::BF16) && place.rows.len() == ROWS;
        let rows = |all| is_usual.then(|| place.whole_rows(all, 2)).flatten();
        match (rows(scales), rows(biases)) {
            (Some(scales), Some(biases)) => {
                bf16_lanes(scales, &mut self.scale);
                bf16_lanes(biases, &mut self.bias);
            }
            _ => self.load_rarer(weight, format, place),
        }
    }

    /// Apart, so that the usual case stays short.
    #[inline(never)]
    #[target_feature(enable = "avx2,f16c")]
    fn load_rarer(&mut self, weight: &MatrixView<'_>, format: ParamFormat, place: &Place) {
        let format = match format {
            ParamFormat::Floats(float) => float,
            ParamFormat::E8M0 => return self.load_powers(weight.scales, place),
        };
        for (all, out) in [(weight.scales, &mut self.scale), (weight.biases, &mut self.bias)] {
            let mut padded = [[0u8; GROUPS * 4]; ROWS];
            let whole = place.whole_rows(all, format.bytes());
            if whole.is_none() {
                place.pad(all, format.bytes(), &mut padded);
            }
            let mut tile = [_mm256_setzero_ps(); ROWS];
            for (r, (it, padded)) in tile.iter_mut().zip(&padded).enumerate() {
                let row = whole.as_ref().map_or(&padded[..], |it| it.row(r));
                *it = match format {
                    Float::BF16 => bf16(row),
                    Float::F16 => f16(row),
                    Float::F32 => f32s(row),
                };
            }
            *out = transpose(tile);
        }
    }

    /// Scales that are stored as powers of two, and the biases that follow from them.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn load_powers(&mut self, stored: &[u8], place: &Place) {
        let mut padded = [[0u8; GROUPS * 4]; ROWS];
        let whole = place.whole_rows(stored, 1);
        if whole.is_none() {
            place.pad(stored, 1, &mut padded);
        }
        let mut tile = [_mm256_setzero_ps(); ROWS];
        for (r, (it, padded)) in tile.iter_mut().zip(&padded).enumerate() {
            *it = powers(whole.as_ref().map_or(&padded[..], |it| it.row(r)));
        }
        for (g, power) in transpose(tile).into_iter().enumerate() {
            self.scale[g] = _mm256_mul_ps(power, _mm256_set1_ps(0.5));
            self.bias[g] = _mm256_mul_ps(power, _mm256_set1_ps(BIAS_OF_E8M0));
        }
    }
}

/// Eight groups of eight rows at equal distances.
struct WholeRows<'a> {
    /// Invariant: the last row's groups are inside.
    stored: &'a [u8],
    row_bytes: usize,
    /// Of eight groups.
    n_bytes: usize,
}

impl Place {
    /// All rows, where there are eight and memory does not end before that.
    #[inline]
    fn whole_rows<'a>(&self, all: &'a [u8], size: usize) -> Option<WholeRows<'a>> {
        let (row_bytes, n_bytes) = (self.n_groups * size, GROUPS * size);
        let stored = &all[self.rows.start * row_bytes + self.group * size..];
        let is_whole = self.rows.len() == ROWS && stored.len() >= (ROWS - 1) * row_bytes + n_bytes;
        is_whole.then_some(WholeRows { stored, row_bytes, n_bytes })
    }

    /// Copies the groups that there are.
    fn pad(&self, all: &[u8], size: usize, out: &mut [[u8; GROUPS * 4]; ROWS]) {
        let (row_bytes, last) = (self.n_groups * size, self.rows.len() - 1);
        let n_bytes = GROUPS.min(self.n_groups - self.group) * size;
        let stored = &all[self.rows.start * row_bytes + self.group * size..];
        for (r, out) in out.iter_mut().enumerate() {
            out[..n_bytes].copy_from_slice(&stored[r.min(last) * row_bytes..][..n_bytes]);
        }
    }
}

impl<'a> WholeRows<'a> {
    #[inline]
    fn row(&self, r: usize) -> &'a [u8] {
        assert!(r < ROWS, "row {r} of eight");
        let at = r * self.row_bytes;
        // SAFETY: row `r` ends where the last one does or before, which is inside.
        unsafe { self.stored.get_unchecked(at..at + self.n_bytes) }
    }
}

/// Vector `g` of the result holds element `g` of every row.
#[inline]
#[target_feature(enable = "avx2")]
fn bf16_lanes(rows: WholeRows<'_>, out: &mut [__m256; GROUPS]) {
    // Rows `r` and `r + 4` go through the same steps, in the halves of a vector.
    let both = |r: usize| _mm256_set_m128i(load_16(rows.row(r + 4)), load_16(rows.row(r)));
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
    for (out, pair) in out.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
        // The upper half of a single.
        out[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, pair));
        out[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, pair));
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn bf16(bytes: &[u8]) -> __m256 {
    let wide = _mm256_cvtepu16_epi32(load_16(bytes));
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
}

/// What eight bytes of E8M0 stand for.
#[inline]
#[target_feature(enable = "avx2")]
fn powers(bytes: &[u8]) -> __m256 {
    let eight = i64::from_le_bytes(*bytes.first_chunk().expect("eight bytes"));
    let codes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight));
    // 2^-127 is below the smallest normal.
    let smallest = _mm256_set1_epi32(1 << 22);
    let power = _mm256_max_epu32(_mm256_slli_epi32::<23>(codes), smallest);
    let is_nan = _mm256_cmpeq_epi32(codes, _mm256_set1_epi32(255));
    _mm256_castsi256_ps(_mm256_blendv_epi8(power, _mm256_set1_epi32(0x7fc0_0000), is_nan))
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
