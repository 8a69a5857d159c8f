//! Causal attention over a paged cache of keys and values.
//!
//! For one query head: scores by ascending position, their maximum, the sum of
//! `exp(score - maximum)` and the mix of the values by ascending position, then
//! one division. A sink takes part in the maximum and is the last term of the
//! sum. Values in the cache are read as they are stored. Entries of pools come after the positions.
//!
//! Queries that share a key head are worked on in tiles, so that keys and
//! values are read once for all of them; no output is divided among threads.
//!
//! Rows that all see the same positions have a definition of their own, see `bidirectional`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(super) mod bidirectional;
mod kernels;
#[cfg(test)]
mod tests;
mod views;

use std::cmp::Reverse;
use std::ops::Range;

pub(super) use self::kernels::score;
use self::views::Mix;
pub(super) use self::views::Scores;
use super::attention_scratch::{Query, Scratch, Tile};
use super::floats::Floats;
use super::kv_cache::{KvCache, PAGE_POSITIONS, Reader, Rows};
use super::math;
use super::memory::{Activations, CacheState};
use super::parallel::recycle;
use super::pool::SharedMut;
use super::prefetcher::Prefetcher;
use super::state::Cpu;
use crate::{Attention, Cache, KeysValues, Span};

/// Most queries of a tile.
const TILE_QUERIES: usize = 64;

/// Scores that all threads together may hold; a tile holds its queries' scores
/// of all positions.
const SCORES: usize = 16 << 20;

/// Scores that a thread may hold in any case.
const TILE_SCORES: usize = 1 << 20;

/// Bytes of keys worked on at a time: a part of what the second cache holds.
const BLOCK_BYTES: usize = 128 << 10;

/// Rows whose keys and values a task stores.
const STORED_ROWS: usize = 16;

/// Multiplications that are worth a task: about ten microseconds.
const TASK_PRODUCTS: usize = 128 << 10;

/// Positions of a block of keys of `dim` floats: a power of two that divides a
/// page.
pub(super) fn block_len(dim: usize) -> usize {
    let fit = (BLOCK_BYTES / (4 * dim)).clamp(8, PAGE_POSITIONS);
    1 << fit.ilog2()
}

/// Cuts `range` at the multiples of `len`.
pub(super) fn blocks(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let first = range.start / len;
    (first..range.end.div_ceil(len)).map(move |i| clip(&range, &(i * len..(i + 1) * len)))
}

fn clip(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// Appends keys and values without attending.
pub(super) fn append(cpu: &mut Cpu, cache: Cache, append: KeysValues, spans: &[Span]) {
    for span in spans {
        let mut state = cpu.take_cache(span.sequence, cache);
        let CacheState::Kv(kv) = &mut state else { panic!("attention needs a key-value cache") };
        check_append(append, kv);
        store(cpu, append, span, kv);
        *cpu.cache_slot(span.sequence, cache) = state;
    }
}

pub(super) fn attention(cpu: &mut Cpu, op: Attention, spans: &[Span]) {
    let mut out = cpu.take(op.out.buf);
    for span in spans {
        let mut state = cpu.take_cache(span.sequence, op.cache);
        let CacheState::Kv(kv) = &mut state else { panic!("attention needs a key-value cache") };
        check(cpu, &op, kv);
        match op.append {
            Some(append) => store(cpu, append, span, kv),
            None => {
                let end = span.position + span.rows.len();
                assert!(kv.holds(end), "keys and values that another op has appended");
            }
        }
        let seen_to = span.seen_to(op.looks_ahead);
        assert!(kv.holds(seen_to), "keys and values of the positions ahead");
        if bidirectional::applies(&op, span) {
            bidirectional::Job { cpu, op: &op, span, kv }.run(&mut out);
        } else {
            let entries = op.entries.map(|entries| cpu.cache(span.sequence, entries));
            let entries = entries.map(|entries| checked_entries(entries, &op, span));
            Job { cpu, op: &op, span, kv, entries }.run(&mut out);
        }
        *cpu.cache_slot(span.sequence, op.cache) = state;
    }
    cpu.put(op.out.buf, out);
}

fn check(cpu: &Cpu, op: &Attention, kv: &KvCache) {
    let Attention { out, q, append, sinks, window, .. } = op;
    assert!(q.n_heads == out.n_heads && q.n_heads.is_multiple_of(kv.n_heads()), "query heads");
    assert!(q.head_dim == kv.k_dim(), "floats of a key");
    match kv.v_dim() {
        0 => assert!(out.head_dim <= kv.k_dim(), "values are parts of keys"),
        v_dim => assert!(out.head_dim == v_dim, "floats of a value"),
    }
    if let Some(append) = append {
        check_append(*append, kv);
    }
    assert!(
        sinks.is_none_or(|sinks| cpu.vector(sinks).len() == q.n_heads),
        "one sink a query head"
    );
    assert!(*window != Some(0), "a window holds the row's own position");
}

/// Entries of all pools that a span sees.
fn checked_entries<'a>(state: &'a CacheState, op: &Attention, span: &Span) -> &'a KvCache {
    let CacheState::Kv(entries) = state else { panic!("entries need a cache of them") };
    assert!(entries.n_heads() == 1 && entries.k_dim() == op.q.head_dim, "entries are keys");
    let n = (span.position + span.rows.len()) / entries.pool();
    assert!(entries.holds(n), "entries that another op has made");
    entries
}

fn check_append(KeysValues { k, v }: KeysValues, kv: &KvCache) {
    assert!(k.n_heads == kv.n_heads() && k.head_dim == kv.k_dim(), "appended keys");
    let (heads, dim) = v.map_or((k.n_heads, 0), |v| (v.n_heads, v.head_dim));
    assert!(heads == k.n_heads && dim == kv.v_dim(), "appended values");
}

/// Extends the cache by the rows of a span.
fn store(cpu: &Cpu, KeysValues { k, v }: KeysValues, span: &Span, kv: &mut KvCache) {
    let positions = span.position..span.position + span.rows.len();
    let shared = kv.share(positions.clone());
    cpu.pool.run(span.rows.len().div_ceil(STORED_ROWS), &|task| {
        let first = task * STORED_ROWS;
        for i in first..span.rows.len().min(first + STORED_ROWS) {
            let row = span.rows.start + i;
            for head in 0..k.n_heads {
                let k = cpu.buf(k.buf).head(row, k, head);
                let v = v.map_or(&[][..], |v| cpu.buf(v.buf).head(row, v, head));
                // SAFETY: a position belongs to one row and a row to one task.
                unsafe { shared.store(head, positions.start + i, k, v) };
            }
        }
    });
}

/// The queries of a span.
struct Job<'a> {
    cpu: &'a Cpu,
    op: &'a Attention,
    span: &'a Span,
    kv: &'a KvCache,
    entries: Option<&'a KvCache>,
}

impl Job<'_> {
    fn run(&self, out: &mut Activations) {
        let mut tiles = self.cpu.attention_tiles.take();
        self.fill(&mut tiles);
        let products = self.op.q.head_dim + self.op.out.head_dim;
        let per_tile =
            tiles.first().map_or(0, |tile| tile.queries.len()) * self.longest() * products;
        let per_task = (TASK_PRODUCTS / per_tile.max(1)).max(1);
        let width = out.width;
        let shared = SharedMut::new(&mut out.data);
        self.cpu.pool.run(tiles.len().div_ceil(per_task), &|task| {
            let mut scratch = self.cpu.attention_scratch.take();
            let mine = task * per_task..((task + 1) * per_task).min(tiles.len());
            for tile in &tiles[mine] {
                self.attend(tile, width, &mut scratch, shared);
            }
            self.cpu.attention_scratch.put(scratch);
        });
        self.cpu.attention_tiles.put(tiles);
    }

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.op.q.n_heads / self.kv.n_heads()
    }

    /// Most positions and entries that a tile sees.
    fn longest(&self) -> usize {
        let end = self.span.position + self.span.rows.len();
        let entries = self.entries.map_or(0, |entries| end / entries.pool());
        let chosen = |row: usize| self.chosen(row).map_or(entries, <[u32]>::len);
        let entries = match (entries, self.op.selection) {
            (0, _) | (_, None) => entries,
            (_, Some(_)) => self.span.rows.clone().map(chosen).max().unwrap_or(0),
        };
        self.most_positions() + entries
    }

    /// Most positions that a tile sees.
    fn most_positions(&self) -> usize {
        let all = self.span.seen_to(self.op.looks_ahead);
        let rows = TILE_QUERIES.div_ceil(self.group());
        let looks_ahead = self.op.looks_ahead && self.span.ahead_to > 0;
        let after = if looks_ahead { all - self.span.position } else { rows };
        self.op.window.map_or(all, |window| all.min(window + after))
    }

    /// Divides the queries so that threads share them evenly, in tiles whose
    /// scores are bounded.
    fn fill(&self, tiles: &mut Vec<Tile>) {
        tiles.clear();
        let n_queries = self.span.rows.len() * self.group();
        let n_threads = self.cpu.pool.n_threads();
        let scores = (SCORES / n_threads).max(TILE_SCORES);
        let fair = (n_queries * self.kv.n_heads()).div_ceil(n_threads);
        let most = (scores / self.longest()).clamp(1, TILE_QUERIES).min(fair.max(1));
        // Each row has its own choice of positions.
        let alike = if self.op.selection.is_some() { self.group() } else { n_queries };
        let each = alike.div_ceil(alike.div_ceil(most).max(1)).max(1);
        for head in 0..self.kv.n_heads() {
            for first in (0..n_queries).step_by(alike.max(1)) {
                for start in (first..first + alike).step_by(each) {
                    tiles.push(Tile { head, queries: start..(start + each).min(first + alike) });
                }
            }
        }
        // Later queries see more: the most work first, so that threads end together.
        tiles.sort_unstable_by_key(|tile| {
            (Reverse(tile.queries.end), tile.head, tile.queries.start)
        });
    }

    /// The chosen positions of a row, or entries, ascending; `None` where it sees all.
    fn chosen(&self, row: usize) -> Option<&[u32]> {
        let selection = self.op.selection?;
        self.cpu.selections[selection.0 as usize].row(row)
    }

    fn query(&self, tile: &Tile, i: usize, width: usize) -> Query<'_> {
        let Attention { out, q, window, sinks, .. } = self.op;
        let row = self.span.rows.start + i / self.group();
        let head = tile.head * self.group() + i % self.group();
        let end = self.span.position + i / self.group() + 1;
        let start = window.map_or(0, |window| end.saturating_sub(window));
        let end = if self.op.looks_ahead { end.max(self.span.ahead_to) } else { end };
        let positions = match self.chosen(row).filter(|_| self.entries.is_none()) {
            Some(chosen) => {
                chosen.partition_point(|position| (*position as usize) < start)..chosen.len()
            }
            None => start..end,
        };
        let entries = self
            .entries
            .map_or(0, |entries| self.chosen(row).map_or(end / entries.pool(), <[u32]>::len));
        Query {
            q: self.cpu.buf(q.buf).head(row, *q, head),
            seen: [positions, 0..entries],
            sink: sinks.map(|sinks| self.cpu.vector(sinks)[head]),
            out: row * width + out.start + head * out.stride,
        }
    }

    /// What a tile sees of one cache, whose scores come first.
    fn view<'a>(
        &'a self,
        tile: &Tile,
        queries: &[Query<'_>],
        kv: &'a KvCache,
        part: Part,
    ) -> View<'a> {
        let seen = || queries.iter().map(|query| &query.seen[part as usize]);
        let low = seen().map(|seen| seen.start).min().unwrap_or(0);
        let high = seen().map(|seen| seen.end).max().unwrap_or(0);
        // Where there are entries, these are chosen, and no positions.
        let are_chosen = (part == Part::Entries) == self.entries.is_some();
        let row = self.span.rows.start + tile.queries.start / self.group();
        let chosen = self.chosen(row).filter(|_| are_chosen);
        View { job: self, kv, part, head: tile.head, chosen, seen: low..high, column: 0 }
    }

    fn attend(&self, tile: &Tile, width: usize, scratch: &mut Scratch, out: SharedMut<'_, f32>) {
        let mut queries = recycle(std::mem::take(&mut scratch.queries));
        queries.extend(tile.queries.clone().map(|i| self.query(tile, i, width)));
        let positions = self.view(tile, &queries, self.kv, Part::Positions);
        let entries = self.entries.map(|entries| self.view(tile, &queries, entries, Part::Entries));
        let entries = entries.map(|entries| View { column: positions.seen.len(), ..entries });
        let views = || std::iter::once(&positions).chain(&entries);
        let stride = views().map(|view| view.seen.len()).sum();
        scratch.begin(&queries, stride, self.op.out.head_dim);
        for view in views() {
            view.score(&queries, stride, scratch);
        }
        for view in views() {
            view.mix(&queries, stride, scratch);
        }
        let dim = self.op.out.head_dim;
        for (i, query) in queries.iter().enumerate() {
            let sink = query.sink.map(|sink| math::exp(sink - scratch.maxima[i]));
            let total = sink.map_or(scratch.totals[i], |sink| scratch.totals[i] + sink);
            // SAFETY: a query belongs to one tile and a tile to one task, and the columns of
            // different heads and rows do not overlap.
            let out = unsafe { out.slice(query.out..query.out + dim) };
            kernels::divide(self.cpu.isa, out, &scratch.sums[i * dim..], total);
        }
        scratch.queries = recycle(queries);
    }
}

/// What a tile sees of one cache: positions or entries, or indices of a choice of these.
struct View<'a> {
    job: &'a Job<'a>,
    kv: &'a KvCache,
    part: Part,
    head: usize,
    chosen: Option<&'a [u32]>,
    seen: Range<usize>,
    /// Where its scores begin among those of a query.
    column: usize,
}

impl View<'_> {
    /// Fills `scores`, `stride` a query, and raises `maxima`.
    fn score(&self, queries: &[Query<'_>], stride: usize, scratch: &mut Scratch) {
        let mut vectors = recycle(std::mem::take(&mut scratch.vectors));
        let Scratch { scores, rows, maxima, .. } = scratch;
        let cpu = self.job.cpu;
        let scores = scores.first(queries.len() * stride);
        vectors.extend(queries.iter().map(|query| query.q));
        let keys = self.kv.keys();
        let values = self.kv.values();
        for block in self.blocks(self.seen.start) {
            let mut prefetcher = self.prefetcher(&block, keys, Some(values));
            let keys = self.rows(keys, &block, self.job.op.q.head_dim, rows);
            for Alike { queries: alike, seen } in runs(queries, self.part, &block) {
                let at = self.column + seen.start - self.seen.start;
                let out = Scores { scores: &mut scores[alike.start * stride + at..], stride };
                let keys = keys.slice(seen.start - block.start..seen.end - block.start);
                let (vectors, scale) = (&vectors[alike.clone()], self.job.op.scale);
                score(cpu.isa, out, vectors, keys, &mut prefetcher, scale);
                for i in alike {
                    let scores = &scores[i * stride + at..][..seen.len()];
                    kernels::raise_max(cpu.isa, &mut maxima[i], scores);
                }
            }
        }
        scratch.vectors = recycle(vectors);
    }

    /// Turns scores into weights, and adds to `sums` and `totals`.
    fn mix(&self, queries: &[Query<'_>], stride: usize, scratch: &mut Scratch) {
        let Scratch { scores, rows, sums, totals, maxima, .. } = scratch;
        let (isa, dim) = (self.job.cpu.isa, self.job.op.out.head_dim);
        let values = self.kv.values();
        for block in self.blocks(self.seen.start) {
            let mut prefetcher = self.prefetcher(&block, values, None);
            let values = self.rows(values, &block, dim, rows);
            for Alike { queries: alike, seen } in runs(queries, self.part, &block) {
                let at = self.column + seen.start - self.seen.start;
                for i in alike.clone() {
                    kernels::soften(isa, &mut scores[i * stride + at..][..seen.len()], maxima[i]);
                }
                let mix = Mix {
                    sums: &mut sums[alike.start * dim..alike.end * dim],
                    dim,
                    totals: &mut totals[alike.clone()],
                };
                let values = values.slice(seen.start - block.start..seen.end - block.start);
                let weights = &scores[alike.start * stride + at..];
                kernels::mix(isa, mix, weights, stride, values, &mut prefetcher);
            }
        }
    }

    fn blocks(&self, first: usize) -> impl Iterator<Item = Range<usize>> {
        blocks(first..self.seen.end, block_len(self.job.op.q.head_dim))
    }

    /// Prefetches what is read after a block: the next one or, after the last, the first of
    /// `then`.
    fn prefetcher<'s>(
        &'s self,
        block: &Range<usize>,
        reader: Reader<'s>,
        then: Option<Reader<'s>>,
    ) -> Prefetcher<'s> {
        let next = self.blocks(block.end).next().map(|next| (reader, next));
        let next = next.or_else(|| then.zip(self.blocks(self.seen.start).next()));
        match (self.chosen, next) {
            (None, Some((reader, block))) => {
                Prefetcher::new([reader.stored(self.head, block), &[], &[]])
            }
            _ => Prefetcher::nothing(),
        }
    }

    /// The first `dim` floats of the keys or values of a block.
    fn rows<'s>(
        &'s self,
        reader: Reader<'s>,
        block: &Range<usize>,
        dim: usize,
        scratch: &'s mut Floats,
    ) -> Rows<'s> {
        let isa = self.job.cpu.isa;
        match self.chosen {
            Some(chosen) => reader.gather(isa, self.head, &chosen[block.clone()], dim, scratch),
            None => reader.run(isa, self.head, block.clone(), dim, scratch),
        }
    }
}

/// What of several caches a query sees.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Positions = 0,
    Entries = 1,
}

/// Neighbouring queries that see the same part of a block.
struct Alike {
    queries: Range<usize>,
    seen: Range<usize>,
}

/// The queries of a tile that see some of a block.
fn runs<'a>(
    queries: &'a [Query<'_>],
    part: Part,
    block: &'a Range<usize>,
) -> impl Iterator<Item = Alike> + use<'a> {
    let mut next = 0;
    let seen_by = move |query: &Query<'_>| clip(&query.seen[part as usize], block);
    std::iter::from_fn(move || {
        while next < queries.len() {
            let start = next;
            let seen = seen_by(&queries[start]);
            let alike = queries[start..].iter().take_while(|query| seen_by(query) == seen);
            next += alike.count();
            if !seen.is_empty() {
                return Some(Alike { queries: start..next, seen });
            }
        }
        None
    })
}
