//! What the contract does with dots: two accumulators for each output, fed by
//! the groups in ascending order. Lanes are rows of activations.

use std::arch::x86_64::*;
use std::ops::Range;

use super::Chunk;
use super::input::{Lanes, X_ROWS};
use super::tiles::{ROW_TILES, ROWS, Sums};
use super::{BLOCK_ROWS, IntegerProduct};
use crate::cpu::matmul::avx512::params::{GROUPS, param_tile};
use crate::cpu::matmul::avx512::transpose::transpose;
use crate::cpu::matmul::avx512::vector::{load_64, store_floats};

/// Rows of the matrix whose accumulators are in registers together.
const HALF: usize = ROWS / 2;

/// Scales and biases of a block of the matrix.
#[derive(Default)]
pub(super) struct Params {
    n_groups: usize,
    /// (row tiles, groups), rows beside each other.
    scales: Vec<Lanes>,
    biases: Vec<Lanes>,
}

impl Params {
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) fn fill(&mut self, product: &IntegerProduct<'_>, rows: Range<usize>) {
        self.n_groups = product.n_groups();
        self.scales.resize(ROW_TILES * self.n_groups, Lanes::ZERO);
        self.biases.resize(ROW_TILES * self.n_groups, Lanes::ZERO);
        for (tile, row) in rows.clone().step_by(ROWS).enumerate() {
            let rows = row..rows.end.min(row + ROWS);
            for group in (0..self.n_groups).step_by(GROUPS) {
                let params = param_tile(product, rows.clone(), group);
                let n = GROUPS.min(self.n_groups - group);
                let at = tile * self.n_groups + group;
                for (out, it) in self.scales[at..at + n].iter_mut().zip(params.scale) {
                    store_floats(&mut out.0, it);
                }
                for (out, it) in self.biases[at..at + n].iter_mut().zip(params.bias) {
                    store_floats(&mut out.0, it);
                }
            }
        }
    }

    fn of_tile<'a>(&self, all: &'a [Lanes], tile: usize) -> &'a [Lanes] {
        &all[tile * self.n_groups..][..self.n_groups]
    }
}

/// One accumulator of each output of a block with `TILES` tiles of
/// activations.
pub(super) struct Accumulators<const TILES: usize>([[[__m512; TILES]; HALF]; BLOCK_ROWS / HALF]);

impl<const TILES: usize> Accumulators<TILES> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn zero() -> Self {
        Accumulators([[[_mm512_setzero_ps(); TILES]; HALF]; BLOCK_ROWS / HALF])
    }

    /// Adds the dots of some groups; `s` has the activations' scales.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) fn add_dots<const DIGITS: usize>(
        &mut self,
        n_row_tiles: usize,
        params: &Params,
        s: &[&[Lanes]; TILES],
        groups: Range<usize>,
        dots: &Chunk,
    ) {
        for (half, acc) in self.0[..2 * n_row_tiles].iter_mut().enumerate() {
            let (tile, row) = (half / 2, half % 2 * HALF);
            let scales = &params.of_tile(&params.scales, tile)[groups.clone()];
            // A copy whose address nobody takes stays in registers.
            let mut sums = *acc;
            for (i, (scales, dots)) in scales.iter().zip(dots).enumerate() {
                let s = lanes_of(s, groups.start + i);
                let (dots, scales) = (&dots[tile], scales.0.as_chunks::<HALF>().0[half % 2]);
                for r in 0..HALF {
                    let scale = _mm512_set1_ps(scales[r]);
                    for t in 0..TILES {
                        let d = if DIGITS == 1 {
                            dot(&dots[t], row + r)
                        } else {
                            two_digits(dot(&dots[0], row + r), dot(&dots[1], row + r))
                        };
                        sums[r][t] = _mm512_fmadd_ps(d, _mm512_mul_ps(scale, s[t]), sums[r][t]);
                    }
                }
            }
            *acc = sums;
        }
    }

    /// The accumulators of the biases; `st` has the activations' scales times
    /// sums.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) fn biases(
        &self,
        n_row_tiles: usize,
        params: &Params,
        st: &[&[Lanes]; TILES],
    ) -> Self {
        let mut out = Self::zero();
        for (half, acc) in out.0[..2 * n_row_tiles].iter_mut().enumerate() {
            let biases = params.of_tile(&params.biases, half / 2);
            let mut sums = *acc;
            for (g, biases) in biases.iter().enumerate() {
                let st = lanes_of(st, g);
                let biases = biases.0.as_chunks::<HALF>().0[half % 2];
                for r in 0..HALF {
                    let bias = _mm512_set1_ps(biases[r]);
                    for t in 0..TILES {
                        sums[r][t] = _mm512_fmadd_ps(bias, st[t], sums[r][t]);
                    }
                }
            }
            *acc = sums;
        }
        out
    }

    /// The outputs, (tiles, rows of activations, rows of the matrix).
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) fn totals(&self, biases: Self) -> [[[f32; BLOCK_ROWS]; X_ROWS]; TILES] {
        let mut out = [[[0.0; BLOCK_ROWS]; X_ROWS]; TILES];
        for (t, out) in out.iter_mut().enumerate() {
            for tile in 0..ROW_TILES {
                let mut rows = [_mm512_setzero_si512(); ROWS];
                for (r, it) in rows.iter_mut().enumerate() {
                    let (half, r) = (2 * tile + r / HALF, r % HALF);
                    let total = _mm512_add_ps(self.0[half][r][t], biases.0[half][r][t]);
                    *it = _mm512_castps_si512(total);
                }
                for (out, it) in out.iter_mut().zip(transpose(rows)) {
                    let out = &mut out.as_chunks_mut::<ROWS>().0[tile];
                    store_floats(out, _mm512_castsi512_ps(it));
                }
            }
        }
        out
    }
}

/// One group of every tile.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes_of<const TILES: usize>(all: &[&[Lanes]; TILES], group: usize) -> [__m512; TILES] {
    let mut out = [_mm512_setzero_ps(); TILES];
    for (out, all) in out.iter_mut().zip(all) {
        *out = _mm512_castsi512_ps(load_64(bytemuck::cast_slice(&all[group].0)));
    }
    out
}

/// One row of a tile.
#[inline]
#[target_feature(enable = "avx512f")]
fn dot(sums: &Sums, row: usize) -> __m512 {
    _mm512_cvtepi32_ps(load_64(bytemuck::cast_slice(&sums.0[row])))
}

/// `256 * high + low`, rounded once as the sum of integers would be: both are
/// below 2^24, so they are exact.
#[inline]
#[target_feature(enable = "avx512f,fma")]
fn two_digits(high: __m512, low: __m512) -> __m512 {
    _mm512_fmadd_ps(high, _mm512_set1_ps(256.0), low)
}
