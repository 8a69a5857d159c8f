//! Attention and the choice of positions.

use super::mixers::run_steps;
use super::suite::{Numbers, Suite, filled, read};
use crate::{
    Attention, Backend, Cache, CacheSpec, Cols, GatedAttention, Heads, KeysValues, KvType,
    PoolFunction, PoolKeys, PositionPart, RmsNorm, RopePairs, RopeSpec, RotaryPositions,
    RowPosition, SelectPositions, Span,
};

/// Most rows of a step.
const ROWS: usize = 5;

#[derive(Clone, Copy, Debug)]
struct Shape {
    n_heads: usize,
    n_kv_heads: usize,
    k_dim: usize,
    /// `None` where values are the first `out_dim` floats of keys.
    v_dim: Option<usize>,
    out_dim: usize,
    dtype: KvType,
    window: Option<usize>,
    sinks: bool,
    top_k: Option<usize>,
    /// Positions of a pool, where these are chosen.
    pool: Option<usize>,
    /// Whether positions have shares in the keys of their pools.
    gates_pools: bool,
    /// Whether another op has appended the keys and values.
    is_shared: bool,
}

impl Shape {
    fn new(n_heads: usize, n_kv_heads: usize, k_dim: usize, v_dim: usize) -> Shape {
        Shape {
            n_heads,
            n_kv_heads,
            k_dim,
            v_dim: Some(v_dim),
            out_dim: v_dim,
            dtype: KvType::F32,
            window: None,
            sinks: false,
            top_k: None,
            pool: None,
            gates_pools: false,
            is_shared: false,
        }
    }

    /// Columns of an index key.
    fn index_key_len(&self) -> usize {
        if self.gates_pools { 2 * 17 } else { 17 }
    }

    fn latent(n_heads: usize, k_dim: usize, out_dim: usize) -> Shape {
        Shape { v_dim: None, ..Shape::new(n_heads, 1, k_dim, out_dim) }
    }
}

pub(super) fn check(suite: &Suite<'_>) {
    let plain = Shape::new(4, 2, 20, 12);
    let latent = Shape::latent(7, 41, 35);
    for shape in [
        Shape::new(1, 1, 16, 16),
        plain,
        Shape::new(6, 1, 64, 128),
        Shape { sinks: true, window: Some(3), ..plain },
        Shape { window: Some(300), ..plain },
        Shape { window: Some(1), ..plain },
        Shape { dtype: KvType::Bf16, ..plain },
        Shape { dtype: KvType::Q8, ..Shape::new(6, 3, 70, 65) },
        latent,
        Shape::latent(16, 72, 64),
        Shape { dtype: KvType::Q8, sinks: true, ..Shape::latent(5, 130, 100) },
        Shape { top_k: Some(7), ..latent },
        Shape { top_k: Some(260), dtype: KvType::Bf16, ..latent },
        Shape { top_k: Some(9), window: Some(20), dtype: KvType::Q8, ..plain },
        Shape { top_k: Some(5), pool: Some(4), ..plain },
        Shape { top_k: Some(60), pool: Some(3), ..plain },
        Shape { top_k: Some(2), pool: Some(37), ..latent },
        Shape { top_k: Some(5), pool: Some(4), gates_pools: true, ..plain },
        Shape { top_k: Some(20), pool: Some(5), gates_pools: true, ..latent },
        Shape { is_shared: true, ..plain },
        Shape { is_shared: true, dtype: KvType::Q8, window: Some(9), ..latent },
    ] {
        suite.case(&format!("attention {shape:?}"), &|b| attention(b, shape));
    }
    for size in [3, 4, 9] {
        let shape = Shape { top_k: Some(2), pool: Some(size), ..plain };
        suite.case(&format!("pools of {size} rows of images"), &|b| image_pools(b, shape));
    }
    for shape in [
        Shape::new(4, 4, 72, 72),
        Shape { window: Some(4), sinks: true, ..plain },
        Shape { window: Some(40), dtype: KvType::Q8, ..plain },
        latent,
    ] {
        suite.case(&format!("attention that looks ahead, {shape:?}"), &|b| look_ahead(b, shape));
    }
    for dtype in [KvType::F32, KvType::Bf16, KvType::Q8] {
        for norm_heads in [None, Some(true), Some(false)] {
            let name = format!("gated_attention {dtype:?}, norms of heads {norm_heads:?}");
            suite.case(&name, &|b| {
                gated_attention(b, Mixer { dtype, norm_heads, of_values: None, dim: 70 })
            });
        }
        for (of_keys, dim) in [(false, 70), (true, 70), (true, 512)] {
            let mixer = Mixer { dtype, norm_heads: Some(true), of_values: Some(of_keys), dim };
            suite.case(&format!("gated_attention {mixer:?}"), &|b| gated_attention(b, mixer));
        }
    }
}

/// A whole mixer.
#[derive(Clone, Copy, Debug)]
struct Mixer {
    dtype: KvType,
    /// Whether it has norms of heads or of all heads.
    norm_heads: Option<bool>,
    /// Where values have norms, whether these read keys.
    of_values: Option<bool>,
    dim: usize,
}

fn gated_attention(b: &mut dyn Backend, mixer: Mixer) -> Vec<f32> {
    let Mixer { dtype, norm_heads, of_values, dim } = mixer;
    let (n_heads, n_kv_heads) = (4, 2);
    let both = filled(b, ROWS, n_heads * 2 * dim, 80);
    let part = |start| Heads { buf: both.buf, start, n_heads, head_dim: dim, stride: 2 * dim };
    let plain = filled(b, ROWS, n_heads * dim, 81);
    // Queries next to their gates cannot be normalised together.
    let are_apart = norm_heads == Some(false);
    let q = if are_apart { plain.heads(n_heads) } else { part(0) };
    let k = filled(b, ROWS, n_kv_heads * dim, 82);
    let v = filled(b, ROWS, n_kv_heads * dim, 83);
    let out = filled(b, ROWS, n_heads * dim, 84);
    let mut norm = |x: Heads, seed| {
        let weight = b.load_vector(&Numbers::new(seed).floats(x.head_dim));
        RmsNorm { out: x, x, weight, eps: 1e-6 }
    };
    let norms = norm_heads.map(|of_heads| {
        if of_heads {
            (norm(q, 85), norm(k.heads(n_kv_heads), 86))
        } else {
            (norm(plain.heads(1), 85), norm(k.heads(1), 86))
        }
    });
    let v_norm = of_values.map(|of_keys| {
        let x = if of_keys { k } else { v }.heads(n_kv_heads);
        RmsNorm { out: v.heads(n_kv_heads), ..norm(x, 89) }
    });
    let inv_freq = (0..17).map(|i| 0.7f32.powi(i)).collect();
    let pairs = if are_apart { RopePairs::Adjacent } else { RopePairs::Halves };
    let rope = b.load_rope(RopeSpec { inv_freq, pairs, scale: 1.0, parts: Vec::new() });
    let attention = Attention {
        out: out.heads(n_heads),
        q,
        append: Some(KeysValues { k: k.heads(n_kv_heads), v: Some(v.heads(n_kv_heads)) }),
        cache: Cache(0),
        scale: 0.5,
        window: None,
        sinks: are_apart.then(|| b.load_vector(&Numbers::new(87).floats(n_heads))),
        selection: None,
        looks_ahead: false,
        entries: None,
    };
    let (q_norm, k_norm) = norms.unzip();
    let op = GatedAttention { v_norm, q_norm, k_norm, rope, attention, gate: Some(part(dim)) };
    let specs =
        [CacheSpec::Pages { n_heads: n_kv_heads, k_dim: dim, v_dim: dim, dtype, window: None }];
    let mut seed = 88;
    let mut step = |b: &mut dyn Backend, spans: &[Span]| {
        for cols in [both, plain, k, v] {
            seed += 1;
            b.write(cols.buf, &Numbers::new(seed).floats(ROWS * cols.len));
        }
        b.gated_attention(op, spans);
    };
    let mut all = run_steps(b, &specs, out, &mut step);
    let sequence = b.new_sequence(&specs);
    for position in (0..30).map(|step| ROWS * step) {
        step(b, &[Span::new(sequence, 0..ROWS, position)]);
    }
    all.extend(read(b, out.buf, ROWS));
    all
}

/// Pools whose keys are means.
fn mean(b: &mut dyn Backend) -> PoolFunction {
    PoolFunction::Mean {
        weight: b.load_vector(&Numbers::new(39).floats(17)),
        eps: 1e-6,
        rope: b.load_rope(RopeSpec {
            inv_freq: (0..5).map(|i| 0.5f32.powi(i)).collect(),
            pairs: RopePairs::Halves,
            scale: 1.0,
            parts: vec![
                PositionPart::Temporal,
                PositionPart::Height,
                PositionPart::Width,
                PositionPart::Width,
                PositionPart::Temporal,
            ],
        }),
    }
}

/// Pools whose positions have shares by gates.
fn gated(b: &mut dyn Backend, size: usize) -> PoolFunction {
    PoolFunction::Gated { bias: b.load_vector(&Numbers::new(38).floats(size * 17)) }
}

/// Pools of the rows of an image, which steps cut, and of the text after it.
fn image_pools(b: &mut dyn Backend, shape: Shape) -> Vec<f32> {
    const IMAGE: usize = 60;
    let ops = Ops::new(b, shape);
    let sequence = b.new_sequence(&ops.specs(shape));
    let position = |row: usize| {
        let part = |offset: usize| (row / 7 + offset) as u32;
        let image = RowPosition { temporal: part(0), height: part(row % 3), width: part(row % 5) };
        if row < IMAGE { image } else { RowPosition::text((row - 40) as u32) }
    };
    let n_before = shape.pool.map_or(0, |size| size - 1);
    let (mut all, mut first) = (Vec::new(), 0);
    for n in (1..=ROWS).cycle().take(25) {
        let rows = first..first + n;
        let rotary = if first < IMAGE {
            RotaryPositions::Each(rows.clone().map(position).collect())
        } else {
            RotaryPositions::Shifted(-40)
        };
        let rotary_before = (first.saturating_sub(n_before)..first).map(position).collect();
        let span = Span { rotary, rotary_before, ..Span::new(sequence, 0..n, first) };
        ops.step(b, 2000 + first as u64, &[span]);
        all.extend(read(b, ops.attention.out.buf, n));
        first = rows.end;
    }
    all
}

/// Rows that see what follows them: an image of a few steps, whose keys are appended before any of
/// them attends, and one within a step.
fn look_ahead(b: &mut dyn Backend, shape: Shape) -> Vec<f32> {
    let ops = Ops::new(b, shape);
    let attention = Attention { looks_ahead: true, ..ops.attention };
    let append = attention.append.expect("keys are appended");
    let (k_dim, dtype) = (shape.k_dim, shape.dtype);
    let v_dim = shape.v_dim.unwrap_or(0);
    let n_heads = shape.n_kv_heads;
    let specs = [CacheSpec::Pages { n_heads, k_dim, v_dim, dtype, window: None }];
    let sequence = b.new_sequence(&specs);
    let write = |b: &mut dyn Backend, seed: usize| {
        b.write(ops.k.buf, &Numbers::new(50 + seed as u64).floats(ROWS * ops.k.len));
    };
    // Three images of an uneven number of steps, the last of which ends in another page.
    let mut all = Vec::new();
    let mut position = 0;
    for n_steps in [3, 1, 60] {
        let first = position;
        let ahead_to = first + n_steps * ROWS;
        let span =
            |step: usize| Span { ahead_to, ..Span::new(sequence, 0..ROWS, first + step * ROWS) };
        for step in 0..n_steps {
            write(b, step);
            b.append(attention.cache, append, &[span(step)]);
        }
        for step in (0..n_steps).step_by(7) {
            b.attention(Attention { append: None, ..attention }, &[span(step)]);
            all.extend(read(b, attention.out.buf, ROWS));
        }
        // Text, and an image within it.
        write(b, n_steps);
        let text = Span::new(sequence, 0..1, ahead_to);
        let image = Span { ahead_to: ahead_to + 4, ..Span::new(sequence, 1..4, ahead_to + 1) };
        let after = Span::new(sequence, 4..ROWS, ahead_to + 4);
        b.attention(attention, &[text, image, after]);
        all.extend(read(b, attention.out.buf, ROWS));
        position = ahead_to + ROWS;
    }
    all
}

/// Ops over their own buffers, which a step writes anew.
struct Ops {
    attention: Attention,
    /// Reads what the first has appended.
    reader: Option<Attention>,
    select: Option<SelectPositions>,
    k: Cols,
    index: Option<Cols>,
}

impl Ops {
    fn new(b: &mut dyn Backend, shape: Shape) -> Ops {
        let Shape { n_heads, n_kv_heads, .. } = shape;
        let out = filled(b, ROWS, n_heads * shape.out_dim, 30);
        let q = filled(b, ROWS, n_heads * shape.k_dim + 3, 31).slice(2, n_heads * shape.k_dim);
        let k = filled(b, ROWS, n_kv_heads * shape.k_dim, 32);
        let v = shape.v_dim.map(|dim| filled(b, ROWS, n_kv_heads * dim, 33).heads(n_kv_heads));
        let key_len = shape.index_key_len();
        let index = shape.top_k.map(|_| filled(b, ROWS, 3 * 17 + key_len + 3, 34));
        let pools = shape.pool.map(|size| {
            let function = if shape.gates_pools { gated(b, size) } else { mean(b) };
            PoolKeys { size, function }
        });
        let select = shape.top_k.zip(index).map(|(top_k, index)| SelectPositions {
            out: b.new_selection(),
            q: index.slice(0, 3 * 17).heads(3),
            k: Some(index.slice(3 * 17, key_len)),
            weights: (shape.pool.is_none() || shape.gates_pools)
                .then(|| index.slice(3 * 17 + key_len, 3)),
            cache: Cache(1),
            scale: 0.4,
            top_k,
            pools,
        });
        let attention = Attention {
            out: out.heads(n_heads),
            q: q.heads(n_heads),
            append: Some(KeysValues { k: k.heads(n_kv_heads), v }),
            cache: Cache(0),
            scale: 2.5,
            window: shape.window,
            sinks: shape.sinks.then(|| b.load_vector(&Numbers::new(35).floats(n_heads))),
            selection: select.map(|selection| selection.out),
            looks_ahead: false,
            entries: None,
        };
        let reader = shape.is_shared.then(|| Attention {
            out: filled(b, ROWS, n_heads * shape.out_dim, 40).heads(n_heads),
            q: filled(b, ROWS, n_heads * shape.k_dim, 41).heads(n_heads),
            append: None,
            ..attention
        });
        Ops { attention, reader, select, k, index }
    }

    /// The caches.
    fn specs(&self, shape: Shape) -> [CacheSpec; 2] {
        let dtype = shape.dtype;
        [
            CacheSpec::Pages {
                n_heads: shape.n_kv_heads,
                k_dim: shape.k_dim,
                v_dim: shape.v_dim.unwrap_or(0),
                dtype,
                window: None,
            },
            CacheSpec::Pages {
                n_heads: 1,
                k_dim: shape.index_key_len(),
                v_dim: 0,
                dtype,
                window: None,
            },
        ]
    }

    /// A step whose keys follow from `seed`.
    fn step(&self, b: &mut dyn Backend, seed: u64, spans: &[Span]) {
        for cols in self.index.into_iter().chain([self.k]) {
            b.write(cols.buf, &Numbers::new(seed).floats(ROWS * cols.len));
        }
        if let Some(select) = self.select {
            b.select_positions(select, spans);
        }
        b.attention(self.attention, spans);
        if let Some(reader) = self.reader {
            b.attention(reader, spans);
        }
    }
}

fn attention(b: &mut dyn Backend, shape: Shape) -> Vec<f32> {
    let ops = Ops::new(b, shape);
    let specs = ops.specs(shape);
    let last = ops.reader.unwrap_or(ops.attention);
    let out = Cols { buf: last.out.buf, start: 0, len: shape.n_heads * shape.out_dim };
    let mut seed = 36;
    let mut all = run_steps(b, &specs, out, &mut |b, spans| {
        seed += 1;
        ops.step(b, seed, spans);
    });
    // Long enough for several pages of the cache.
    let sequence = b.new_sequence(&specs);
    for step in 0..130 {
        let position = ROWS * step;
        ops.step(b, 1000 + step as u64, &[Span::new(sequence, 0..ROWS, position)]);
    }
    all.extend(read(b, out.buf, ROWS));
    all
}
