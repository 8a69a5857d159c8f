//! Attention against its definition, query by query.

use moeflux_core::SplitMix64;

use super::{blocks, math};
use crate::cpu::{Cpu, Isa};
use crate::{
    Attention, Buf, Cache, CacheSpec, Cols, KeysValues, KvType, Ops, SelectPositions, Sequence,
    Sequences, Span,
};

#[derive(Clone, Copy, Debug)]
struct Shape {
    n_heads: usize,
    n_kv_heads: usize,
    k_dim: usize,
    out_dim: usize,
    /// Values are parts of keys.
    latent: bool,
    dtype: KvType,
    window: Option<usize>,
    sinks: bool,
    top_k: Option<usize>,
    /// Rows of a batch see each other.
    looks_ahead: bool,
}

const PLAIN: Shape = Shape {
    n_heads: 4,
    n_kv_heads: 2,
    k_dim: 20,
    out_dim: 12,
    latent: false,
    dtype: KvType::F32,
    window: None,
    sinks: false,
    top_k: None,
    looks_ahead: false,
};

const LATENT: Shape =
    Shape { n_heads: 11, n_kv_heads: 1, k_dim: 83, out_dim: 67, latent: true, ..PLAIN };

const SCALE: f32 = 0.7;
const INDEX_SCALE: f32 = 0.3;
const INDEX_HEADS: usize = 3;
const INDEX_DIM: usize = 21;

/// Rows of the batches that continue the first and the second sequence.
const BATCHES: [[usize; 2]; 6] = [[3, 0], [270, 1], [1, 40], [1, 1], [33, 0], [1, 2]];

/// Which vector.
#[derive(Clone, Copy)]
enum Kind {
    Q,
    K,
    V,
    IndexQ,
    IndexK,
    IndexWeights,
}

/// Where a row of a batch is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    /// The first or the second sequence.
    sequence: usize,
    position: usize,
}

/// The numbers that every run sees in a row.
fn numbers(kind: Kind, row: Row, len: usize) -> Vec<f32> {
    let seed = (row.position * 16 + row.sequence * 8 + kind as usize) as u64;
    let mut random = SplitMix64::new(seed);
    (0..len).map(|_| random.float() * 1.5).collect()
}

fn sinks(n_heads: usize) -> Vec<f32> {
    (0..n_heads).map(|i| i as f32 * 0.9 - 2.0).collect()
}

/// Positions of a sequence in all batches.
const POSITIONS: usize = 320;

/// What caches make of the vectors of a sequence, by position and head.
struct Stored {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    index_keys: Vec<Vec<f32>>,
}

impl Stored {
    fn new(shape: Shape, sequence: usize) -> Stored {
        let all = |kind, n_heads: usize, dim: usize| {
            let heads = |position| {
                let values = numbers(kind, Row { sequence, position }, n_heads * dim);
                values.chunks_exact(dim).map(|row| stored(shape.dtype, row)).collect::<Vec<_>>()
            };
            (0..POSITIONS).flat_map(heads).collect()
        };
        Stored {
            keys: all(Kind::K, shape.n_kv_heads, shape.k_dim),
            values: all(Kind::V, shape.n_kv_heads, shape.out_dim),
            index_keys: all(Kind::IndexK, 1, INDEX_DIM),
        }
    }
}

fn stored(dtype: KvType, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; dtype.row_bytes(values.len())];
    dtype.encode_row(values, &mut bytes);
    let mut read = vec![0.0; values.len()];
    dtype.decode_row(&bytes, &mut read);
    read
}

/// The position after the last one of a row's batch.
fn batch_end(row: Row) -> usize {
    let ends = BATCHES.iter().scan(0, |end, batch| {
        *end += batch[row.sequence];
        Some(*end)
    });
    ends.into_iter().find(|end| *end > row.position).expect("a row of a batch")
}

/// The positions that a row sees.
fn seen(shape: Shape, stored: &Stored, row: Row) -> Vec<usize> {
    let position = row.position;
    let start = shape.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let Some(top_k) = shape.top_k.filter(|top_k| *top_k <= position) else {
        let end = if shape.looks_ahead { batch_end(row) } else { position + 1 };
        return (start..end).collect();
    };
    let q = numbers(Kind::IndexQ, row, INDEX_HEADS * INDEX_DIM);
    let weights = numbers(Kind::IndexWeights, row, INDEX_HEADS);
    let score = |k: &[f32]| {
        let mut sum = 0.0f32;
        for (weight, q) in weights.iter().zip(q.chunks_exact(INDEX_DIM)) {
            sum = weight.mul_add((math::dot(q, k) * INDEX_SCALE).max(0.0), sum);
        }
        sum
    };
    let scores = stored.index_keys[..=position].iter().map(|key| score(key));
    let scores: Vec<f32> = scores.collect();
    let mut order: Vec<usize> = (0..=position).collect();
    order.sort_by(|a, b| scores[*b].partial_cmp(&scores[*a]).expect("numbers"));
    let mut best: Vec<usize> = order[..top_k].to_vec();
    best.retain(|position| *position >= start);
    best.sort_unstable();
    best
}

/// One row by the definition for rows that all see the same positions.
fn want_bidirectional(shape: Shape, stored: &Stored, row: Row) -> Vec<f32> {
    let Shape { n_heads, n_kv_heads, k_dim, out_dim, .. } = shape;
    let q = numbers(Kind::Q, row, n_heads * k_dim);
    let seen = seen(shape, stored, row);
    let mut out = Vec::new();
    for (head, q) in q.chunks_exact(k_dim).enumerate() {
        let at = |j: &usize| j * n_kv_heads + head / (n_heads / n_kv_heads);
        let values = if shape.latent { &stored.keys } else { &stored.values };
        let dot = |key: &[f32]| q.iter().zip(key).fold(0.0, |sum, (q, k)| q.mul_add(*k, sum));
        let (mut max, mut totals) = (f32::NEG_INFINITY, [0.0f32; math::LANES]);
        let mut sums = vec![0.0f32; out_dim];
        for block in seen.chunks(64) {
            let scores: Vec<f32> = block.iter().map(|j| dot(&stored.keys[at(j)]) * SCALE).collect();
            let before = max;
            max = scores.iter().copied().fold(max, f32::max);
            let factor = math::exp(before - max);
            totals.iter_mut().chain(&mut sums).for_each(|value| *value *= factor);
            for (j, score) in block.iter().zip(scores) {
                let weight = math::exp(score - max);
                totals[j % math::LANES] += weight;
                for (sum, value) in sums.iter_mut().zip(&values[at(j)]) {
                    *sum = weight.mul_add(*value, *sum);
                }
            }
        }
        let total = math::tree_sum(totals);
        out.extend(sums.iter().map(|sum| sum / total));
    }
    out
}

/// One row by the definition.
fn want(shape: Shape, stored: &Stored, row: Row) -> Vec<f32> {
    let Shape { n_heads, n_kv_heads, k_dim, out_dim, .. } = shape;
    if shape.looks_ahead && shape.window.is_none() {
        return want_bidirectional(shape, stored, row);
    }
    let q = numbers(Kind::Q, row, n_heads * k_dim);
    let seen = seen(shape, stored, row);
    let mut out = Vec::new();
    for (head, q) in q.chunks_exact(k_dim).enumerate() {
        let at = |j: &usize| j * n_kv_heads + head / (n_heads / n_kv_heads);
        let values = if shape.latent { &stored.keys } else { &stored.values };
        let scores: Vec<f32> =
            seen.iter().map(|j| math::dot(q, &stored.keys[at(j)]) * SCALE).collect();
        let sink = shape.sinks.then(|| sinks(n_heads)[head]);
        let max = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
        let (mut total, mut sums) = (0.0f32, vec![0.0f32; out_dim]);
        for (j, score) in seen.iter().zip(&scores) {
            let weight = math::exp(score - max);
            total += weight;
            for (sum, value) in sums.iter_mut().zip(&values[at(j)]) {
                *sum = weight.mul_add(*value, *sum);
            }
        }
        if let Some(sink) = sink {
            total += math::exp(sink - max);
        }
        out.extend(sums.iter().map(|sum| sum / total));
    }
    out
}

/// A backend with two sequences.
struct Run {
    cpu: Cpu,
    shape: Shape,
    sequences: [Sequence; 2],
    attention: Attention,
    select: Option<SelectPositions>,
}

impl Run {
    fn new(shape: Shape, n_threads: usize, isa: Isa) -> Run {
        let mut cpu = Cpu::new(n_threads, isa);
        let Shape { n_heads, n_kv_heads, k_dim, out_dim, dtype, .. } = shape;
        let v_dim = if shape.latent { 0 } else { out_dim };
        let specs = [
            CacheSpec::Pages { n_heads: n_kv_heads, k_dim, v_dim, dtype, window: None },
            CacheSpec::Pages { n_heads: 1, k_dim: INDEX_DIM, v_dim: 0, dtype, window: None },
        ];
        let sequences = [cpu.new_sequence(&specs), cpu.new_sequence(&specs)];
        let mut cols = |len: usize| Cols { buf: cpu.alloc(300, len), start: 0, len };
        let (out, q) = (cols(n_heads * out_dim), cols(n_heads * k_dim));
        let (k, v) = (cols(n_kv_heads * k_dim), cols(n_kv_heads * out_dim));
        let (index_q, index_k) = (cols(INDEX_HEADS * INDEX_DIM), cols(INDEX_DIM));
        let weights = cols(INDEX_HEADS);
        let selection = shape.top_k.map(|_| cpu.new_selection());
        let select = selection.zip(shape.top_k).map(|(out, top_k)| SelectPositions {
            out,
            q: index_q.heads(INDEX_HEADS),
            k: Some(index_k),
            weights: Some(weights),
            cache: Cache(1),
            scale: INDEX_SCALE,
            top_k,
            pools: None,
        });
        let attention = Attention {
            out: out.heads(n_heads),
            q: q.heads(n_heads),
            append: Some(KeysValues {
                k: k.heads(n_kv_heads),
                v: (!shape.latent).then(|| v.heads(n_kv_heads)),
            }),
            cache: Cache(0),
            scale: SCALE,
            window: shape.window,
            sinks: shape.sinks.then(|| cpu.load_vector(&sinks(n_heads))),
            selection,
            looks_ahead: shape.looks_ahead,
            entries: None,
        };
        Run { cpu, shape, sequences, attention, select }
    }

    fn fill(&mut self, buf: Buf, kind: Kind, rows: &[Row], len: usize) {
        let values: Vec<f32> = rows.iter().flat_map(|row| numbers(kind, *row, len)).collect();
        self.cpu.write(buf, &values);
    }

    /// Attends from `rows`.
    fn step(&mut self, rows: &[Row], spans: &[Span]) -> Vec<f32> {
        let Shape { n_heads, n_kv_heads, k_dim, out_dim, .. } = self.shape;
        let op = self.attention;
        self.fill(op.q.buf, Kind::Q, rows, n_heads * k_dim);
        let KeysValues { k, v } = op.append.expect("keys are appended");
        self.fill(k.buf, Kind::K, rows, n_kv_heads * k_dim);
        if let Some(v) = v {
            self.fill(v.buf, Kind::V, rows, n_kv_heads * out_dim);
        }
        if let Some(select) = self.select {
            self.fill(select.q.buf, Kind::IndexQ, rows, INDEX_HEADS * INDEX_DIM);
            self.fill(select.k.expect("index keys").buf, Kind::IndexK, rows, INDEX_DIM);
            let weights = select.weights.expect("weights of index heads");
            self.fill(weights.buf, Kind::IndexWeights, rows, INDEX_HEADS);
            self.cpu.select_positions(select, spans);
        }
        self.cpu.attention(op, spans);
        self.cpu.read(op.out.buf, rows.len()).expect("the processor works")
    }

    /// All rows of all batches, with their outputs.
    fn all(mut self) -> Vec<(Row, Vec<f32>)> {
        let (mut lens, mut all) = ([0, 0], Vec::new());
        for batch in BATCHES {
            let (mut rows, mut spans) = (Vec::new(), Vec::new());
            for (sequence, n) in batch.into_iter().enumerate().filter(|(_, n)| *n > 0) {
                let positions = lens[sequence]..lens[sequence] + n;
                lens[sequence] = positions.end;
                let of_batch = rows.len()..rows.len() + n;
                let span = Span::new(self.sequences[sequence], of_batch, positions.start);
                spans.push(Span { ahead_to: positions.end, ..span });
                rows.extend(positions.map(|position| Row { sequence, position }));
            }
            let out = self.step(&rows, &spans);
            let width = self.shape.n_heads * self.shape.out_dim;
            let found = rows.iter().zip(out.chunks_exact(width));
            all.extend(found.map(|(row, out)| (*row, out.to_vec())));
        }
        all
    }
}

#[track_caller]
fn check(shape: Shape) {
    let mut reference: Option<Vec<Vec<f32>>> = None;
    for isa in Isa::available() {
        for n_threads in [1, 3] {
            let found = Run::new(shape, n_threads, isa).all();
            let want = reference.get_or_insert_with(|| {
                let stored = [Stored::new(shape, 0), Stored::new(shape, 1)];
                let rows = found.iter();
                rows.map(|(row, _)| want(shape, &stored[row.sequence], *row)).collect()
            });
            for ((row, got), want) in found.iter().zip(want) {
                let same = got.iter().zip(&*want).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(
                    same && got.len() == want.len(),
                    "{shape:?} {isa:?} x{n_threads}, {row:?}: {got:?} is not {want:?}"
                );
            }
        }
    }
}

#[test]
fn heads_that_share_keys() {
    check(PLAIN);
    check(Shape { n_heads: 3, n_kv_heads: 3, k_dim: 16, out_dim: 64, ..PLAIN });
    check(Shape { n_heads: 5, n_kv_heads: 1, k_dim: 1, out_dim: 1, ..PLAIN });
}

#[test]
fn values_that_are_parts_of_keys() {
    check(LATENT);
    check(Shape { dtype: KvType::Q8, ..LATENT });
}

#[test]
fn windows_shorter_and_longer_than_the_sequence() {
    for window in [1, 7, 100, 5000] {
        check(Shape { window: Some(window), n_heads: 6, k_dim: 8, out_dim: 8, ..PLAIN });
    }
}

#[test]
fn sinks_take_part_in_the_softmax() {
    check(Shape { sinks: true, window: Some(9), ..PLAIN });
    check(Shape { sinks: true, ..LATENT });
}

#[test]
fn keys_and_values_of_fewer_bits() {
    for dtype in [KvType::Bf16, KvType::Q8] {
        check(Shape { dtype, k_dim: 70, out_dim: 65, ..PLAIN });
    }
}

#[test]
fn chosen_positions() {
    for top_k in [1, 16, 300] {
        check(Shape { top_k: Some(top_k), n_heads: 5, ..LATENT });
    }
    check(Shape { top_k: Some(40), window: Some(30), sinks: true, dtype: KvType::Q8, ..PLAIN });
}

#[test]
fn a_choice_of_all_positions_has_the_bits_of_no_choice() {
    let all = |top_k| Run::new(Shape { top_k, ..LATENT }, 2, Isa::detect()).all();
    assert_eq!(all(Some(100_000)), all(None));
}

#[test]
fn rows_that_see_each_other() {
    check(Shape { looks_ahead: true, ..PLAIN });
    check(Shape { looks_ahead: true, dtype: KvType::Q8, ..LATENT });
    let heads = Shape { n_heads: 3, n_kv_heads: 3, looks_ahead: true, ..PLAIN };
    for (k_dim, out_dim) in [(72, 72), (1, 1), (64, 128), (16, 33)] {
        check(Shape { k_dim, out_dim, ..heads });
    }
    // More groups of queries in a tile than positions in a block.
    check(Shape { n_heads: 32, n_kv_heads: 1, k_dim: 8, out_dim: 8, ..heads });
    for window in [1, 9, 100, 5000] {
        check(Shape { looks_ahead: true, window: Some(window), sinks: true, ..PLAIN });
    }
}

#[test]
fn blocks_are_cut_at_multiples() {
    let found: Vec<_> = blocks(5..37, 16).collect();
    assert_eq!(found, [5..16, 16..32, 32..37]);
    assert_eq!(blocks(32..32, 16).count(), 0);
}
