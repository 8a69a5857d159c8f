//! What attention kernels are given.

use moeflux_backend::{Attention, Cache, Heads, Selection, Sequence, Span};

use crate::device::buffer::Mem;
use crate::device::work::Work;
use crate::memory::caches::cache::CacheState;
use crate::memory::caches::kv::Kv;
use crate::memory::caches::pages::{Page, Pages, Plane};
use crate::ops::matmul::quantize::FusedQuant;
use crate::state::gpu::Wgpu;
use crate::words::word;

/// Positions whose softmax is computed together. Tiles begin at its multiples
/// whatever else is asked for, so that a row's bits follow from its position alone.
pub(crate) const TILE: usize = 64;

/// Words of what tiles gathered, and of scores, at a time.
pub(crate) const PART_WORDS: usize = 16 << 20;

/// The pages of a sequence's keys and values, and of whose these are.
pub(crate) fn pages(b: &Wgpu, sequence: Sequence, cache: Cache) -> (&Kv, &Pages) {
    let caches = b.sequences[sequence.0 as usize].as_ref().expect("the sequence exists");
    let CacheState::Kv(kv) = &caches[cache.0 as usize] else {
        panic!("attention needs a key-value cache")
    };
    (kv, b.pools.pages(kv))
}

/// Makes room for the positions of spans; false where there is no memory.
pub(crate) fn grow(b: &mut Wgpu, cache: Cache, spans: &[Span]) -> bool {
    let Wgpu { encoder, pools, sequences, .. } = b;
    let mut pool = None;
    for span in spans.iter().filter(|span| !span.rows.is_empty()) {
        let caches = sequences[span.sequence.0 as usize].as_mut().expect("the sequence exists");
        let CacheState::Kv(kv) = &mut caches[cache.0 as usize] else {
            panic!("attention needs a key-value cache")
        };
        let common = *pool.get_or_insert(kv.pool);
        assert_eq!(kv.pool, common, "sequences of an op share their pages' shape");
        kv.grow(pools.pages_mut(kv), encoder, span.position + span.rows.len());
    }
    !encoder.buffers.is_out_of_memory()
}

/// Whether there are pages for the positions of spans; not where an op before had no memory for them.
pub(crate) fn have_room(b: &Wgpu, cache: Cache, spans: &[Span]) -> bool {
    let has_room =
        |span: &Span| pages(b, span.sequence, cache).0.has_room(span.position + span.rows.len());
    let have_room = spans.iter().filter(|span| !span.rows.is_empty()).all(has_room);
    assert!(
        have_room || b.encoder.buffers.is_out_of_memory(),
        "keys and values that another op has appended"
    );
    have_room
}

/// A cache that rows attend to: their positions, or entries of pools of these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) cache: Cache,
    window: Option<usize>,
    pub(crate) selection: Option<Selection>,
    /// Positions of a pool; 1 for positions.
    pub(crate) size: usize,
}

impl Source {
    /// What rows of a sequence attend to, in this order. Where there are entries, these are chosen.
    pub(crate) fn all(
        b: &Wgpu,
        op: &Attention,
        sequence: Sequence,
    ) -> impl Iterator<Item = Source> {
        let entries = op.entries.map(|cache| {
            let size = pages(b, sequence, cache).0.size;
            Source { cache, window: None, selection: op.selection, size }
        });
        let selection = op.selection.filter(|_| entries.is_none());
        let positions = Source { selection, ..Source::positions(op) };
        std::iter::once(positions).chain(entries)
    }

    /// The positions of an op without entries.
    pub(crate) fn positions(op: &Attention) -> Source {
        Source { cache: op.cache, window: op.window, selection: op.selection, size: 1 }
    }

    /// After the last that some of these rows see.
    pub(crate) fn end(&self, rows: &Rows) -> usize {
        if self.size == 1 { rows.end() } else { (rows.position + rows.n) / self.size }
    }

    /// Where tiles begin that these rows look at.
    pub(crate) fn tiles(&self, rows: &Rows) -> impl ExactSizeIterator<Item = usize> + use<> {
        let start = self.window.map_or(0, |window| (rows.position + 1).saturating_sub(window));
        (start / TILE..self.end(rows).div_ceil(TILE)).map(|tile| tile * TILE)
    }
}

/// What is done to outputs where they are written.
#[derive(Clone, Copy)]
pub(crate) struct Last<'a> {
    /// What they are multiplied with.
    pub(crate) gate: Option<Heads>,
    /// What is quantised in addition to them.
    pub(crate) fused_quant: Option<&'a FusedQuant>,
}

/// Some rows of a span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) sequence: Sequence,
    /// The batch's row of the first, and its position.
    pub(crate) first: usize,
    pub(crate) position: usize,
    pub(crate) n: usize,
    /// What they see after their own positions, as [`Span::ahead_to`]; 0 where they do not.
    pub(crate) ahead_to: usize,
}

impl Rows {
    /// Tiles that these look at, of all that they attend to.
    pub(crate) fn n_tiles(&self, b: &Wgpu, op: &Attention) -> usize {
        Source::all(b, op, self.sequence).map(|source| source.tiles(self).len()).sum()
    }

    /// After the last position that some row sees.
    pub(crate) fn end(&self) -> usize {
        self.ahead_to.max(self.position + self.n)
    }

    /// What it is at most to attend for these, with keys and values of four bytes.
    pub(crate) fn work(&self, op: &Attention) -> Work {
        let seen = self.end().min(op.window.unwrap_or(usize::MAX)) as u64;
        let dims = (op.q.head_dim + op.out.head_dim) as u64;
        let kv_heads = op.append.map_or(op.q.n_heads, |append| append.k.n_heads) as u64;
        let flops = 2 * self.n as u64 * seen * op.q.n_heads as u64 * dims;
        Work { bytes: 4 * seen * kv_heads * dims, flops }
    }
}

/// What both kernels of attention are given.
pub(crate) struct Given {
    pub(crate) q: Mem,
    pub(crate) mask: Mem,
    pub(crate) sinks: Mem,
    pub(crate) y: Mem,
    pub(crate) gate: Mem,
    /// The first of their parameters.
    pub(crate) params: Vec<u32>,
}

impl Given {
    pub(crate) fn of(
        b: &Wgpu,
        op: &Attention,
        source: &Source,
        gate: Option<Heads>,
        pages: &Pages,
    ) -> Given {
        let Attention { out, q, sinks, scale, .. } = *op;
        let Source { window, selection, size, .. } = *source;
        let (q_buf, y) = (b.buf(q.buf), b.buf(out.buf));
        let mask = selection.map(|selection: Selection| &b.selections[selection.0 as usize]);
        let mask_words = mask.map_or(0, |mask| mask.words);
        let gate_buf = gate.map(|gate| b.buf(gate.buf));
        let [start, width, stride] = match (gate, gate_buf) {
            (Some(gate), Some(buf)) => [gate.start, buf.width, gate.stride].map(word),
            _ => [0; 3],
        };
        let values = values(pages);
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
            word(size),
        ];
        Given {
            mask: mask.and_then(|mask| mask.mem.clone()).unwrap_or_else(|| q_buf.mem.clone()),
            sinks: sinks.map_or_else(|| q_buf.mem.clone(), |sinks| b.vector(sinks).clone()),
            gate: gate_buf.unwrap_or(q_buf).mem.clone(),
            q: q_buf.mem.clone(),
            y: y.mem.clone(),
            params,
        }
    }

    /// The parameters of `attention/coop_matrix.wgsl`, which reads queries, keys and values as f16.
    pub(crate) fn of_rows(&self) -> impl Iterator<Item = u32> {
        [0, 1, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18].map(|i| self.params[i]).into_iter()
    }

    pub(crate) fn params(&self, own: &[u32]) -> Vec<u32> {
        [&self.params[..], own].concat()
    }
}

/// Which part of a page are the values.
pub(crate) fn values(pages: &Pages) -> Plane {
    if pages.v.dim > 0 { pages.v } else { pages.k }
}

/// Where the keys and values of a tile begin in its slab.
pub(crate) fn tile_words(pages: &Pages, page: Page, first: usize) -> [u32; 2] {
    [pages.k, values(pages)].map(|plane| word(pages.word(page, plane, first)))
}
