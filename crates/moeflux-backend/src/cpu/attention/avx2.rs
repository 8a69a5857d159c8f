//! Attention's inner loops for sixteen vector registers.
//!
//! A dot's sixteen partial sums are two halves that never meet before the last
//! addition, so one pass over a tile of queries and keys keeps twelve of the
//! lower halves in registers, and a second pass the upper ones.

use std::arch::x86_64::*;

use super::views::{Mix, Scores};
use crate::cpu::eights::{load, store, tree_sums};
use crate::cpu::kv_cache::{PAGE_POSITIONS, Rows};
use crate::cpu::math::LANES;
use crate::cpu::prefetcher::Prefetcher;

/// Floats of a vector: half of a dot's partial sums.
const HALF: usize = 8;

/// Queries of a tile, at most.
const QUERIES: usize = 3;

/// Keys of a tile.
const KEYS: usize = 4;

/// Keys that stay in the first cache while queries pass.
const NEAR_KEYS: usize = 16;

/// Columns of values mixed at a time.
const COLS: usize = 16;

/// Queries from which on it pays to copy columns of values together: rows are
/// whole pages apart and drive each other out of the first cache.
const PACKED_QUERIES: usize = 4;

/// As [`super::kernels::score`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn score(
    out: Scores<'_>,
    queries: &[&[f32]],
    keys: Rows<'_>,
    prefetcher: &mut Prefetcher<'_>,
    scale: f32,
) {
    let Scores { scores, stride } = out;
    prefetcher.divide(queries.len().div_ceil(QUERIES) * keys.len().div_ceil(KEYS));
    for first in (0..keys.len()).step_by(NEAR_KEYS) {
        let last = keys.len().min(first + NEAR_KEYS);
        let near = Near { keys, first, last, scale };
        for (i, queries) in queries.chunks(QUERIES).enumerate() {
            let scores = &mut scores[QUERIES * i * stride..];
            match *queries {
                [a, b, c] => near.score([a, b, c], scores, stride, prefetcher),
                [a, b] => near.score([a, b], scores, stride, prefetcher),
                [a] => near.score([a], scores, stride, prefetcher),
                _ => unreachable!("chunks have one to three elements"),
            }
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
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn score<const Q: usize>(
        self,
        q: [&[f32]; Q],
        scores: &mut [f32],
        stride: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let dim = q[0].len();
        for j in (self.first..self.last).step_by(KEYS) {
            prefetcher.prefetch();
            // A tile of fewer keys computes its last one several times.
            let mut k: [&[f32]; KEYS] = [&[]; KEYS];
            for (r, k) in k.iter_mut().enumerate() {
                *k = self.keys.row((j + r).min(self.last - 1), dim);
            }
            let lower = products::<Q, 0>(q, k);
            let upper = products::<Q, 1>(q, k);
            let n = KEYS.min(self.last - j);
            for i in 0..Q {
                let dots = _mm_mul_ps(tree_sums(lower[i], upper[i]), _mm_set1_ps(self.scale));
                let mut four = [0.0; KEYS];
                // SAFETY: four elements are writable, and the store needs no alignment.
                unsafe { _mm_storeu_ps(four.as_mut_ptr(), dots) };
                let scores = &mut scores[i * stride + j..][..n];
                match <&mut [f32; KEYS]>::try_from(&mut *scores) {
                    Ok(scores) => *scores = four,
                    Err(_) => scores.copy_from_slice(&four[..n]),
                }
            }
        }
    }
}

/// Blocks of lanes.
#[inline(always)]
fn blocks<const N: usize>(vectors: [&[f32]; N], n: usize) -> [&[[f32; LANES]]; N] {
    vectors.map(|vector| &vector.as_chunks::<LANES>().0[..n])
}

/// The lower or the upper halves of the partial sums of every query and key.
///
/// Inlined twice into one function, one pass keeps its sums in memory.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
fn products<const Q: usize, const UPPER: usize>(
    q: [&[f32]; Q],
    k: [&[f32]; KEYS],
) -> [[__m256; KEYS]; Q] {
    let n = q[0].len() / LANES;
    let (whole_q, k_blocks) = (blocks(q, n), blocks(k, n));
    let mut sums = [[_mm256_setzero_ps(); KEYS]; Q];
    for c in 0..n {
        let mut x = [_mm256_setzero_ps(); Q];
        for i in 0..Q {
            x[i] = load(&whole_q[i][c].as_chunks().0[UPPER]);
        }
        for r in 0..KEYS {
            let y = load(&k_blocks[r][c].as_chunks().0[UPPER]);
            for i in 0..Q {
                sums[i][r] = _mm256_fmadd_ps(x[i], y, sums[i][r]);
            }
        }
    }
    let end = n * LANES + UPPER * HALF;
    if end < q[0].len() {
        add_ends(&mut sums, q, k, end);
    }
    sums
}

/// Adds the products of the floats from `start` on that have a lane of these halves. Other lanes stay as they are:
/// adding a zero product would turn -0 into 0.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_ends<const Q: usize>(
    sums: &mut [[__m256; KEYS]; Q],
    q: [&[f32]; Q],
    k: [&[f32]; KEYS],
    start: usize,
) {
    let n = HALF.min(q[0].len() - start);
    let mut lanes = [0; HALF];
    lanes[..n].fill(-1);
    let [a, b, c, d, e, f, g, h] = lanes;
    let lanes = _mm256_setr_epi32(a, b, c, d, e, f, g, h);
    // SAFETY: the mask lets only the slice's own elements be read.
    let end =
        |vector: &[f32]| unsafe { _mm256_maskload_ps(vector[start..start + n].as_ptr(), lanes) };
    let queries = q.map(end);
    for (r, k) in k.into_iter().enumerate() {
        let k = end(k);
        for i in 0..Q {
            let sum = _mm256_fmadd_ps(queries[i], k, sums[i][r]);
            sums[i][r] = _mm256_blendv_ps(sums[i][r], sum, _mm256_castsi256_ps(lanes));
        }
    }
}

/// As [`super::kernels::mix`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn mix(
    out: Mix<'_>,
    weights: &[f32],
    stride: usize,
    values: Rows<'_>,
    prefetcher: &mut Prefetcher<'_>,
) {
    let Mix { sums, dim, totals } = out;
    let n = values.len();
    prefetcher.divide(dim.div_ceil(COLS) * totals.len().div_ceil(4));
    assert!(n <= PAGE_POSITIONS, "a block is inside a page");
    for (i, totals) in totals.chunks_mut(HALF).enumerate() {
        add_up(totals, &weights[i * HALF * stride..], stride, n);
    }
    let mut packed = [0.0; PAGE_POSITIONS * COLS];
    for at in (0..dim).step_by(COLS) {
        let cols = COLS.min(dim - at);
        let panel = if totals.len() >= PACKED_QUERIES || cols < COLS {
            pack(&mut packed, values, at, cols);
            Panel { floats: &packed[..n * COLS], stride: COLS, n }
        } else {
            Panel { floats: &values.floats[at..], stride: values.stride, n }
        };
        let mut i = 0;
        while i < totals.len() {
            let sums = Sums { sums: &mut sums[i * dim + at..], dim, cols };
            let weights = &weights[i * stride..];
            let left = totals.len() - i;
            prefetcher.prefetch();
            i += match left {
                1 => mix_panel::<1>(sums, weights, stride, panel),
                2 | 3 => mix_panel::<2>(sums, weights, stride, panel),
                4 | 5 | 8 => mix_panel::<4>(sums, weights, stride, panel),
                _ => mix_panel::<6>(sums, weights, stride, panel),
            };
        }
    }
}

/// Adds each query's weights to its total, by ascending position.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_up(totals: &mut [f32], weights: &[f32], stride: usize, n: usize) {
    if let Ok(totals) = <&mut [f32; HALF]>::try_from(&mut *totals) {
        let mut sums = *totals;
        let row = |i: usize| &weights[i * stride..][..n];
        let rows = [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)];
        #[expect(clippy::needless_range_loop, reason = "all totals advance together")]
        for j in 0..n {
            for i in 0..HALF {
                sums[i] += rows[i][j];
            }
        }
        *totals = sums;
        return;
    }
    for (i, total) in totals.iter_mut().enumerate() {
        for weight in &weights[i * stride..][..n] {
            *total += weight;
        }
    }
}

/// Copies `cols` columns of every value together and fills up with zeros.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn pack(packed: &mut [f32], values: Rows<'_>, at: usize, cols: usize) {
    let rows = packed.as_chunks_mut::<COLS>().0;
    for (packed, value) in rows.iter_mut().zip(values.floats.chunks(values.stride)) {
        *packed = padded(&value[at..at + cols]);
    }
}

/// Some columns of the sums of some queries, `dim` apart.
struct Sums<'a> {
    sums: &'a mut [f32],
    dim: usize,
    cols: usize,
}

/// [`COLS`] columns of some values.
#[derive(Clone, Copy)]
struct Panel<'a> {
    floats: &'a [f32],
    /// From one value to the next.
    stride: usize,
    /// Number of values.
    n: usize,
}

/// Mixes [`COLS`] columns for `Q` queries, which it returns.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn mix_panel<const Q: usize>(
    out: Sums<'_>,
    weights: &[f32],
    stride: usize,
    panel: Panel<'_>,
) -> usize {
    let Sums { sums, dim, cols } = out;
    let n = panel.n;
    let mut acc = [[_mm256_setzero_ps(); 2]; Q];
    let mut rows: [&[f32]; Q] = [&[]; Q];
    for i in 0..Q {
        let sum = padded(&sums[i * dim..][..cols]);
        let halves = sum.as_chunks().0;
        acc[i] = [load(&halves[0]), load(&halves[1])];
        rows[i] = &weights[i * stride..][..n];
    }
    #[expect(clippy::needless_range_loop, reason = "`j` is a row of the panel as well")]
    for j in 0..n {
        let value = panel.floats[j * panel.stride..][..COLS].as_chunks().0;
        let (low, high) = (load(&value[0]), load(&value[1]));
        for i in 0..Q {
            let weight = _mm256_set1_ps(rows[i][j]);
            acc[i][0] = _mm256_fmadd_ps(weight, low, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(weight, high, acc[i][1]);
        }
    }
    for i in 0..Q {
        let mut sum = [0.0; COLS];
        let halves = sum.as_chunks_mut().0;
        store(&mut halves[0], acc[i][0]);
        store(&mut halves[1], acc[i][1]);
        let sums = &mut sums[i * dim..][..cols];
        match <&mut [f32; COLS]>::try_from(&mut *sums) {
            Ok(sums) => *sums = sum,
            Err(_) => sums.copy_from_slice(&sum[..cols]),
        }
    }
    Q
}

/// Fills up with zeros.
#[inline(always)]
fn padded(floats: &[f32]) -> [f32; COLS] {
    match <&[f32; COLS]>::try_from(floats) {
        Ok(floats) => *floats,
        Err(_) => {
            let mut padded = [0.0; COLS];
            padded[..floats.len()].copy_from_slice(floats);
            padded
        }
    }
}
