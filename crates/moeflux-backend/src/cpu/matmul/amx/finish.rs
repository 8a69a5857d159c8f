//! What the contract does with dots: two accumulators for each output, fed by
//! the groups in ascending order. Lanes are rows of activations.

use std::arch::x86_64::*;

use super::tiles::{ROWS, Sums};
use crate::cpu::matmul::avx512::transpose::transpose;
use crate::cpu::matmul::avx512::vector::{load_64, store_floats};
use crate::cpu::vector::Line;

/// One accumulator of each row of a tile of weights.
pub(super) type Accumulators = [__m512; ROWS];

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_all(from: &[Line; ROWS]) -> Accumulators {
    let mut out = [_mm512_setzero_ps(); ROWS];
    for (out, it) in out.iter_mut().zip(from) {
        *out = load(it);
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_all(all: Accumulators, to: &mut [Line; ROWS]) {
    for (to, it) in to.iter_mut().zip(all) {
        store_floats(&mut to.0, it);
    }
}

/// Adds the dots of a group: `s` has the activations' scales, `scales` those
/// of the matrix's rows.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) fn add_dots<const LIMBS: usize>(
    mut acc: Accumulators,
    dots: &[Sums; 2],
    s: &Line,
    scales: &Line,
) -> Accumulators {
    let s = load(s);
    for (r, acc) in acc.iter_mut().enumerate() {
        let scale = _mm512_mul_ps(_mm512_set1_ps(scales.0[r]), s);
        let d = if LIMBS == 1 {
            dot(&dots[0], r)
        } else {
            two_limbs(dot(&dots[0], r), dot(&dots[1], r))
        };
        *acc = _mm512_fmadd_ps(d, scale, *acc);
    }
    acc
}

/// The accumulators of the biases; `st` has the activations' scales times
/// sums.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn biases(all: &[Line], st: &[Line]) -> Accumulators {
    let mut acc = [_mm512_setzero_ps(); ROWS];
    for (biases, st) in all.iter().zip(st) {
        let st = load(st);
        for (acc, bias) in acc.iter_mut().zip(&biases.0) {
            *acc = _mm512_fmadd_ps(_mm512_set1_ps(*bias), st, *acc);
        }
    }
    acc
}

/// The outputs of each row of activations, rows of the matrix next to each
/// other.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) fn totals(
    acc: &[Line; ROWS],
    all: &[Line],
    st: &[Line],
    mut put: impl FnMut(usize, __m512),
) {
    let biases = biases(all, st);
    let mut rows = [_mm512_setzero_si512(); ROWS];
    for r in 0..ROWS {
        rows[r] = _mm512_castps_si512(_mm512_add_ps(load(&acc[r]), biases[r]));
    }
    for (x_row, it) in transpose(rows).into_iter().enumerate() {
        put(x_row, _mm512_castsi512_ps(it));
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(it: &Line) -> __m512 {
    _mm512_castsi512_ps(load_64(bytemuck::cast_slice(&it.0)))
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
fn two_limbs(high: __m512, low: __m512) -> __m512 {
    _mm512_fmadd_ps(high, _mm512_set1_ps(256.0), low)
}
