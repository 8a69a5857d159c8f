//! The products for thirty-two vector registers.

use std::arch::x86_64::*;

use super::views::{GROUP, Group, KEYS, Softmax};
use crate::cpu::kv_cache::Rows;
use crate::cpu::math::LANES;
use crate::cpu::vector::{exp, load, load_first, store, transpose};

/// Vectors of keys that are scored at a time.
const WIDE: usize = 2;

/// Queries that are mixed at a time.
const Q: usize = 4;

/// As [`super::kernels::turn`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn turn(rows: Rows<'_>, dim: usize, out: &mut [[f32; KEYS]]) {
    for (at, first) in (0..KEYS).step_by(LANES).enumerate() {
        for start in (0..dim).step_by(LANES) {
            let out = &mut out[start..dim.min(start + LANES)];
            let mut square = [_mm512_setzero_ps(); LANES];
            for (i, row) in (first..rows.len()).zip(&mut square) {
                *row = load_first(&rows.row(i, dim)[start..start + out.len()]);
            }
            for (out, column) in out.iter_mut().zip(transpose(square)) {
                store(&mut out.as_chunks_mut::<LANES>().0[at], column);
            }
        }
    }
}

/// As [`super::kernels::score`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn score(
    queries: &[[f32; GROUP]],
    keys: &[[f32; KEYS]],
    out: &mut [[f32; KEYS]; GROUP],
) {
    for at in (0..KEYS / LANES).step_by(WIDE) {
        let mut sums = [[_mm512_setzero_ps(); WIDE]; GROUP];
        for (query, key) in queries.iter().zip(keys) {
            let key = key.as_chunks::<LANES>().0;
            let key = [load(&key[at]), load(&key[at + 1])];
            for i in 0..GROUP {
                let query = _mm512_set1_ps(query[i]);
                for c in 0..WIDE {
                    sums[i][c] = _mm512_fmadd_ps(query, key[c], sums[i][c]);
                }
            }
        }
        for i in 0..GROUP {
            let out = out[i].as_chunks_mut::<LANES>().0;
            for c in 0..WIDE {
                store(&mut out[at + c], sums[i][c]);
            }
        }
    }
}

/// As [`super::kernels::weigh`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn weigh(group: Group<'_>, scale: f32, softmax: Softmax<'_>) {
    const N: usize = KEYS / LANES;
    let Group { weights, n, sums, width } = group;
    let Softmax { maxima, totals } = softmax;
    let scale = _mm512_set1_ps(scale);
    let rows = weights.iter_mut().zip(maxima).zip(totals.iter_mut().zip(sums.chunks_mut(width)));
    for ((scores, max), (totals, sums)) in rows {
        scores[n..].fill(f32::NEG_INFINITY);
        let vectors = scores.as_chunks_mut::<LANES>().0;
        let before = _mm512_set1_ps(*max);
        let (mut scaled, mut highest) = ([before; N], before);
        for c in 0..N {
            scaled[c] = _mm512_mul_ps(load(&vectors[c]), scale);
            // If the score is NaN, this is the maximum so far.
            highest = _mm512_max_ps(scaled[c], highest);
        }
        *max = _mm512_reduce_max_ps(highest);
        let highest = _mm512_set1_ps(*max);
        let factor = exp(_mm512_sub_ps(before, highest));
        let mut total = _mm512_mul_ps(load(totals), factor);
        for c in 0..N {
            let weights = exp(_mm512_sub_ps(scaled[c], highest));
            total = _mm512_add_ps(total, weights);
            store(&mut vectors[c], weights);
        }
        store(totals, total);
        for sums in sums.as_chunks_mut::<LANES>().0 {
            let scaled = _mm512_mul_ps(load(sums), factor);
            store(sums, scaled);
        }
    }
}

/// As [`super::kernels::mix`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn mix(group: Group<'_>, values: &[f32]) {
    let Group { weights, n, sums, width } = group;
    for (weights, sums) in weights.as_chunks::<Q>().0.iter().zip(sums.chunks_mut(Q * width)) {
        let panel = Panel { weights, n, values, width };
        let mut at = 0;
        while at < width {
            // At most twenty sums, so that values and weights have registers too.
            at += match (width - at) / LANES {
                1 => panel.mix::<1>(sums, at),
                2 => panel.mix::<2>(sums, at),
                3 => panel.mix::<3>(sums, at),
                5 => panel.mix::<5>(sums, at),
                _ => panel.mix::<4>(sums, at),
            };
        }
    }
}

/// Weights of some queries, and the values that they weigh.
#[derive(Clone, Copy)]
struct Panel<'a> {
    weights: &'a [[f32; KEYS]; Q],
    /// Values.
    n: usize,
    values: &'a [f32],
    width: usize,
}

impl Panel<'_> {
    /// Mixes `N` vectors of columns from column `at` on; returns how many columns these are.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn mix<const N: usize>(self, sums: &mut [f32], at: usize) -> usize {
        let Panel { weights, n, values, width } = self;
        let mut acc = [[_mm512_setzero_ps(); N]; Q];
        for i in 0..Q {
            let sums = sums[i * width + at..].as_chunks::<LANES>().0;
            for c in 0..N {
                acc[i][c] = load(&sums[c]);
            }
        }
        for (j, value) in values.chunks_exact(width).take(n.min(KEYS)).enumerate() {
            let value = &value[at..].as_chunks::<LANES>().0[..N];
            let mut x = [_mm512_setzero_ps(); N];
            for c in 0..N {
                x[c] = load(&value[c]);
            }
            for i in 0..Q {
                let weight = _mm512_set1_ps(weights[i][j % KEYS]);
                for c in 0..N {
                    acc[i][c] = _mm512_fmadd_ps(weight, x[c], acc[i][c]);
                }
            }
        }
        for i in 0..Q {
            let sums = sums[i * width + at..].as_chunks_mut::<LANES>().0;
            for c in 0..N {
                store(&mut sums[c], acc[i][c]);
            }
        }
        N * LANES
    }
}
