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
    match format {
        Float::BF16 => ParamTile {
            scale: place.tile::<2>(weight.scales, |it| bf16(it)),
            bias: place.tile::<2>(weight.biases, |it| bf16(it)),
        },
        Float::F16 => ParamTile {
            scale: place.tile::<2>(weight.scales, |it| f16(it)),
            bias: place.tile::<2>(weight.biases, |it| f16(it)),
        },
        Float::F32 => ParamTile {
            scale: place.tile::<4>(weight.scales, |it| f32s(it)),
            bias: place.tile::<4>(weight.biases, |it| f32s(it)),
        },
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

impl Place {
    /// `decode` takes eight elements of `SIZE` bytes.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn tile<const SIZE: usize>(
        &self,
        all: &[u8],
        decode: impl Fn(&[u8]) -> __m256,
    ) -> [__m256; GROUPS] {
        let mut tile = [_mm256_setzero_ps(); ROWS];
        let row_bytes = self.n_groups * SIZE;
        let last = self.rows.len() - 1;
        let all = &all[self.rows.start * row_bytes + self.group * SIZE..];
        if all.len() >= last * row_bytes + GROUPS * SIZE {
            for (r, it) in tile.iter_mut().enumerate() {
                *it = decode(&all[r.min(last) * row_bytes..][..GROUPS * SIZE]);
            }
        } else {
            let n = GROUPS.min(self.n_groups - self.group) * SIZE;
            for (r, it) in tile.iter_mut().enumerate() {
                let mut padded = [0u8; GROUPS * 4];
                padded[..n].copy_from_slice(&all[r.min(last) * row_bytes..][..n]);
                *it = decode(&padded);
            }
        }
        transpose(tile)
    }
}
