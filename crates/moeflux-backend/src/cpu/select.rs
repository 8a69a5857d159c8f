//! The choice of positions that rows attend to.
//!
//! For one row and position, or pool: products of the query heads and the key by
//! ascending head, each rectified, then one sum of them with the weights.

use std::ops::Range;

use super::attention::{self, Scores};
use super::chosen::{Chosen, Room};
use super::floats::Floats;
use super::isa::for_every_isa;
use super::kv_cache::{KvCache, PAGE_POSITIONS, Rows};
use super::math::exp;
use super::memory::CacheState;
use super::norm::rms_norm_in_place;
use super::pool::SharedMut;
use super::prefetcher::Prefetcher;
use super::state::{Cpu, n_rows};
use crate::{PoolFunction, PoolKeys, SelectPositions, Span};

/// Scores held at a time; long chunks are worked on in parts.
const SCORES: usize = 4 << 20;

pub(super) fn select_positions(cpu: &mut Cpu, op: SelectPositions, spans: &[Span]) {
    op.assert_fits();
    let size = op.pools.map_or(1, |pools| pools.size);
    assert!(size > 0, "a pool has positions");
    let mut chosen = std::mem::take(&mut cpu.selections[op.out.0 as usize]);
    chosen.reset(n_rows(spans));
    let mut scores = std::mem::take(&mut cpu.index_scores);
    for span in spans {
        let mut state = cpu.take_cache(span.sequence, op.cache);
        let CacheState::Kv(kv) = &mut state else { panic!("index keys need a cache") };
        let key_len = op.k.map_or(op.q.head_dim, |k| k.len);
        assert!(
            kv.n_heads() == 1 && kv.v_dim() == 0 && key_len == kv.k_dim(),
            "a cache of index keys has one head and no values"
        );
        let of_entries = op.k.is_none();
        let size = if of_entries { kv.pool() } else { size };
        if let Some(k) = op.k {
            for (i, row) in span.rows.clone().enumerate() {
                kv.store(0, span.position + i, cpu.buf(k.buf).cols(row, k), &[]);
            }
        }
        if let Some(pools) = op.pools {
            complete_pools(cpu, &pools, kv, span);
        }
        // Rows that see `top_k` pools or fewer see all positions.
        let first_long = (op.top_k + 1).saturating_mul(size) - 1;
        let n_short = first_long.saturating_sub(span.position).min(span.rows.len());
        let mut row = span.rows.start + n_short;
        while row < span.rows.end {
            let last = (span.position + span.rows.len()) / size;
            let end = span.rows.end.min(row + (SCORES / last).max(1));
            let position = span.position + (row - span.rows.start);
            let part = Part { cpu, op: &op, kv, rows: row..end, position, size, of_entries };
            part.choose(&mut scores, &mut chosen);
            row = end;
        }
        *cpu.cache_slot(span.sequence, op.cache) = state;
    }
    cpu.index_scores = scores;
    cpu.selections[op.out.0 as usize] = chosen;
}

/// Puts the keys of pools that end in a span in the places of their last positions, whose own keys
/// are there.
fn complete_pools(cpu: &Cpu, pools: &PoolKeys, kv: &mut KvCache, span: &Span) {
    let positions = span.position..span.position + span.rows.len();
    let (size, dim) = (pools.size, kv.k_dim());
    let mut members = vec![0.0; size * dim];
    let mut key = vec![0.0; dim];
    let mut scratch = Floats::default();
    for pool in positions.start / size..positions.end / size {
        let first = pool * size;
        for (position, member) in (first..).zip(members.chunks_exact_mut(dim)) {
            let rows = kv.keys().run(cpu.isa, 0, position..position + 1, dim, &mut scratch);
            member.copy_from_slice(rows.row(0, dim));
        }
        match pools.function {
            PoolFunction::Mean { weight, eps, rope } => {
                key.fill(0.0);
                for member in members.chunks_exact(dim) {
                    add_member(cpu.isa, &mut key, member, size as f32);
                }
                rms_norm_in_place(cpu.isa, &mut key, cpu.vector(weight), eps);
                let rope = &cpu.ropes[rope.0 as usize];
                rope.rotate_to(cpu.isa, span.rotary_at(first), &mut key);
            }
            PoolFunction::Gated { bias } => {
                gate_members(cpu.isa, &mut key, &members, cpu.vector(bias));
            }
        }
        kv.store(0, first + size - 1, &key, &[]);
    }
}

for_every_isa! {
    /// The key of a gated pool, and the gates of its last position, from keys and gates of all.
    fn gate_members(key: &mut [f32], members: &[f32], bias: &[f32]) {
        let dim = key.len() / 2;
        let (key, last_gates) = key.split_at_mut(dim);
        for (column, key) in key.iter_mut().enumerate() {
            let mut highest = f32::NEG_INFINITY;
            let gate_of = |i: usize| members[(2 * i + 1) * dim + column] + bias[i * dim + column];
            let n = bias.len() / dim;
            for i in 0..n {
                // A comparison that lets NaN pass.
                highest = if gate_of(i) < highest { highest } else { gate_of(i) };
            }
            let (mut sum, mut weighted) = (0.0, 0.0);
            for i in 0..n {
                let share = exp(gate_of(i) - highest);
                sum += share;
                weighted = share.mul_add(members[2 * i * dim + column], weighted);
            }
            *key = weighted / sum;
        }
        last_gates.copy_from_slice(&members[members.len() - dim..]);
    }
}

for_every_isa! {
    /// `mean += x / n`.
    fn add_member(mean: &mut [f32], x: &[f32], n: f32) {
        for (mean, x) in mean.iter_mut().zip(x) {
            *mean += x / n;
        }
    }
}

/// Rows of one sequence that see more pools than they may choose. A position that is chosen alone
/// is a pool of one.
struct Part<'a> {
    cpu: &'a Cpu,
    op: &'a SelectPositions,
    kv: &'a KvCache,
    rows: Range<usize>,
    /// Of the first of them.
    position: usize,
    /// Positions of a pool.
    size: usize,
    /// Whether pools have entries, which are chosen by their numbers.
    of_entries: bool,
}

impl Part<'_> {
    /// Pools that the `i`-th row may choose.
    fn n_seen(&self, i: usize) -> usize {
        (self.position + i + 1) / self.size
    }

    /// Chooses pools for every row, and adds the positions that it sees.
    fn choose(&self, scores: &mut Floats, chosen: &mut Chosen) {
        let n_rows = self.rows.len();
        let stride = self.n_seen(n_rows - 1);
        let end = if self.of_entries { stride } else { self.position + n_rows };
        let scores = scores.first(n_rows * stride);
        let shared = SharedMut::new(scores);
        self.cpu.pool.run(end.div_ceil(PAGE_POSITIONS), &|page| {
            let first = page * PAGE_POSITIONS;
            self.score_page(first..end.min(first + PAGE_POSITIONS), stride, shared);
        });
        let scores = &*scores;
        let (top_k, of_entries) = (self.op.top_k, self.of_entries);
        let size = if of_entries { 1 } else { self.size };
        let len_of = |i| top_k * size + (self.position + i + 1) % size;
        let Room { places, first, positions } = chosen.extend(self.rows.clone(), len_of);
        let shared = SharedMut::new(positions);
        self.cpu.pool.run(n_rows, &|i| {
            // SAFETY: task i alone uses the i-th part.
            let out = unsafe { shared.slice(places[i].start - first..places[i].end - first) };
            best(&scores[i * stride..][..self.n_seen(i)], &mut out[..top_k]);
            if of_entries {
                return;
            }
            spread(out, top_k, size);
            let tail = self.n_seen(i) * size;
            for (out, position) in out[top_k * size..].iter_mut().zip(tail..) {
                *out = position as u32;
            }
        });
    }

    /// Scores the pools that end in one page for all rows, into `(rows, stride)`.
    fn score_page(&self, page: Range<usize>, stride: usize, out: SharedMut<'_, f32>) {
        let Part { cpu, op, kv, .. } = self;
        let size = if self.of_entries { 1 } else { self.size };
        let (dim, stored) = (op.q.head_dim, kv.k_dim());
        let block_len = attention::block_len(dim);
        let mut products = vec![0.0; op.q.n_heads * block_len];
        let (mut scratch, mut gathered) = (Floats::default(), Floats::default());
        // Without weights each head counts once.
        let ones = if op.weights.is_none() { vec![1.0; op.q.n_heads] } else { Vec::new() };
        for block in attention::blocks(page, block_len) {
            // Those whose last positions are in the block.
            let pools = (block.start + size) / size - 1..block.end / size;
            let keys = kv.keys().run(cpu.isa, 0, block.clone(), stored, &mut scratch);
            let keys = match size {
                1 => keys,
                _ => {
                    let last = |pool: usize| (pool + 1) * size - 1 - block.start;
                    let floats = gathered.first(pools.len() * dim);
                    for (pool, out) in pools.clone().zip(floats.chunks_exact_mut(dim)) {
                        out.copy_from_slice(keys.row(last(pool), dim));
                    }
                    Rows { floats, stride: dim }
                }
            };
            for (i, row) in self.rows.clone().enumerate() {
                let seen = pools.start..pools.end.min(self.n_seen(i));
                if seen.is_empty() {
                    continue;
                }
                let q = cpu.buf(op.q.buf);
                let q: Vec<&[f32]> =
                    (0..op.q.n_heads).map(|head| q.head(row, op.q, head)).collect();
                let keys = keys.slice(0..seen.len());
                let products_of = Scores { scores: &mut products, stride: block_len };
                let prefetcher = &mut Prefetcher::nothing();
                attention::score(cpu.isa, products_of, &q, keys, prefetcher, op.scale);
                let weights =
                    op.weights.map_or(&ones[..], |weights| cpu.buf(weights.buf).cols(row, weights));
                // SAFETY: blocks do not overlap, each belongs to one page and a page to one task.
                let out = unsafe { out.slice(i * stride + seen.start..i * stride + seen.end) };
                weigh(cpu.isa, out, &products, block_len, weights);
            }
        }
    }
}

/// Replaces the first `n` numbers, which name pools, by the positions of these.
fn spread(out: &mut [u32], n: usize, size: usize) {
    // From the last to the first, so that a pool is read before its place is written.
    for i in (0..n).rev() {
        let first = out[i] as usize * size;
        for (out, position) in out[i * size..(i + 1) * size].iter_mut().zip(first..) {
            *out = position as u32;
        }
    }
}

for_every_isa! {
    /// `out[j] = sum over heads of weights[h] * relu(products[h * stride + j])`.
    fn weigh(out: &mut [f32], products: &[f32], stride: usize, weights: &[f32]) {
        out.fill(0.0);
        for (weight, products) in weights.iter().zip(products.chunks_exact(stride)) {
            for (out, product) in out.iter_mut().zip(products) {
                let rectified = if *product > 0.0 { *product } else { 0.0 };
                *out = weight.mul_add(rectified, *out);
            }
        }
    }
}

/// The positions of the highest scores, ascending; among equals the lower ones.
fn best(scores: &[f32], out: &mut [u32]) {
    let key = |(position, score): (usize, &f32)| {
        let position = u32::try_from(position).expect("few positions");
        (u64::from(!ordered(*score)) << 32) | u64::from(position)
    };
    let mut keys: Vec<u64> = scores.iter().enumerate().map(key).collect();
    if out.len() < keys.len() {
        keys.select_nth_unstable(out.len());
    }
    for (out, key) in out.iter_mut().zip(&keys) {
        *out = *key as u32;
    }
    out.sort_unstable();
}

/// Orders floats as integers.
fn ordered(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

#[cfg(test)]
mod tests {
    use moeflux_core::SplitMix64;

    use super::*;

    #[track_caller]
    fn check_best(scores: &[f32], want: &[u32]) {
        let mut out = vec![0; want.len()];
        best(scores, &mut out);
        assert_eq!(out, want, "of {scores:?}");
    }

    #[test]
    fn the_highest_are_chosen_and_sorted_by_position() {
        check_best(&[-1.0, 3.0, -2.0, 2.0], &[1, 3]);
        check_best(&[-1.0, -3.0, -2.0], &[0]);
        check_best(&[0.5, -0.5, 1e-40, f32::INFINITY], &[0, 2, 3]);
        check_best(&[1.0, 2.0], &[0, 1]);
    }

    #[test]
    fn among_equals_the_lower_position_wins() {
        check_best(&[0.0, 1.0, 0.0, 0.0, 1.0, 0.0], &[0, 1, 2, 4]);
        check_best(&[7.0; 100], &[0, 1, 2, 3, 4]);
    }

    #[test]
    fn every_choice_is_the_same_as_by_sorting() {
        let mut random = SplitMix64::new(1);
        for n in [1usize, 2, 17, 1000] {
            let scores: Vec<f32> = (0..n).map(|_| (random.below(16) as f32 - 7.0) * 0.5).collect();
            for k in [1, n / 2, n].into_iter().filter(|k| *k > 0) {
                let mut order: Vec<usize> = (0..n).collect();
                order.sort_by(|a, b| scores[*b].partial_cmp(&scores[*a]).expect("numbers"));
                let mut want: Vec<u32> =
                    order[..k].iter().map(|position| *position as u32).collect();
                want.sort_unstable();
                check_best(&scores, &want);
            }
        }
    }
}
