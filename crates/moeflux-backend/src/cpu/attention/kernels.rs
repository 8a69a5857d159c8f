//! The inner loops of attention. How many queries and positions they take at a
//! time decides no bit: every sum has its own accumulators.

use std::ops::Range;

use super::views::{Mix, Scores};
use crate::cpu::kv_cache::Rows;

#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::cpu::Isa;
#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::Level;
use crate::cpu::isa::for_every_isa;
use crate::cpu::math::{LANES, dot, exp, tree_sum};
use crate::cpu::prefetcher::Prefetcher;

/// Columns of values mixed at a time, so that their sums stay in registers.
const COLS: usize = 32;

/// `scores[i * stride + j] = (queries[i] . keys[j]) * scale`. The prefetcher runs
/// meanwhile where the instruction set has its own kernel.
pub(in crate::cpu) fn score(
    isa: Isa,
    out: Scores<'_>,
    queries: &[&[f32]],
    keys: Rows<'_>,
    prefetcher: &mut Prefetcher<'_>,
    scale: f32,
) {
    #[cfg(not(target_arch = "x86_64"))]
    let _ = prefetcher;
    #[cfg(target_arch = "x86_64")]
    match isa.level() {
        Level::Scalar => {}
        // SAFETY: holding this `Isa` proves that the machine has AVX2 and FMA.
        Level::Avx2 | Level::AvxVnni => unsafe {
            return avx2::score(out, queries, keys, prefetcher, scale);
        },
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        Level::Avx512 | Level::Amx => unsafe {
            return avx512::score(out, queries, keys, prefetcher, scale);
        },
    }
    for near in near(keys) {
        let scores = &mut out.scores[near.start..];
        let (out, keys) = (Scores { scores, stride: out.stride }, keys.slice(near));
        score_plain(isa, out, queries, keys, scale);
    }
}

/// Bytes of keys or values that stay in the first cache while queries pass.
const NEAR_BYTES: usize = 32 << 10;

/// Divides keys or values so that each part stays near.
fn near(rows: Rows<'_>) -> impl Iterator<Item = Range<usize>> + use<> {
    let (n, len) = (rows.len(), (NEAR_BYTES / (4 * rows.stride)).max(8));
    (0..n).step_by(len).map(move |start| start..n.min(start + len))
}

for_every_isa! {
    /// For few vector registers.
    fn score_plain(out: Scores<'_>, queries: &[&[f32]], keys: Rows<'_>, scale: f32) {
        score_pairs(out, queries, &keys, scale);
    }
}

/// Two queries with two keys at a time.
#[inline(always)]
fn score_pairs(out: Scores<'_>, queries: &[&[f32]], keys: &Rows<'_>, scale: f32) {
    let Scores { scores, stride } = out;
    let n = keys.len();
    let (pairs, single) = queries.as_chunks::<2>();
    for (i, [q0, q1]) in pairs.iter().enumerate() {
        let (out0, out1) = scores[2 * i * stride..].split_at_mut(stride);
        let (out0, out1) = (&mut out0[..n], &mut out1[..n]);
        let whole = n - n % 2;
        for j in (0..whole).step_by(2) {
            let row = |r| keys.row(j + r, q0.len());
            let dots = dots_2x2([q0, q1], [row(0), row(1)]);
            for r in 0..2 {
                out0[j + r] = dots[0][r] * scale;
                out1[j + r] = dots[1][r] * scale;
            }
        }
        for j in whole..n {
            let dots = dots_1x2(keys.row(j, q0.len()), [q0, q1]);
            out0[j] = dots[0] * scale;
            out1[j] = dots[1] * scale;
        }
    }
    if let [q] = single {
        let out = &mut scores[2 * pairs.len() * stride..][..n];
        let whole = n - n % 4;
        for j in (0..whole).step_by(4) {
            let row = |r| keys.row(j + r, q.len());
            let dots = dots_1x4(q, [row(0), row(1), row(2), row(3)]);
            for r in 0..4 {
                out[j + r] = dots[r] * scale;
            }
        }
        for (j, out) in out.iter_mut().enumerate().skip(whole) {
            *out = dot(q, keys.row(j, q.len())) * scale;
        }
    }
}

type Lanes = [f32; LANES];

/// `sums += a * b`, lane by lane.
#[inline(always)]
fn add_products(sums: &mut Lanes, a: &Lanes, b: &Lanes) {
    for i in 0..LANES {
        sums[i] = a[i].mul_add(b[i], sums[i]);
    }
}

/// Adds the products of what is behind the last whole block of lanes.
#[inline(always)]
fn add_ends(sums: &mut Lanes, a: &[f32], b: &[f32]) {
    let (a, b) = (a.as_chunks::<LANES>().1, b.as_chunks::<LANES>().1);
    for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
        *sum = a.mul_add(*b, *sum);
    }
}

/// [`tree_sum`] of one dot alone: compilers that see the sums of several dots
/// take their lanes apart in the loop before.
#[inline(always)]
fn finish(lanes: Lanes) -> f32 {
    tree_sum(std::hint::black_box(lanes))
}

// Each of these dots has the bits of `dot`. Their accumulators
// have names because compilers keep an array of them in memory.

#[inline(always)]
fn dots_1x2(q: &[f32], k: [&[f32]; 2]) -> [f32; 2] {
    let (mut s0, mut s1) = ([0.0; LANES], [0.0; LANES]);
    let blocks = q.as_chunks::<LANES>().0;
    let [k0, k1] = k.map(|vector| vector.as_chunks::<LANES>().0);
    for (q, (k0, k1)) in blocks.iter().zip(k0.iter().zip(k1)) {
        add_products(&mut s0, q, k0);
        add_products(&mut s1, q, k1);
    }
    add_ends(&mut s0, q, k[0]);
    add_ends(&mut s1, q, k[1]);
    [finish(s0), finish(s1)]
}

#[inline(always)]
fn dots_1x4(q: &[f32], k: [&[f32]; 4]) -> [f32; 4] {
    let (mut s0, mut s1) = ([0.0; LANES], [0.0; LANES]);
    let (mut s2, mut s3) = ([0.0; LANES], [0.0; LANES]);
    let blocks = q.as_chunks::<LANES>().0;
    let [k0, k1, k2, k3] = k.map(|vector| vector.as_chunks::<LANES>().0);
    for (q, ((k0, k1), (k2, k3))) in blocks.iter().zip(k0.iter().zip(k1).zip(k2.iter().zip(k3))) {
        add_products(&mut s0, q, k0);
        add_products(&mut s1, q, k1);
        add_products(&mut s2, q, k2);
        add_products(&mut s3, q, k3);
    }
    for (sums, k) in [&mut s0, &mut s1, &mut s2, &mut s3].into_iter().zip(k) {
        add_ends(sums, q, k);
    }
    [finish(s0), finish(s1), finish(s2), finish(s3)]
}

#[inline(always)]
fn dots_2x2(q: [&[f32]; 2], k: [&[f32]; 2]) -> [[f32; 2]; 2] {
    let (mut a0, mut a1) = ([0.0; LANES], [0.0; LANES]);
    let (mut b0, mut b1) = ([0.0; LANES], [0.0; LANES]);
    let [qa, qb] = q.map(|vector| vector.as_chunks::<LANES>().0);
    let [k0, k1] = k.map(|vector| vector.as_chunks::<LANES>().0);
    for ((qa, qb), (k0, k1)) in qa.iter().zip(qb).zip(k0.iter().zip(k1)) {
        add_products(&mut a0, qa, k0);
        add_products(&mut a1, qa, k1);
        add_products(&mut b0, qb, k0);
        add_products(&mut b1, qb, k1);
    }
    add_ends(&mut a0, q[0], k[0]);
    add_ends(&mut a1, q[0], k[1]);
    add_ends(&mut b0, q[1], k[0]);
    add_ends(&mut b1, q[1], k[1]);
    [[finish(a0), finish(a1)], [finish(b0), finish(b1)]]
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
        for score in highest.iter().chain(tail) {
            *max = if *score > *max { *score } else { *max };
        }
    }
}

for_every_isa! {
    /// `scores = exp(scores - max)`.
    pub(super) fn soften(scores: &mut [f32], max: f32) {
        for score in scores {
            *score = exp(*score - max);
        }
    }
}

for_every_isa! {
    /// `out = sums / total`.
    pub(super) fn divide(out: &mut [f32], sums: &[f32], total: f32) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = sum / total;
        }
    }
}

/// `sums[i] += sum of weights[i * stride + j] * values[j]`, by ascending `j`. The
/// prefetcher runs meanwhile where the instruction set has its own kernel.
pub(super) fn mix(
    isa: Isa,
    out: Mix<'_>,
    weights: &[f32],
    stride: usize,
    values: Rows<'_>,
    prefetcher: &mut Prefetcher<'_>,
) {
    #[cfg(not(target_arch = "x86_64"))]
    let _ = prefetcher;
    #[cfg(target_arch = "x86_64")]
    match isa.level() {
        Level::Scalar => {}
        // SAFETY: holding this `Isa` proves that the machine has AVX2 and FMA.
        Level::Avx2 | Level::AvxVnni => unsafe {
            return avx2::mix(out, weights, stride, values, prefetcher);
        },
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        Level::Avx512 | Level::Amx => unsafe {
            return avx512::mix(out, weights, stride, values, prefetcher);
        },
    }
    let Mix { sums, dim, totals } = out;
    for near in near(values) {
        let out = Mix { sums: &mut *sums, dim, totals: &mut *totals };
        mix_plain(isa, out, &weights[near.start..], stride, values.slice(near));
    }
}

for_every_isa! {
    /// For any number of vector registers.
    fn mix_plain(out: Mix<'_>, weights: &[f32], stride: usize, values: Rows<'_>) {
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
