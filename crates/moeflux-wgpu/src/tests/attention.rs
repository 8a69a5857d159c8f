//! The two kernels of attention against each other.

use std::sync::Arc;

use moeflux_backend::{
    ActivationPrecision, Attention, Cache, CacheSpec, Cols, ExpertResidency, GatedAttention, Heads,
    KeysValues, KvType, Ops, Projection, Recording, RmsNorm, RopePairs, RopeSpec, SelectPositions,
    Sequences, Span,
};
use moeflux_core::quant::{Affine, Float, MatrixFormat};

use super::coop_matrix::tiles;
use super::{context, matrix};
use crate::backend::new_backend;
use crate::self_test::coop_matrix::tolerance_of_attention;
use crate::state::gpu::Wgpu;
use crate::tests::metal::cases::Capturing;
use crate::{Context, Tiles};

#[derive(Clone, Copy, Debug)]
struct Shape {
    n_heads: usize,
    n_kv_heads: usize,
    k_dim: usize,
    /// 0 where values are the first floats of keys.
    v_dim: usize,
    out_dim: usize,
    dtype: KvType,
    window: Option<usize>,
    top_k: Option<usize>,
    scale: f32,
    /// By what values of every second step are multiplied.
    loudness: f32,
    /// Whether queries and keys are rotated first, and outputs gated.
    is_gated: bool,
    /// Whether rows of a span see each other.
    looks_ahead: bool,
    /// Of a step.
    rows: usize,
}

const PLAIN: Shape = Shape {
    n_heads: 6,
    n_kv_heads: 2,
    k_dim: 40,
    v_dim: 24,
    out_dim: 24,
    dtype: KvType::F32,
    window: None,
    top_k: None,
    scale: 0.7,
    loudness: 1.0,
    is_gated: false,
    looks_ahead: false,
    rows: FEW,
};

const LATENT: Shape =
    Shape { n_heads: 9, n_kv_heads: 1, k_dim: 70, v_dim: 0, out_dim: 51, ..PLAIN };

/// Rows of a step where many are not needed, and where they are.
const FEW: usize = 37;
const MANY: usize = 66;

/// How many of `FEW` rows of each step are the first sequence's.
const STEPS: [usize; 12] = [1, 33, 30, 36, 2, 33, 35, 34, 33, 1, 36, 35];

fn floats(seed: u32, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i as f32 + 1.0) * 0.618 + seed as f32 * 1.7).sin() * 2.0).collect()
}

/// The bits of all rows of some steps of two sequences, one of which grows
/// beyond a piece of its cache.
fn bits(b: &mut Wgpu, shape: Shape) -> Vec<u32> {
    let Shape { n_heads, n_kv_heads, k_dim, v_dim, out_dim, dtype, rows, .. } = shape;
    let specs = [
        CacheSpec::Pages { n_heads: n_kv_heads, k_dim, v_dim, dtype, window: None },
        CacheSpec::Pages { n_heads: 1, k_dim: 16, v_dim: 0, dtype: KvType::F32, window: None },
    ];
    let (first, second) = (b.new_sequence(&specs), b.new_sequence(&specs));
    let cols = |b: &mut Wgpu, len| Cols { buf: b.alloc(rows, len), start: 0, len };
    let (q, k) = (cols(b, n_heads * k_dim), cols(b, n_kv_heads * k_dim));
    let v = (v_dim > 0).then(|| cols(b, n_kv_heads * v_dim));
    let (out, index) = (cols(b, n_heads * out_dim), cols(b, 16 + 16 + 1));
    let select = shape.top_k.map(|top_k| SelectPositions {
        out: b.new_selection(),
        q: index.slice(0, 16).heads(1),
        k: Some(index.slice(16, 16)),
        weights: Some(index.slice(32, 1)),
        cache: Cache(1),
        scale: 0.5,
        top_k,
        pools: None,
    });
    let attention = Attention {
        out: out.heads(n_heads),
        q: q.heads(n_heads),
        append: Some(KeysValues { k: k.heads(n_kv_heads), v: v.map(|buf| buf.heads(n_kv_heads)) }),
        cache: Cache(0),
        scale: shape.scale,
        window: shape.window,
        sinks: None,
        selection: select.map(|select| select.out),
        looks_ahead: shape.looks_ahead,
        entries: None,
    };
    let gated = shape.is_gated.then(|| {
        let inv_freq = vec![0.3, 0.05];
        let rope = b.load_rope(RopeSpec {
            inv_freq,
            pairs: RopePairs::Halves,
            scale: 1.0,
            parts: Vec::new(),
        });
        let gate = cols(b, n_heads * out_dim).heads(n_heads);
        b.write(gate.buf, &floats(99, rows * n_heads * out_dim));
        GatedAttention {
            v_norm: None,
            q_norm: None,
            k_norm: None,
            rope,
            attention,
            gate: Some(gate),
        }
    });
    let mut all = Vec::new();
    let (mut at, mut other) = (0, 0);
    for (step, n) in STEPS.into_iter().enumerate() {
        let n = n * rows / FEW;
        for (seed, cols) in (3 * step as u32..).zip([q, k, index].into_iter().chain(v)) {
            let is_louder = step % 2 == 1 && v.is_some_and(|v| v.buf == cols.buf);
            let factor = if is_louder { shape.loudness } else { 1.0 };
            let all = floats(seed, rows * cols.len).into_iter().map(|value| factor * value);
            b.write(cols.buf, &all.collect::<Vec<f32>>());
        }
        let span = |sequence, its: std::ops::Range<usize>, position| Span {
            ahead_to: position + its.len(),
            ..Span::new(sequence, its, position)
        };
        let spans = [span(first, 0..n, at), span(second, n..rows, other)];
        (at, other) = (at + n, other + rows - n);
        if let Some(select) = select {
            b.select_positions(select, &spans);
        }
        match gated {
            Some(op) => b.gated_attention(op, &spans),
            None => b.attention(attention, &spans),
        }
        all.extend(
            b.read(out.buf, rows).expect("the device works").iter().map(|value| value.to_bits()),
        );
    }
    all
}

#[test]
fn sharing_keys_changes_no_bit() {
    let Some(context) = context() else { return };
    let capturing = Capturing::new(&context);
    for shape in [
        PLAIN,
        Shape { is_gated: true, ..PLAIN },
        Shape { n_heads: 1, n_kv_heads: 1, k_dim: 3, v_dim: 1, out_dim: 1, ..PLAIN },
        Shape { dtype: KvType::Bf16, window: Some(70), k_dim: 33, ..PLAIN },
        Shape { dtype: KvType::Q8, k_dim: 100, v_dim: 130, out_dim: 130, ..PLAIN },
        Shape { window: Some(1), is_gated: true, ..PLAIN },
        Shape { window: Some(129), v_dim: 260, out_dim: 260, ..PLAIN },
        Shape { k_dim: 64, v_dim: 600, out_dim: 600, ..PLAIN },
        LATENT,
        Shape { dtype: KvType::Q8, top_k: Some(20), ..LATENT },
        Shape { dtype: KvType::Bf16, top_k: Some(200), window: Some(150), ..LATENT },
    ] {
        let [alone, shared] = [usize::MAX, 1].map(|least| {
            let mut b = capturing.open();
            b.least_shared_queries = least;
            bits(&mut b, shape)
        });
        assert!(alone.iter().any(|bits| *bits != 0), "{shape:?}: nothing but zeros");
        let first = alone.iter().zip(&shared).position(|(alone, shared)| alone != shared);
        assert_eq!(first, None, "{shape:?}: from the row of that element on");
    }
}

#[test]
fn units_for_matrices_agree_with_singles() {
    let Some(context) = context() else { return };
    let Some(tiles) = tiles(&context) else { return };
    // Scores of a few units, so that what singles round off hardly shows.
    let wide = Shape { k_dim: 64, v_dim: 32, out_dim: 32, scale: 0.05, rows: MANY, ..PLAIN };
    for shape in [
        wide,
        Shape { is_gated: true, ..wide },
        Shape { dtype: KvType::Bf16, window: Some(70), k_dim: 96, ..wide },
        Shape { dtype: KvType::Q8, k_dim: 32, v_dim: 256, out_dim: 256, ..wide },
        Shape { window: Some(1), is_gated: true, ..wide },
        Shape { looks_ahead: true, ..wide },
        // With columns behind those of vectors, as heads of vision towers have.
        Shape { k_dim: 72, v_dim: 72, out_dim: 72, looks_ahead: true, ..wide },
        Shape { k_dim: 80, v_dim: 24, out_dim: 24, is_gated: true, ..wide },
        Shape { dtype: KvType::Q8, k_dim: 72, v_dim: 48, out_dim: 48, ..wide },
        Shape { looks_ahead: true, window: Some(33), is_gated: true, ..wide },
        Shape { n_heads: 9, n_kv_heads: 1, k_dim: 160, v_dim: 0, out_dim: 96, ..wide },
        Shape { dtype: KvType::Bf16, top_k: Some(200), ..wide },
        // In blocks of 64 columns, where elements are one half each.
        Shape { k_dim: 192, v_dim: 128, out_dim: 128, is_gated: true, ..wide },
        // Values in two parts.
        Shape { n_heads: 4, n_kv_heads: 1, v_dim: 512, out_dim: 512, is_gated: true, ..wide },
        Shape { n_kv_heads: 1, k_dim: 544, v_dim: 0, out_dim: 320, scale: 0.005, ..wide },
        // Neither is a half.
        Shape { loudness: 1e7, ..wide },
        Shape { loudness: 1e-9, ..wide },
    ] {
        for inputs in [ActivationPrecision::F32, ActivationPrecision::Int16] {
            compare_units_with_singles(&context, tiles, shape, inputs);
        }
    }
}

fn compare_units_with_singles(
    context: &Arc<Context>,
    tiles: Tiles,
    shape: Shape,
    inputs: ActivationPrecision,
) {
    let [want, got] = [Tiles::F32, tiles].map(|tiles| {
        let mut b = Wgpu::with_tiles(Arc::clone(context), None, tiles);
        b.attention_inputs = inputs;
        b.least_shared_queries = 1;
        bits(&mut b, shape).into_iter().map(f32::from_bits).collect::<Vec<f32>>()
    });
    assert!(want != got, "{shape:?}: the same kernel");
    // Sines of amplitude 2: vectors are as long as the root of twice their elements.
    let score = shape.scale * 2.0 * shape.k_dim as f32;
    let of_step = MANY * shape.n_heads * shape.out_dim;
    let (mut first, mut second) = (0, 0);
    for (step, (want, got)) in want.chunks(of_step).zip(got.chunks(of_step)).enumerate() {
        let n = STEPS[step] * MANY / FEW;
        (first, second) = (first + n, second + MANY - n);
        let tolerance = tolerance_of_attention(inputs, first.max(second), shape.k_dim, score);
        // Halves round off a share of values, which may be far larger than their mean.
        let largest = match inputs {
            ActivationPrecision::F32 => want.iter().fold(0.0f32, |max, value| max.max(value.abs())),
            _ if step == 0 => 2.0,
            _ => 2.0 * shape.loudness.max(1.0),
        };
        let worst = want.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
        let is_close = got.iter().all(|value| value.is_finite()) && worst <= tolerance * largest;
        assert!(
            is_close,
            "{shape:?}, {inputs:?}, step {step}: {worst:e} of {largest:e}, {tolerance:e}"
        );
    }
}

/// The bits of all rows of a layer and of products with few of them, which a kernel rounds `next
/// to` others or by itself; the kernels of the last step. Keys and values are in one buffer with
/// queries, or apart.
fn layer_bits(b: &mut Wgpu, beside: bool, is_one: bool) -> (Vec<u32>, u64) {
    let (n_heads, n_kv_heads, dim) = (4, 2, 64);
    let specs = [CacheSpec::Pages {
        n_heads: n_kv_heads,
        k_dim: dim,
        v_dim: dim,
        dtype: KvType::F32,
        window: None,
    }];
    let sequence = b.new_sequence(&specs);
    let cols = |b: &mut Wgpu, len| Cols { buf: b.alloc(70, len), start: 0, len };
    let format = MatrixFormat::Affine(Affine::new(4, 64, Float::BF16));
    let weight = matrix(b, format, 40, n_heads * dim, ActivationPrecision::Int16);
    let widths = [2 * n_heads * dim, 2 * n_kv_heads * dim];
    let [q, kv] = if is_one {
        let all = cols(b, widths.iter().sum());
        [all.slice(0, widths[0]), all.slice(widths[0], widths[1])]
    } else {
        widths.map(|width| cols(b, width))
    };
    let (out, y) = (cols(b, n_heads * dim), cols(b, 40));
    // Queries and gates are head by head.
    let part = |start| Heads { buf: q.buf, start, n_heads, head_dim: dim, stride: 2 * dim };
    let inputs = [cols(b, widths[0]), cols(b, widths[1])];
    let k = kv.slice(0, n_kv_heads * dim).heads(n_kv_heads);
    let v = kv.slice(n_kv_heads * dim, n_kv_heads * dim).heads(n_kv_heads);
    let attention = Attention {
        out: out.heads(n_heads),
        q: part(0),
        append: Some(KeysValues { k, v: Some(v) }),
        cache: Cache(0),
        scale: 0.125,
        window: None,
        sinks: None,
        selection: None,
        looks_ahead: false,
        entries: None,
    };
    let inv_freq = vec![0.3, 0.05];
    let rope =
        b.load_rope(RopeSpec { inv_freq, pairs: RopePairs::Halves, scale: 1.0, parts: Vec::new() });
    let weights = b.load_vector(&floats(8, dim));
    let norm = |x| RmsNorm { out: x, x, weight: weights, eps: 1e-6 };
    let (q_norm, k_norm) = (Some(norm(part(0))), Some(norm(k)));
    let op =
        GatedAttention { v_norm: None, q_norm, k_norm, rope, attention, gate: Some(part(dim)) };
    let (mut all, mut n_kernels, mut position) = (Vec::new(), 0, 0);
    for n in [3, 70, 1, 8, 1] {
        for (seed, (from, to)) in (5..).zip(inputs.into_iter().zip([q, kv])) {
            b.write(from.buf, &floats(seed + position as u32, n * from.len));
            b.copy(n, to.heads(1), from.heads(1));
        }
        b.flush();
        if !beside {
            b.bufs[out.buf.0 as usize].wanted = None;
        }
        let kernels = |b: &Wgpu| b.counters().stats().kernels;
        let before = kernels(b);
        b.gated_attention(op, &[Span::new(sequence, 0..n, position)]);
        b.project(n, out, &[Projection { weight, out: y }]);
        for cols in [out, y] {
            let read = b.read(cols.buf, n).expect("the device works");
            all.extend(read.iter().map(|value| value.to_bits()));
        }
        n_kernels = kernels(b) - before;
        position += n;
    }
    (all, n_kernels)
}

#[test]
fn attention_rounds_for_the_product_behind_it_wherever_keys_lie() {
    let Some(context) = context() else { return };
    let bits =
        |beside, is_one| layer_bits(&mut new_backend(Arc::clone(&context), None), beside, is_one);
    let (want, n_apart) = bits(false, false);
    assert!(want.iter().any(|bits| f32::from_bits(*bits).abs() > 1e-6));
    for is_one in [false, true] {
        let (got, n_beside) = bits(true, is_one);
        assert!(got == want, "not a bit differs");
        assert_eq!(n_beside + 1, n_apart);
    }
}
