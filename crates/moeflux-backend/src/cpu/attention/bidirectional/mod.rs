//! Attention of rows that all see the same positions, as the patches of a picture do in a vision tower.
//!
//! Of one query head, by blocks of [`KEYS`] positions: scores, each the sum of products by ascending
//! column; their maximum with that of the blocks before, by which what was gathered so far is scaled; then
//! weights `exp(score - maximum)`, whose sums are kept in [`LANES`] totals by position, and the mix of the
//! values by ascending position. In the end the totals are added as a tree, then one division. So nothing
//! grows with the number of positions (Milakov, Gimelshein 2018, "Online normalizer calculation for
//! softmax").
//!
//! A tile of queries turns each block of keys once, so that a vector holds the scores of several
//! positions, and no score is summed up within a vector.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod kernels;
mod views;

use std::ops::Range;

use self::kernels::{mix, score, turn, weigh};
use self::views::{GROUP, Group, KEYS, Softmax};
use crate::cpu::attention_scratch::{BidirectionalScratch as Scratch, Tile};
use crate::cpu::floats::Floats;
use crate::cpu::kv_cache::{KvCache, PAGE_POSITIONS, Rows};
use crate::cpu::math::{LANES, tree_sum};
use crate::cpu::memory::Activations;
use crate::cpu::pool::SharedMut;
use crate::cpu::state::Cpu;
use crate::{Attention, Span};

// A block is within a page.
const _: () = assert!(PAGE_POSITIONS.is_multiple_of(KEYS));

/// Queries of a tile: many, so that turning keys takes a small part of the time, and so few that the second
/// cache holds them with their sums.
const TILE: usize = 128 * GROUP;

/// The fewest queries of a tile, where there are as many.
const SMALL_TILE: usize = 4 * GROUP;

/// Tiles for each thread, so that threads end at about the same time.
const TILES_PER_THREAD: usize = 4;

/// Whether all rows of a span see the same positions, by their numbers alone.
pub(super) fn applies(op: &Attention, span: &Span) -> bool {
    let end = span.position + span.rows.len();
    let is_plain = op.window.is_none() && op.sinks.is_none() && op.selection.is_none();
    op.looks_ahead && is_plain && span.ahead_to >= end
}

/// The queries of a span.
pub(super) struct Job<'a> {
    pub(super) cpu: &'a Cpu,
    pub(super) op: &'a Attention,
    pub(super) span: &'a Span,
    pub(super) kv: &'a KvCache,
}

/// Rows of a block as they are stored.
struct Copied<'a> {
    head: usize,
    /// `(KEYS, k_dim)`.
    keys: &'a mut [f32],
    /// `(KEYS, width)`.
    values: &'a mut [f32],
    /// For what is not stored as floats.
    rows: &'a mut Floats,
}

impl Job<'_> {
    /// Attends from all rows.
    pub(super) fn run(&self, out: &mut Activations) {
        let tiles = self.tiles();
        let width = out.width;
        let shared = SharedMut::new(&mut out.data);
        self.cpu.pool.run(tiles.len(), &|task| {
            let mut scratch = self.cpu.attention_scratch.take();
            self.attend(&tiles[task], &mut scratch.bidirectional);
            self.write(&tiles[task], &scratch.bidirectional, width, shared);
            self.cpu.attention_scratch.put(scratch);
        });
    }

    /// Query heads that share a key head.
    fn n_sharing(&self) -> usize {
        self.op.q.n_heads / self.kv.n_heads()
    }

    /// Floats of a row of values and of sums: whole vectors.
    fn width(&self) -> usize {
        self.op.out.head_dim.next_multiple_of(LANES)
    }

    fn tiles(&self) -> Vec<Tile> {
        let n_queries = self.span.rows.len() * self.n_sharing();
        let fair = n_queries * self.kv.n_heads() / (TILES_PER_THREAD * self.cpu.pool.n_threads());
        let len = fair.next_multiple_of(GROUP).clamp(SMALL_TILE, TILE);
        let of_head = |head| {
            let starts = (0..n_queries).step_by(len);
            starts.map(move |start| Tile { head, queries: start..n_queries.min(start + len) })
        };
        (0..self.kv.n_heads()).flat_map(of_head).collect()
    }

    /// Row and head of a query of a tile.
    fn place(&self, tile: &Tile, query: usize) -> (usize, usize) {
        let n_sharing = self.n_sharing();
        let head = tile.head * n_sharing + query % n_sharing;
        (self.span.rows.start + query / n_sharing, head)
    }

    /// Gathers sums and totals of a tile's queries. While groups meet a block, the rows of the next one are
    /// copied, a few at a time, so that nothing waits for all of them.
    fn attend(&self, tile: &Tile, scratch: &mut Scratch) {
        let (isa, dim, width) = (self.cpu.isa, self.op.q.head_dim, self.width());
        self.begin(tile, scratch);
        let Scratch { queries, sums, maxima, totals, keys, stored_keys, values, rows } = scratch;
        let n_groups = maxima.len() / GROUP;
        let queries = queries.first(n_groups * GROUP * dim);
        let sums = sums.first(n_groups * GROUP * width);
        let (keys, stored_keys) = (keys.first(KEYS * dim), stored_keys.first(KEYS * dim));
        let [values, next_values] = values;
        let (mut values, next_values) =
            (values.first(KEYS * width), next_values.first(KEYS * width));
        // Columns behind the last one stay zeros.
        values.fill(0.0);
        next_values.fill(0.0);
        let n_seen = self.span.seen_to(true);
        let mut weights = [[0.0; KEYS]; GROUP];
        let per_group = KEYS.div_ceil(n_groups);
        let mut copied = Copied { head: tile.head, keys: stored_keys, values: next_values, rows };
        self.copy(0..n_seen.min(KEYS), 0, &mut copied);
        for first in (0..n_seen).step_by(KEYS) {
            std::mem::swap(&mut values, &mut copied.values);
            let n = KEYS.min(n_seen - first);
            let stored = Rows { floats: &copied.keys[..n * dim], stride: dim };
            turn(isa, stored, dim, keys.as_chunks_mut().0);
            let groups = queries.chunks(GROUP * dim).zip(sums.chunks_mut(GROUP * width));
            let softmax = maxima.chunks_mut(GROUP).zip(totals.chunks_mut(GROUP));
            for (nth, ((queries, sums), (maxima, totals))) in groups.zip(softmax).enumerate() {
                let next = first + KEYS;
                let its = (nth * per_group).min(KEYS)..((nth + 1) * per_group).min(KEYS);
                let positions = (next + its.start).min(n_seen)..(next + its.end).min(n_seen);
                self.copy(positions, its.start, &mut copied);
                score(isa, queries.as_chunks().0, keys.as_chunks().0, &mut weights);
                let group = Group { weights: &mut weights, n, sums, width };
                weigh(isa, group, self.op.scale, Softmax { maxima, totals });
                let group = Group { weights: &mut weights, n, sums, width };
                mix(isa, group, values);
            }
        }
    }

    /// Copies keys and values of positions of one page to the rows from `first` on.
    fn copy(&self, positions: Range<usize>, first: usize, to: &mut Copied<'_>) {
        if positions.is_empty() {
            return;
        }
        let (isa, dim, v_dim) = (self.cpu.isa, self.op.q.head_dim, self.op.out.head_dim);
        let stored = self.kv.keys().run(isa, to.head, positions.clone(), dim, to.rows);
        for (i, out) in to.keys[first * dim..].chunks_mut(dim).take(stored.len()).enumerate() {
            out.copy_from_slice(stored.row(i, dim));
        }
        let stored = self.kv.values().run(isa, to.head, positions, v_dim, to.rows);
        let width = self.width();
        for (i, out) in to.values[first * width..].chunks_mut(width).take(stored.len()).enumerate()
        {
            out[..v_dim].copy_from_slice(stored.row(i, v_dim));
        }
    }

    /// Puts the queries of a tile side by side in groups; those that fill up the last group are zeros.
    fn begin(&self, tile: &Tile, scratch: &mut Scratch) {
        let Scratch { queries, sums, maxima, totals, .. } = scratch;
        let (q, dim) = (self.op.q, self.op.q.head_dim);
        let n_groups = tile.queries.len().div_ceil(GROUP);
        let queries = queries.first(n_groups * GROUP * dim);
        queries.fill(0.0);
        for (i, query) in tile.queries.clone().enumerate() {
            let (row, head) = self.place(tile, query);
            let group = &mut queries[i / GROUP * GROUP * dim..][..GROUP * dim];
            let places = group.as_chunks_mut::<GROUP>().0;
            for (place, value) in places.iter_mut().zip(self.cpu.buf(q.buf).head(row, q, head)) {
                place[i % GROUP] = *value;
            }
        }
        sums.first(n_groups * GROUP * self.width()).fill(0.0);
        maxima.clear();
        maxima.resize(n_groups * GROUP, f32::NEG_INFINITY);
        totals.clear();
        totals.resize(n_groups * GROUP, [0.0; LANES]);
    }

    /// Writes what a tile's queries gathered.
    fn write(&self, tile: &Tile, scratch: &Scratch, row_len: usize, out: SharedMut<'_, f32>) {
        let (to, width) = (self.op.out, self.width());
        for (i, query) in tile.queries.clone().enumerate() {
            let (row, head) = self.place(tile, query);
            let start = row * row_len + to.start + head * to.stride;
            // SAFETY: a query belongs to one tile and a tile to one task, and the columns of
            // different heads and rows do not overlap.
            let out = unsafe { out.slice(start..start + to.head_dim) };
            let total = tree_sum(scratch.totals[i]);
            for (out, sum) in out.iter_mut().zip(&scratch.sums[i * width..]) {
                *out = sum / total;
            }
        }
    }
}
