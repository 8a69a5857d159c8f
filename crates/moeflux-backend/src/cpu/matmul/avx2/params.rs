//! Scales and biases of eight rows, with the rows as lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use moeflux_core::quant::{Float, MatrixView};

use super::block_rows::StepRows;
use super::lanes::Ymm;
use super::vector::{ROWS, load_16, load_32, transpose};
use crate::cpu::matmul::block_params::field;
use crate::cpu::matmul::integers::{ParamFormat, symmetric_bias};
use crate::cpu::matmul::lanes::RowBytes;
use crate::cpu::matmul::stored_params::params_of_e2m1;

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
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn load(&mut self, weight: &MatrixView<'_>, format: ParamFormat, place: &Place) {
        let MatrixView { scales, biases, .. } = weight;
        match format {
            ParamFormat::Floats(Float::BF16) => {
                let rows = |all| place.whole_rows(all, 2);
                if let (Some(scales), Some(biases)) = (rows(scales), rows(biases)) {
                    bf16_lanes(scales, &mut self.scale);
                    return bf16_lanes(biases, &mut self.bias);
                }
            }
            ParamFormat::Symmetric { scales: Float::BF16, bits } => {
                if let Some(scales) = place.whole_rows(scales, 2) {
                    bf16_lanes(scales, &mut self.scale);
                    return self.derive_biases(bits);
                }
            }
            _ => {}
        }
        self.load_rarer(weight, format, place);
    }

    /// The biases of integers of `bits` bits, where they are not stored.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn derive_biases(&mut self, bits: u8) {
        let factor = _mm256_set1_ps(symmetric_bias(bits));
        for (bias, scale) in self.bias.iter_mut().zip(&self.scale) {
            *bias = _mm256_mul_ps(*scale, factor);
        }
    }

    /// Apart, so that the usual case stays short.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn load_rarer(&mut self, weight: &MatrixView<'_>, format: ParamFormat, place: &Place) {
        match format {
            ParamFormat::Floats(float) => {
                self.scale = floats(float, weight.scales, place);
                self.bias = floats(float, weight.biases, place);
            }
            ParamFormat::Symmetric { scales, bits } => {
                self.scale = floats(scales, weight.scales, place);
                self.derive_biases(bits);
            }
            ParamFormat::OfE2M1(small) => {
                let words = place.byte_words(weight.scales);
                for g in 0..GROUPS {
                    let byte = field(Ymm::new(), words[g / 4], g % 4 * 8, 8);
                    [self.scale[g], self.bias[g]] = params_of_e2m1(Ymm::new(), small, byte);
                }
            }
        }
    }
}

/// Floats at `place`; lanes are rows.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn floats(float: Float, all: &[u8], place: &Place) -> [__m256; GROUPS] {
    match float {
        Float::BF16 => place.tile(all, 2, |row| bf16(row)),
        Float::F16 => place.tile(all, 2, |row| f16(row)),
        Float::F32 => place.tile(all, 4, |row| f32s(row)),
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

    /// What is stored here in `size` bytes each, eight groups of a row converted by `convert`; lanes
    /// are rows.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn tile(&self, all: &[u8], size: usize, convert: impl Fn(&[u8]) -> __m256) -> [__m256; GROUPS] {
        let mut padded = [[0u8; GROUPS * 4]; ROWS];
        let whole = self.whole_rows(all, size);
        if whole.is_none() {
            self.pad(all, size, &mut padded);
        }
        let mut tile = [_mm256_setzero_ps(); ROWS];
        for (r, (out, padded)) in tile.iter_mut().zip(&padded).enumerate() {
            *out = convert(whole.as_ref().map_or(&padded[..], |rows| rows.row(r)));
        }
        transpose(tile)
    }

    /// A byte for each group of the tile: the first four of each row, and the others.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn byte_words(&self, all: &[u8]) -> [__m256i; 2] {
        let mut padded = [[0u8; GROUPS * 4]; ROWS];
        let whole = self.whole_rows(all, 1);
        if whole.is_none() {
            self.pad(all, 1, &mut padded);
        }
        let mut rows = [[0u8; GROUPS]; ROWS];
        for (r, (out, padded)) in rows.iter_mut().zip(&padded).enumerate() {
            let bytes = whole.as_ref().map_or(&padded[..], |rows| rows.row(r));
            *out = *bytes.first_chunk().expect("eight bytes");
        }
        let rows = StepRows(rows.each_ref());
        [rows.word(Ymm::new(), 0), rows.word(Ymm::new(), 4)]
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
