//! The inner loops of attention. How many queries and positions they take at a
//! time decides no bit: every sum has its own accumulators.

use super::cache::Rows;
use crate::cpu::Isa;
use crate::cpu::isa::for_every_isa;
use crate::cpu::math::{LANES, exp, tree_sum};

/// Columns of values mixed at a time, so that their sums stay in registers.
const COLS: usize = 32;

/// Scores of several queries, `stride` apart.
pub(in crate::cpu) struct Scores<'a> {
    pub(in crate::cpu) scores: &'a mut [f32],
    pub(in crate::cpu) stride: usize,
}

/// `scores[i * stride + j] = (queries[i] . keys[j]) * scale`.
pub(in crate::cpu) fn score(
    isa: Isa,
    out: Scores<'_>,
    queries: &[&[f32]],
    keys: Rows<'_>,
    scale: f32,
) {
    if isa.name() == "avx512" {
        score_wide(isa, out, queries, keys, scale);
    } else {
        score_narrow(isa, out, queries, keys, scale);
    }
}

for_every_isa! {
    /// For sixteen vector registers.
    fn score_narrow(
        out: Scores<'_>,
        queries: &[&[f32]],
        keys: Rows<'_>,
        scale: f32,
    ) {
        let Scores { scores, stride } = out;
        let pairs = queries.len() - queries.len() % 2;
        for i in (0..pairs).step_by(2) {
            let q = [queries[i], queries[i + 1]];
            score_group::<2, 2>(&mut scores[i * stride..], stride, q, &keys, scale);
        }
        if pairs < queries.len() {
            score_group::<1, 4>(&mut scores[pairs * stride..], stride, [queries[pairs]], &keys, scale);
        }
    }
}

for_every_isa! {
    /// For thirty-two vector registers that hold all lanes of a dot.
    fn score_wide(
        out: Scores<'_>,
        queries: &[&[f32]],
        keys: Rows<'_>,
        scale: f32,
    ) {
        let Scores { scores, stride } = out;
        let fours = queries.len() - queries.len() % 4;
        for i in (0..fours).step_by(4) {
            let q = [queries[i], queries[i + 1], queries[i + 2], queries[i + 3]];
            score_group::<4, 4>(&mut scores[i * stride..], stride, q, &keys, scale);
        }
        for i in fours..queries.len() {
            score_group::<1, 8>(&mut scores[i * stride..], stride, [queries[i]], &keys, scale);
        }
    }
}

#[inline(always)]
fn score_group<const Q: usize, const K: usize>(
    scores: &mut [f32],
    stride: usize,
    q: [&[f32]; Q],
    keys: &Rows<'_>,
    scale: f32,
) {
    let dim = q[0].len();
    let n = keys.len();
    let whole = n - n % K;
    for j in (0..whole).step_by(K) {
        let rows: [&[f32]; K] = std::array::from_fn(|r| keys.row(j + r, dim));
        let dots = dots(q, rows);
        for a in 0..Q {
            for b in 0..K {
                scores[a * stride + j + b] = dots[a][b] * scale;
            }
        }
    }
    for j in whole..n {
        let dots = dots(q, [keys.row(j, dim)]);
        for a in 0..Q {
            scores[a * stride + j] = dots[a][0] * scale;
        }
    }
}

/// `Q * K` dot products at once; each has the bits of
/// [`dot`](crate::cpu::math::dot).
#[inline(always)]
fn dots<const Q: usize, const K: usize>(q: [&[f32]; Q], k: [&[f32]; K]) -> [[f32; K]; Q] {
    let n = q[0].len();
    let q: [&[f32]; Q] = q.map(|it| &it[..n]);
    let k: [&[f32]; K] = k.map(|it| &it[..n]);
    let mut lanes = [[[0.0f32; LANES]; K]; Q];
    let tail = n - n % LANES;
    for at in (0..tail).step_by(LANES) {
        for a in 0..Q {
            let q = &q[a][at..at + LANES];
            for b in 0..K {
                let k = &k[b][at..at + LANES];
                for i in 0..LANES {
                    lanes[a][b][i] = q[i].mul_add(k[i], lanes[a][b][i]);
                }
            }
        }
    }
    for (i, at) in (tail..n).enumerate() {
        for a in 0..Q {
            for b in 0..K {
                lanes[a][b][i] = q[a][at].mul_add(k[b][at], lanes[a][b][i]);
            }
        }
    }
    lanes.map(|it| it.map(tree_sum))
}

for_every_isa! {
    /// Raises `max` to the largest score; NaNs do not count.
    pub(super) fn raise_max(max: &mut f32, scores: &[f32]) {
        let mut highest = [f32::NEG_INFINITY; LANES];
        let (blocks, tail) = scores.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                highest[i] = if block[i] > highest[i] { block[i] } else { highest[i] };
            }
        }
        for it in highest.iter().chain(tail) {
            *max = if *it > *max { *it } else { *max };
        }
    }
}

for_every_isa! {
    /// `scores = exp(scores - max)`.
    pub(super) fn soften(scores: &mut [f32], max: f32) {
        for it in scores {
            *it = exp(*it - max);
        }
    }
}

/// What queries have gathered so far.
pub(super) struct Mix<'a> {
    /// `(n_queries, dim)`.
    pub(super) sums: &'a mut [f32],
    pub(super) dim: usize,
    /// The sum of each query's weights.
    pub(super) totals: &'a mut [f32],
}

for_every_isa! {
    /// `sums[i] += sum of weights[i * stride + j] * values[j]`, by ascending `j`.
    pub(super) fn mix(out: Mix<'_>, weights: &[f32], stride: usize, values: Rows<'_>) {
        let Mix { sums, dim, totals } = out;
        let n_queries = totals.len();
        let pairs = n_queries - n_queries % 2;
        for i in (0..pairs).step_by(2) {
            let (sums, totals) = (&mut sums[i * dim..(i + 2) * dim], &mut totals[i..i + 2]);
            mix_group::<2>(Mix { sums, dim, totals }, &weights[i * stride..], stride, &values);
        }
        if pairs < n_queries {
            let (sums, totals) = (&mut sums[pairs * dim..], &mut totals[pairs..]);
            mix_group::<1>(Mix { sums, dim, totals }, &weights[pairs * stride..], stride, &values);
        }
    }
}

#[inline(always)]
fn mix_group<const Q: usize>(out: Mix<'_>, weights: &[f32], stride: usize, values: &Rows<'_>) {
    let n = values.len();
    let weights: [&[f32]; Q] = std::array::from_fn(|i| &weights[i * stride..][..n]);
    let mut totals: [f32; Q] = std::array::from_fn(|i| out.totals[i]);
    #[expect(clippy::needless_range_loop, reason = "the sums of all queries advance together")]
    for j in 0..n {
        for i in 0..Q {
            totals[i] += weights[i][j];
        }
    }
    out.totals.copy_from_slice(&totals);
    let dim = out.dim;
    let whole = dim - dim % COLS;
    for at in (0..whole).step_by(COLS) {
        mix_cols::<Q, COLS>(out.sums, dim, at, weights, values);
    }
    for at in whole..dim {
        mix_cols::<Q, 1>(out.sums, dim, at, weights, values);
    }
}

/// The columns `at..at + C`.
#[inline(always)]
fn mix_cols<const Q: usize, const C: usize>(
    sums: &mut [f32],
    dim: usize,
    at: usize,
    weights: [&[f32]; Q],
    values: &Rows<'_>,
) {
    let mut acc = [[0.0f32; C]; Q];
    for i in 0..Q {
        acc[i].copy_from_slice(&sums[i * dim + at..][..C]);
    }
    for (j, value) in values.floats.chunks(values.stride).enumerate() {
        let value = &value[at..at + C];
        for i in 0..Q {
            let weight = weights[i][j];
            for c in 0..C {
                acc[i][c] = weight.mul_add(value[c], acc[i][c]);
            }
        }
    }
    for i in 0..Q {
        sums[i * dim + at..][..C].copy_from_slice(&acc[i]);
    }
}
