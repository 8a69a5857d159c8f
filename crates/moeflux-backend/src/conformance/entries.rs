//! Entries of pools: what makes them, chooses among them and attends to them.

use super::mixers::run_steps;
use super::suite::{Numbers, Suite, filled, read};
use crate::{
    Attention, Backend, Cache, CacheSpec, Cols, Heads, KeysValues, KvType, PoolEntries, RopePairs,
    RopeSpec, SelectPositions, Span,
};

/// Most rows of a step.
const ROWS: usize = 5;

/// Heads and columns of an indexer.
const INDEX_HEADS: usize = 3;
const INDEX_DIM: usize = 17;

#[derive(Clone, Copy, Debug)]
struct Shape {
    n_heads: usize,
    dim: usize,
    pool: usize,
    /// Whether pools overlap.
    overlaps: bool,
    window: usize,
    dtype: KvType,
    /// Entries that rows choose.
    top_k: Option<usize>,
}

pub(super) fn check(suite: &Suite<'_>) {
    let overlapping = Shape {
        n_heads: 4,
        dim: 20,
        pool: 4,
        overlaps: true,
        window: 9,
        dtype: KvType::F32,
        top_k: Some(5),
    };
    for shape in [
        overlapping,
        Shape { top_k: Some(60), dtype: KvType::Bf16, ..overlapping },
        Shape { overlaps: false, pool: 3, top_k: None, window: 300, ..overlapping },
        Shape { n_heads: 7, dim: 130, pool: 37, overlaps: false, top_k: None, ..overlapping },
        Shape { n_heads: 64, dim: 512, pool: 5, window: 128, ..overlapping },
    ] {
        suite.case(&format!("attention to entries {shape:?}"), &|b| attention(b, shape));
    }
}

/// Ops over their own buffers, which a step writes anew.
struct Ops {
    attention: Attention,
    entries: PoolEntries,
    /// Entries of index keys, and the choice among them.
    index: Option<(PoolEntries, SelectPositions)>,
    specs: Vec<CacheSpec>,
}

impl Ops {
    fn new(b: &mut dyn Backend, shape: Shape) -> Ops {
        let Shape { n_heads, dim, pool, window, dtype, .. } = shape;
        let pages = |k_dim, dtype, window| {
            let window = Some(window);
            CacheSpec::Pages { n_heads: 1, k_dim, v_dim: 0, dtype, window }
        };
        let n_halves = if shape.overlaps { 2 } else { 1 };
        let mut specs = vec![pages(dim, dtype, window)];
        let mut pooled = |b: &mut dyn Backend, dim: usize, dtype: KvType, seed: u64| {
            let width = 2 * n_halves * dim;
            let first = u32::try_from(specs.len()).expect("few caches");
            specs.push(pages(width, KvType::F32, n_halves * pool));
            specs.push(CacheSpec::Entries { pool, dim, dtype });
            let inv_freq = (0..dim as i32 / 3).map(|i| 0.7f32.powi(i)).collect();
            let pairs = RopePairs::Adjacent;
            PoolEntries {
                x: filled(b, ROWS, width + 3, seed).slice(2, width),
                rows: Cache(first),
                entries: Cache(first + 1),
                bias: b.load_vector(&Numbers::new(seed + 1).floats(pool * width / 2)),
                weight: b.load_vector(&Numbers::new(seed + 2).floats(dim)),
                eps: 1e-6,
                rope: b.load_rope(RopeSpec { inv_freq, pairs, scale: 1.0, parts: Vec::new() }),
            }
        };
        let entries = pooled(b, dim, dtype, 100);
        let index = shape.top_k.map(|top_k| {
            let entries = pooled(b, INDEX_DIM, KvType::F32, 110);
            let q = filled(b, ROWS, INDEX_HEADS * INDEX_DIM, 114).heads(INDEX_HEADS);
            let select = SelectPositions {
                out: b.new_selection(),
                q,
                k: None,
                weights: Some(filled(b, ROWS, INDEX_HEADS, 115)),
                cache: entries.entries,
                scale: 0.4,
                top_k,
                pools: None,
            };
            (entries, select)
        });
        let all = |len, seed: u64, b: &mut dyn Backend| filled(b, ROWS, n_heads * len, seed);
        let attention = Attention {
            out: all(dim, 116, b).heads(n_heads),
            q: all(dim, 117, b).heads(n_heads),
            append: Some(KeysValues { k: filled(b, ROWS, dim, 118).heads(1), v: None }),
            cache: Cache(0),
            scale: 0.7,
            window: Some(window),
            sinks: Some(b.load_vector(&Numbers::new(119).floats(n_heads))),
            selection: index.map(|(_, select)| select.out),
            looks_ahead: false,
            entries: Some(entries.entries),
        };
        Ops { attention, entries, index, specs }
    }

    fn out(&self) -> Cols {
        all_of(self.attention.out)
    }

    /// A step whose rows follow from `seed`.
    fn step(&self, b: &mut dyn Backend, seed: u64, spans: &[Span]) {
        let key = self.attention.append.map(|append| all_of(append.k));
        let index = self.index.map(|(entries, _)| entries.x);
        for cols in key.into_iter().chain(index).chain([self.entries.x]) {
            let width = cols.start + cols.len + cols.start / 2;
            b.write(cols.buf, &Numbers::new(seed).floats(ROWS * width));
        }
        b.pool_entries(self.entries, spans);
        if let Some((entries, select)) = self.index {
            b.pool_entries(entries, spans);
            b.select_positions(select, spans);
        }
        b.attention(self.attention, spans);
    }
}

fn all_of(heads: Heads) -> Cols {
    Cols { buf: heads.buf, start: heads.start, len: heads.n_heads * heads.head_dim }
}

fn attention(b: &mut dyn Backend, shape: Shape) -> Vec<f32> {
    let ops = Ops::new(b, shape);
    let mut seed = 120;
    let mut all = run_steps(b, &ops.specs, ops.out(), &mut |b, spans| {
        seed += 1;
        ops.step(b, seed, spans);
    });
    // Long enough for several pages; what windows have passed is forgotten, but for a place to cut at.
    const CUT: usize = 61;
    let sequence = b.new_sequence(&ops.specs);
    let step = |b: &mut dyn Backend, sequence, position: usize, n: usize| {
        ops.step(b, 1000 + position as u64, &[Span::new(sequence, 0..n, position)]);
        read(b, ops.out().buf, n)
    };
    let mut position = 0;
    for n in (1..=ROWS).cycle().take(220) {
        all.extend(step(b, sequence, position, n));
        position += n;
        if position > CUT {
            b.forget_passed(sequence, &[CUT, position]);
        }
    }
    // Goes on from the cut, in another sequence too.
    let other = b.new_sequence(&ops.specs);
    for (spec, cache) in ops.specs.iter().zip(0..) {
        let seen = spec.seen_before(CUT);
        for positions in [seen.start..seen.start.max(37), seen.start.max(37)..CUT] {
            let bytes = b.save_cache(sequence, Cache(cache), positions.clone());
            let bytes = bytes.expect("the device works");
            assert_eq!(bytes.len(), spec.saved_bytes(&positions), "saved bytes of {spec:?}");
            b.load_cache(other, Cache(cache), positions, &bytes).expect("the device works");
        }
    }
    b.truncate_sequence(sequence, CUT);
    for position in (CUT..CUT + 20 * ROWS).step_by(ROWS) {
        let want = step(b, sequence, position, ROWS);
        let got = step(b, other, position, ROWS);
        assert!(got == want, "position {position}: a sequence goes on from saved entries");
        all.extend(got);
    }
    all
}
