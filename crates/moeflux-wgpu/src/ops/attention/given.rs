//! What attention kernels are given.

use moeflux_backend::{Attention, Cache, Heads, Selection, Sequence, Span};

use crate::buffer::Mem;
use crate::caches::{CacheState, Kv, Page, Pages, Plane};
use crate::ops::rounding::Beside;
use crate::state::Wgpu;
use crate::words::word;

/// Positions whose softmax is computed together. Tiles begin at its multiples
/// whatever else is asked for, so that a row's bits follow from its position alone.
pub(super) const TILE: usize = 64;

/// Words of what tiles gathered, and of scores, at a time.
pub(super) const PART_WORDS: usize = 16 << 20;

/// The pages of a sequence's keys and values, and of whose these are.
pub(super) fn pages(b: &Wgpu, sequence: Sequence, cache: Cache) -> (&Kv, &Pages) {
    let caches = b.sequences[sequence.0 as usize].as_ref().expect("the sequence exists");
    let CacheState::Kv(kv) = &caches[cache.0 as usize] else {
        panic!("attention needs a key-value cache")
    };
    (kv, b.pools.pages(kv))
}

/// Makes room for the positions of spans; false where there is no memory.
pub(super) fn grow(b: &mut Wgpu, cache: Cache, spans: &[Span]) -> bool {
    let Wgpu { encoder, pools, sequences, .. } = b;
    let mut pool = None;
    for span in spans.iter().filter(|it| !it.rows.is_empty()) {
        let caches = sequences[span.sequence.0 as usize].as_mut().expect("the sequence exists");
        let CacheState::Kv(kv) = &mut caches[cache.0 as usize] else {
            panic!("attention needs a key-value cache")
        };
        let common = *pool.get_or_insert(kv.pool);
        assert_eq!(kv.pool, common, "sequences of an op share their pages' shape");
        kv.grow(pools.pages_mut(kv), encoder, span.position + span.rows.len());
    }
    !encoder.has_run_out()
}

/// What outputs are multiplied with, and what is rounded beside them.
pub(super) type Last<'a> = (Option<Heads>, Option<&'a Beside>);

/// Some rows of a span.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) sequence: Sequence,
    /// The batch's row of the first, and its position.
    pub(super) first: usize,
    pub(super) position: usize,
    pub(super) n: usize,
}

impl Rows {
    /// The positions at which tiles begin that these look at.
    pub(super) fn tiles(
        &self,
        window: Option<usize>,
    ) -> impl ExactSizeIterator<Item = usize> + use<> {
        let start = window.map_or(0, |it| (self.position + 1).saturating_sub(it));
        (start / TILE..(self.position + self.n).div_ceil(TILE)).map(|it| it * TILE)
    }

    pub(super) fn end(&self) -> usize {
        self.position + self.n
    }
}

/// What both kernels of attention are given.
pub(super) struct Given {
    pub(super) q: Mem,
    pub(super) mask: Mem,
    pub(super) sinks: Mem,
    pub(super) y: Mem,
    pub(super) gate: Mem,
    /// The first of their parameters.
    pub(super) params: Vec<u32>,
}

impl Given {
    pub(super) fn of(b: &Wgpu, op: &Attention, gate: Option<Heads>, pages: &Pages) -> Given {
        let Attention { out, q, window, sinks, selection, scale, .. } = *op;
        let (q_buf, y) = (b.buf(q.buf), b.buf(out.buf));
        let mask = selection.map(|it: Selection| &b.selections[it.0 as usize]);
        let mask_words = mask.map_or(0, |it| it.words);
        let gate_buf = gate.map(|it| b.buf(it.buf));
        let [start, width, stride] = match (gate, gate_buf) {
            (Some(it), Some(buf)) => [it.start, buf.width, it.stride].map(word),
            _ => [0; 3],
        };
        let values = values(op, pages);
        let params = vec![
            word(q.n_heads),
            word(q.n_heads / pages.n_heads),
            word(q.start),
            word(q_buf.width),
            word(q.stride),
            scale.to_bits(),
            word(window.unwrap_or(0)),
            word(pages.k.row_words),
            word(values.row_words),
            word(mask_words),
            word(out.start),
            word(y.width),
            word(out.stride),
            u32::from(sinks.is_some()),
            start,
            width,
            stride,
            u32::from(gate.is_some()),
        ];
        Given {
            mask: mask.and_then(|it| it.mem.clone()).unwrap_or_else(|| q_buf.mem.clone()),
            sinks: sinks.map_or_else(|| q_buf.mem.clone(), |it| b.vector(it).clone()),
            gate: gate_buf.unwrap_or(q_buf).mem.clone(),
            q: q_buf.mem.clone(),
            y: y.mem.clone(),
            params,
        }
    }

    /// What `attention_halves.wgsl` is told of them: not how queries, keys and values lie.
    pub(super) fn of_rows(&self) -> impl Iterator<Item = u32> {
        [0, 1, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16, 17].map(|i| self.params[i]).into_iter()
    }

    pub(super) fn params(&self, own: &[u32]) -> Vec<u32> {
        [&self.params[..], own].concat()
    }
}

/// Which part of a page are the values.
pub(super) fn values(op: &Attention, pages: &Pages) -> Plane {
    if op.v.is_some() { pages.v } else { pages.k }
}

/// Where the keys and values of a tile begin in its slab.
pub(super) fn tile_words(op: &Attention, pages: &Pages, page: Page, first: usize) -> [u32; 2] {
    [pages.k, values(op, pages)].map(|it| word(pages.word(page, it, first)))
}
