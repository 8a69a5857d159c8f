//! The choice of positions that rows attend to.
//!
//! For one row and position: products of the query heads and the key by
//! ascending head, each rectified, then one sum of them with the weights.

use std::ops::Range;

use super::attention::{self, KvCache, PAGE_POSITIONS, Scores};
use super::floats::Floats;
use super::isa::for_every_isa;
use super::memory::CacheState;
use super::pool::SharedMut;
use super::prefetcher::Prefetcher;
use super::state::{Cpu, n_rows};
use crate::{SelectPositions, Span};

/// Scores held at a time; long chunks are worked on in parts.
const SCORES: usize = 4 << 20;

pub(super) fn select_positions(cpu: &mut Cpu, op: SelectPositions, spans: &[Span]) {
    assert!(op.top_k > 0, "a row sees a position");
    assert!(op.weights.len == op.q.n_heads, "one weight an index head");
    let mut chosen = std::mem::take(&mut cpu.selections[op.out.0 as usize]);
    chosen.reset(n_rows(spans));
    let mut scores = std::mem::take(&mut cpu.index_scores);
    for span in spans {
        let mut state = cpu.take_cache(span.sequence, op.cache);
        let CacheState::Kv(kv) = &mut state else { panic!("index keys need a cache") };
        assert!(
            kv.n_heads() == 1 && kv.v_dim() == 0 && op.q.head_dim == kv.k_dim(),
            "a cache of index keys has one head and no values"
        );
        for (i, row) in span.rows.clone().enumerate() {
            kv.store(0, span.position + i, cpu.buf(op.k.buf).cols(row, op.k), &[]);
        }
        let n_short = op.top_k.saturating_sub(span.position).min(span.rows.len());
        let mut row = span.rows.start + n_short;
        while row < span.rows.end {
            let last = span.position + span.rows.len();
            let end = span.rows.end.min(row + (SCORES / last).max(1));
            let part = Part {
                cpu,
                op: &op,
                kv,
                rows: row..end,
                n_seen: span.position + (row - span.rows.start) + 1,
            };
            part.choose(&mut scores, chosen.extend(row..end, op.top_k));
            row = end;
        }
        *cpu.cache_slot(span.sequence, op.cache) = state;
    }
    cpu.index_scores = scores;
    cpu.selections[op.out.0 as usize] = chosen;
}

/// Rows of one sequence that see more positions than they may choose.
struct Part<'a> {
    cpu: &'a Cpu,
    op: &'a SelectPositions,
    kv: &'a KvCache,
    rows: Range<usize>,
    /// Positions that the first of them sees; each row sees one more.
    n_seen: usize,
}

impl Part<'_> {
    /// Writes the `top_k` positions of every row.
    fn choose(&self, scores: &mut Floats, out: &mut [u32]) {
        let stride = self.n_seen + self.rows.len() - 1;
        let scores = scores.first(self.rows.len() * stride);
        let shared = SharedMut::new(scores);
        self.cpu.pool.run(stride.div_ceil(PAGE_POSITIONS), &|page| {
            let first = page * PAGE_POSITIONS;
            self.score_page(first..stride.min(first + PAGE_POSITIONS), stride, shared);
        });
        let scores = &*scores;
        let shared = SharedMut::new(out);
        let top_k = self.op.top_k;
        self.cpu.pool.run(self.rows.len(), &|i| {
            // SAFETY: task i alone uses the i-th part.
            let out = unsafe { shared.slice(i * top_k..(i + 1) * top_k) };
            best(&scores[i * stride..][..self.n_seen + i], out);
        });
    }

    /// Scores positions of one page for all rows, into `(rows, stride)`.
    fn score_page(&self, page: Range<usize>, stride: usize, out: SharedMut<'_, f32>) {
        let Part { cpu, op, kv, .. } = self;
        let block_len = attention::block_len(op.q.head_dim);
        let mut products = vec![0.0; op.q.n_heads * block_len];
        let mut scratch = Floats::default();
        for block in attention::blocks(page, block_len) {
            let keys = kv.keys().run(cpu.isa, 0, block.clone(), op.q.head_dim, &mut scratch);
            for (i, row) in self.rows.clone().enumerate() {
                let seen = block.start..block.end.min(self.n_seen + i);
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
                let weights = cpu.buf(op.weights.buf).cols(row, op.weights);
                // SAFETY: blocks do not overlap, each belongs to one page and a page to one task.
                let out = unsafe { out.slice(i * stride + seen.start..i * stride + seen.end) };
                weigh(cpu.isa, out, &products, block_len, weights);
            }
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
