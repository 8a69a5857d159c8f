//! Attention's inner loops for thirty-two vector registers, each all of a dot's
//! partial sums.

use std::arch::x86_64::*;
use std::ops::Range;

use super::views::{Mix, Scores};
use crate::cpu::kv_cache::Rows;
use crate::cpu::math::LANES;
use crate::cpu::prefetcher::Prefetcher;
use crate::cpu::vector::{first_lanes, load, load_first, store, store_first, transpose, tree_sums};

/// Queries and keys of a tile: as many sums as a vector has lanes.
const SIDE: usize = 4;

/// Keys that stay in the first cache while queries pass.
const NEAR_KEYS: usize = 16;

/// Bytes of values that do, and most values.
const NEAR_BYTES: usize = 24 << 10;
const NEAR_VALUES: usize = 64;

/// Columns that are mixed at a time.
const COLS: usize = 4 * LANES;

/// As [`super::kernels::score`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn score(
    out: Scores<'_>,
    queries: &[&[f32]],
    keys: Rows<'_>,
    prefetcher: &mut Prefetcher<'_>,
    scale: f32,
) {
    let Scores { scores, stride } = out;
    prefetcher.divide(queries.len().div_ceil(SIDE) * keys.len().div_ceil(SIDE));
    for first in (0..keys.len()).step_by(NEAR_KEYS) {
        let last = keys.len().min(first + NEAR_KEYS);
        let near = Near { keys, first, last, scale };
        for (i, queries) in queries.chunks(SIDE).enumerate() {
            near.score(queries, &mut scores[SIDE * i * stride..], stride, prefetcher);
        }
    }
}

/// Keys `first..last`.
#[derive(Clone, Copy)]
struct Near<'a> {
    keys: Rows<'a>,
    first: usize,
    last: usize,
    scale: f32,
}

impl Near<'_> {
    /// At most [`SIDE`] queries.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn score(
        self,
        q: &[&[f32]],
        scores: &mut [f32],
        stride: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let dim = q[0].len();
        // A tile of fewer queries or keys computes its last one several times.
        let mut four: [&[f32]; SIDE] = [&[]; SIDE];
        for (i, four) in four.iter_mut().enumerate() {
            *four = q[i.min(q.len() - 1)];
        }
        for j in (self.first..self.last).step_by(SIDE) {
            prefetcher.prefetch();
            let mut k: [&[f32]; SIDE] = [&[]; SIDE];
            for (r, k) in k.iter_mut().enumerate() {
                *k = self.keys.row((j + r).min(self.last - 1), dim);
            }
            let dots = _mm512_mul_ps(tree_sums(products(four, k)), _mm512_set1_ps(self.scale));
            let mut all = [0.0; LANES];
            store(&mut all, dots);
            let n = SIDE.min(self.last - j);
            for (i, dots) in all.as_chunks::<SIDE>().0[..q.len()].iter().enumerate() {
                let scores = &mut scores[i * stride + j..][..n];
                match <&mut [f32; SIDE]>::try_from(&mut *scores) {
                    Ok(scores) => *scores = *dots,
                    Err(_) => scores.copy_from_slice(&dots[..n]),
                }
            }
        }
    }
}

/// Blocks of lanes; `map` would be a call.
#[inline(always)]
fn blocks([a, b, c, d]: [&[f32]; SIDE]) -> [&[[f32; LANES]]; SIDE] {
    [a.as_chunks().0, b.as_chunks().0, c.as_chunks().0, d.as_chunks().0]
}

/// The partial sums of every key and query, key by key.
#[inline]
#[target_feature(enable = "avx512f")]
fn products(q: [&[f32]; SIDE], k: [&[f32]; SIDE]) -> [[__m512; SIDE]; SIDE] {
    let ([q0, q1, q2, q3], [k0, k1, k2, k3]) = (blocks(q), blocks(k));
    let queries_end = q[0].as_chunks::<LANES>().1;
    let mut sums = [[_mm512_setzero_ps(); SIDE]; SIDE];
    let queries = q0.iter().zip(q1).zip(q2.iter().zip(q3));
    let keys = k0.iter().zip(k1).zip(k2.iter().zip(k3));
    for (((q0, q1), (q2, q3)), ((k0, k1), (k2, k3))) in queries.zip(keys) {
        let q = [load(q0), load(q1), load(q2), load(q3)];
        for (sums, k) in sums.iter_mut().zip([k0, k1, k2, k3]) {
            let k = load(k);
            for i in 0..SIDE {
                sums[i] = _mm512_fmadd_ps(q[i], k, sums[i]);
            }
        }
    }
    if !queries_end.is_empty() {
        add_ends(&mut sums, q, k, queries_end.len());
    }
    sums
}

/// Adds the products of the last `n` floats, fewer than there are lanes. Other lanes stay as they are: adding a zero
/// product would turn -0 into 0.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_ends(sums: &mut [[__m512; SIDE]; SIDE], q: [&[f32]; SIDE], k: [&[f32]; SIDE], n: usize) {
    let end = |vector: &[f32]| load_first(&vector[vector.len() - n..]);
    let lanes = first_lanes(n);
    let mut queries = [_mm512_setzero_ps(); SIDE];
    for (query, q) in queries.iter_mut().zip(q) {
        *query = end(q);
    }
    for (sums, k) in sums.iter_mut().zip(k) {
        let k = end(k);
        for i in 0..SIDE {
            sums[i] = _mm512_mask3_fmadd_ps(queries[i], k, sums[i], lanes);
        }
    }
}

/// As [`super::kernels::mix`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn mix(
    out: Mix<'_>,
    weights: &[f32],
    stride: usize,
    values: Rows<'_>,
    prefetcher: &mut Prefetcher<'_>,
) {
    let Mix { sums, dim, totals } = out;
    add_up(totals, weights, stride, values.len());
    let near = (NEAR_BYTES / (4 * values.stride)).clamp(8, NEAR_VALUES);
    let n_panels = totals.len().div_ceil(4) * dim.div_ceil(COLS);
    prefetcher.divide(n_panels * values.len().div_ceil(near));
    for first in (0..values.len()).step_by(near) {
        let last = values.len().min(first + near);
        let (values, weights) = (values.slice(first..last), &weights[first..]);
        let mut i = 0;
        while i < totals.len() {
            let (sums, weights) = (&mut sums[i * dim..], &weights[i * stride..]);
            i += match totals.len() - i {
                1 => mix_queries::<1>(sums, dim, weights, stride, values, prefetcher),
                2 | 3 => mix_queries::<2>(sums, dim, weights, stride, values, prefetcher),
                4 | 5 | 8 => mix_queries::<4>(sums, dim, weights, stride, values, prefetcher),
                _ => mix_queries::<6>(sums, dim, weights, stride, values, prefetcher),
            };
        }
    }
}

/// Adds each query's weights to its total, by ascending position.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn add_up(totals: &mut [f32], weights: &[f32], stride: usize, n: usize) {
    let whole = n - n % LANES;
    for (g, totals) in totals.chunks_mut(LANES).enumerate() {
        let weights = |i: usize| &weights[(g * LANES + i) * stride..][..n];
        let mut sum = load_first(totals);
        for at in (0..whole).step_by(LANES) {
            // Who has no query adds zeros.
            let mut rows = [_mm512_setzero_ps(); LANES];
            for (i, row) in rows[..totals.len()].iter_mut().enumerate() {
                *row = load_first(&weights(i)[at..at + LANES]);
            }
            for weights in transpose(rows) {
                sum = _mm512_add_ps(sum, weights);
            }
        }
        store_first(totals, sum);
        for (i, total) in totals.iter_mut().enumerate() {
            for weight in &weights(i)[whole..] {
                *total += weight;
            }
        }
    }
}

/// Mixes all columns for `Q` queries, which it returns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn mix_queries<const Q: usize>(
    sums: &mut [f32],
    dim: usize,
    weights: &[f32],
    stride: usize,
    values: Rows<'_>,
    prefetcher: &mut Prefetcher<'_>,
) -> usize {
    // Of every value.
    let mut packed = [[0.0; Q]; NEAR_VALUES];
    let packed = &mut packed[..values.len()];
    for (i, weights) in weights.chunks(stride).take(Q).enumerate() {
        for (packed, weight) in packed.iter_mut().zip(weights) {
            packed[i] = *weight;
        }
    }
    let mut at = 0;
    while dim - at >= COLS {
        prefetcher.prefetch();
        mix_panel::<Q>(sums, dim, at, packed, values);
        at += COLS;
    }
    while at < dim {
        let end = dim.min(at + LANES);
        mix_vector::<Q>(sums, dim, at..end, packed, values);
        at = end;
    }
    Q
}

/// Mixes [`COLS`] columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn mix_panel<const Q: usize>(
    sums: &mut [f32],
    dim: usize,
    at: usize,
    weights: &[[f32; Q]],
    values: Rows<'_>,
) {
    const WIDE: usize = COLS / LANES;
    let mut acc = [[_mm512_setzero_ps(); WIDE]; Q];
    for i in 0..Q {
        let sums = sums[i * dim + at..][..COLS].as_chunks().0;
        for c in 0..WIDE {
            acc[i][c] = load(&sums[c]);
        }
    }
    for (j, weights) in weights.iter().enumerate() {
        let value = values.row(j, dim)[at..][..COLS].as_chunks().0;
        let mut x = [_mm512_setzero_ps(); WIDE];
        for c in 0..WIDE {
            x[c] = load(&value[c]);
        }
        for i in 0..Q {
            let weight = _mm512_set1_ps(weights[i]);
            for c in 0..WIDE {
                acc[i][c] = _mm512_fmadd_ps(weight, x[c], acc[i][c]);
            }
        }
    }
    for i in 0..Q {
        let sums = sums[i * dim + at..][..COLS].as_chunks_mut().0;
        for c in 0..WIDE {
            store(&mut sums[c], acc[i][c]);
        }
    }
}

/// Mixes the columns of a vector, or of a part of one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn mix_vector<const Q: usize>(
    sums: &mut [f32],
    dim: usize,
    cols: Range<usize>,
    weights: &[[f32; Q]],
    values: Rows<'_>,
) {
    let mut acc = [_mm512_setzero_ps(); Q];
    for i in 0..Q {
        acc[i] = load_first(&sums[i * dim..][cols.clone()]);
    }
    for (value, weights) in values.floats.chunks(values.stride).zip(weights) {
        let value = load_first(&value[cols.clone()]);
        for i in 0..Q {
            acc[i] = _mm512_fmadd_ps(_mm512_set1_ps(weights[i]), value, acc[i]);
        }
    }
    for i in 0..Q {
        store_first(&mut sums[i * dim..][cols.clone()], acc[i]);
    }
}
