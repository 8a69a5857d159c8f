//! Causal attention over a paged cache of keys and values.
//!
//! For one query head: scores by ascending position, their maximum, the sum of
//! `exp(score - maximum)` and the mix of the values by ascending position, then
//! one division.

use std::ops::Range;

use super::Isa;
use super::isa::for_every_isa;
use super::math::{LANES, dot, exp, tree_sum};

/// Positions of a page.
pub(super) const PAGE_POSITIONS: usize = 256;

/// Values mixed at a time, so that their sums stay in registers.
const MIX_BLOCK: usize = 64;

/// Keys and values of one sequence and layer; grows by pages.
#[derive(Debug)]
pub(super) struct KvCache {
    n_heads: usize,
    k_dim: usize,
    v_dim: usize,
    pages: Vec<KvPage>,
}

/// Both `(n_heads, PAGE_POSITIONS, dim)`.
#[derive(Debug)]
struct KvPage {
    k: Vec<f32>,
    v: Vec<f32>,
}

impl KvCache {
    pub(super) fn new(n_heads: usize, k_dim: usize, v_dim: usize) -> KvCache {
        KvCache { n_heads, k_dim, v_dim, pages: Vec::new() }
    }

    /// Key heads.
    pub(super) fn n_heads(&self) -> usize {
        self.n_heads
    }

    pub(super) fn clear(&mut self) {
        self.pages.clear();
    }

    /// Stores the key and the value of one head at `position`.
    pub(super) fn store(&mut self, head: usize, position: usize, k: &[f32], v: &[f32]) {
        let (page, slot) = (position / PAGE_POSITIONS, position % PAGE_POSITIONS);
        while self.pages.len() <= page {
            self.pages.push(KvPage {
                k: vec![0.0; self.n_heads * PAGE_POSITIONS * self.k_dim],
                v: vec![0.0; self.n_heads * PAGE_POSITIONS * self.v_dim],
            });
        }
        let page = &mut self.pages[page];
        let at = head * PAGE_POSITIONS + slot;
        page.k[at * self.k_dim..(at + 1) * self.k_dim].copy_from_slice(k);
        page.v[at * self.v_dim..(at + 1) * self.v_dim].copy_from_slice(v);
    }

    /// Attends from the queries that share a key head, over the first
    /// `n_positions` positions. `q` holds them `q_stride` apart, `out` side by
    /// side.
    pub(super) fn attend(&self, isa: Isa, head: usize, n_positions: usize, op: Query<'_>) {
        let n_queries = op.out.len() / self.v_dim;
        let mut scores = vec![0.0; n_queries * n_positions];
        for (page, positions) in self.pages_of(n_positions) {
            let k = &page.k[head * PAGE_POSITIONS * self.k_dim..][..positions.len() * self.k_dim];
            for (i, scores) in scores.chunks_exact_mut(n_positions).enumerate() {
                let q = &op.q[i * op.q_stride..][..self.k_dim];
                score(isa, &mut scores[positions.clone()], q, k, op.scale);
            }
        }
        for (scores, out) in
            scores.chunks_exact_mut(n_positions).zip(op.out.chunks_exact_mut(self.v_dim))
        {
            soften(isa, scores);
            out.fill(0.0);
            for (page, positions) in self.pages_of(n_positions) {
                let v = &page.v[head * PAGE_POSITIONS * self.v_dim..];
                mix(isa, out, &scores[positions], v);
            }
            let mut sum = 0.0;
            for weight in &*scores {
                sum += weight;
            }
            for it in out {
                *it /= sum;
            }
        }
    }

    fn pages_of(&self, n_positions: usize) -> impl Iterator<Item = (&KvPage, Range<usize>)> {
        self.pages.iter().enumerate().map_while(move |(i, page)| {
            let first = i * PAGE_POSITIONS;
            let last = n_positions.min(first + PAGE_POSITIONS);
            (first < n_positions).then_some((page, first..last))
        })
    }
}

/// The queries of one row that share a key head.
pub(super) struct Query<'a> {
    pub(super) out: &'a mut [f32],
    pub(super) q: &'a [f32],
    pub(super) q_stride: usize,
    pub(super) scale: f32,
}

for_every_isa! {
    /// `scores[j] = (q . k[j]) * scale`.
    fn score(scores: &mut [f32], q: &[f32], k: &[f32], scale: f32) {
        let (scores4, scores_tail) = scores.as_chunks_mut::<4>();
        let (k4, k_tail) = k.split_at(scores4.len() * 4 * q.len());
        for (scores, k) in scores4.iter_mut().zip(k4.chunks_exact(4 * q.len())) {
            let dots = dot4(q, k);
            for i in 0..4 {
                scores[i] = dots[i] * scale;
            }
        }
        for (score, k) in scores_tail.iter_mut().zip(k_tail.chunks_exact(q.len())) {
            *score = dot(q, k) * scale;
        }
    }
}

/// Four dot products at once; each has the bits of [`dot`].
#[inline(always)]
fn dot4(q: &[f32], k: &[f32]) -> [f32; 4] {
    let n = q.len();
    let rows = [&k[..n], &k[n..2 * n], &k[2 * n..3 * n], &k[3 * n..4 * n]];
    let mut lanes = [[0.0; LANES]; 4];
    let (q_blocks, q_tail) = q.as_chunks::<LANES>();
    for (b, q) in q_blocks.iter().enumerate() {
        for r in 0..4 {
            let k = &rows[r][b * LANES..(b + 1) * LANES];
            for i in 0..LANES {
                lanes[r][i] = q[i].mul_add(k[i], lanes[r][i]);
            }
        }
    }
    let tail = n - q_tail.len();
    for (i, q) in q_tail.iter().enumerate() {
        for r in 0..4 {
            lanes[r][i] = q.mul_add(rows[r][tail + i], lanes[r][i]);
        }
    }
    lanes.map(tree_sum)
}

for_every_isa! {
    /// `scores = exp(scores - max)`.
    fn soften(scores: &mut [f32]) {
        let mut highest = [f32::NEG_INFINITY; LANES];
        let (blocks, tail) = scores.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                highest[i] = if block[i] > highest[i] { block[i] } else { highest[i] };
            }
        }
        let mut max = f32::NEG_INFINITY;
        for it in highest.iter().chain(tail) {
            max = if *it > max { *it } else { max };
        }
        for it in scores {
            *it = exp(*it - max);
        }
    }
}

for_every_isa! {
    /// `out += sum of weights[j] * v[j]`.
    fn mix(out: &mut [f32], weights: &[f32], v: &[f32]) {
        let dim = out.len();
        let (blocks, tail) = out.as_chunks_mut::<MIX_BLOCK>();
        let n_blocks = blocks.len();
        for (b, out) in blocks.iter_mut().enumerate() {
            let mut acc = *out;
            for (weight, v) in weights.iter().zip(v.chunks_exact(dim)) {
                let v = &v[b * MIX_BLOCK..(b + 1) * MIX_BLOCK];
                for i in 0..MIX_BLOCK {
                    acc[i] = weight.mul_add(v[i], acc[i]);
                }
            }
            *out = acc;
        }
        for (i, out) in tail.iter_mut().enumerate() {
            for (weight, v) in weights.iter().zip(v.chunks_exact(dim)) {
                *out = weight.mul_add(v[n_blocks * MIX_BLOCK + i], *out);
            }
        }
    }
}
