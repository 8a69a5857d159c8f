//! Whether a device's cooperative matrices give what they should: drivers differ in what they
//! make of halves.

use std::sync::Arc;

use moeflux_backend::{
    ActivationPrecision, Attention, Backend, Cache, CacheSpec, Cols, HostMatrix, KeysValues,
    KvType, Projection, Span,
};
use moeflux_core::quant::{Affine, Float, MatrixFormat, MicroScaled};
use moeflux_core::{HostBuf, SplitMix64};

use crate::device::context::Context;
use crate::layouts::format::Decoder;
use crate::layouts::product::{F16Tiles, Tiles};
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::activation_quant;

/// Rows of activations and of the matrix: more than a tile of each.
const SHAPE: (usize, usize) = (150, 140);

/// A matrix of products that are compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestMatrix {
    pub(crate) format: MatrixFormat,
    pub(crate) cols: usize,
}

const MATRICES: [TestMatrix; 6] = [
    TestMatrix { format: affine(4, 32), cols: 512 },
    TestMatrix { format: affine(4, 64), cols: 2048 },
    TestMatrix { format: affine(4, 128), cols: 2048 },
    TestMatrix { format: MatrixFormat::Micro(MicroScaled::MXFP4), cols: 512 },
    TestMatrix { format: MatrixFormat::Dense(Float::BF16), cols: 512 },
    TestMatrix { format: affine(8, 64), cols: 512 },
];

/// Of these all sizes of tiles are tried.
const IN_ALL_SIZES: [MatrixFormat; 2] = [affine(4, 32), MatrixFormat::Dense(Float::BF16)];

pub(crate) const fn affine(bits: u8, group_size: usize) -> MatrixFormat {
    MatrixFormat::Affine(Affine::new(bits, group_size, Float::BF16))
}

/// Columns that units take in a step.
const STEP: usize = 16;

/// Share of the largest result by which results may differ.
///
/// Units add the products of a step to a sum of 24 bits and cut off what is below, always to the
/// same side, so that errors of all steps add up: 2^-23 each. Kernels of `f32` round each of their
/// sums to the nearest, 2^-24 at most, to either side: of these the root of their number counts. An
/// element takes this many products of halves; that of two lower ones, which is left out, is below
/// 2^-22 of it. Where a half's lower part is lost, inputs are off by up to 2^-11 each, which at
/// these sizes shows with 3e-4, ten times what is allowed. Inputs that are one half each are integers
/// of so few bits that halves hold them, and sums of a group of them, exactly.
fn tolerance(n_products: usize, cols: usize) -> f32 {
    let cut = (n_products * cols.div_ceil(STEP)) as f32 * f32::EPSILON;
    let rounded = (cols as f32).sqrt() * f32::EPSILON / 2.0;
    cut + rounded
}

/// Products that units add up for 16 columns: of upper parts, and of an upper and a lower
/// one, both ways.
const PRODUCTS: usize = 3;

/// Share of an element that a half rounds off at most.
const HALF: f32 = 1.0 / 4096.0;

/// How far attention to this many positions, with scores of at most this size, may be off. Weights
/// are off by as much as scores are, of which units cut off what they do of any sum.
///
/// Where elements are one half each, those of queries and keys are rounded apart from each other:
/// of what scores are off by the root of the number of columns counts. To it come roundings of a
/// weight and of a value.
pub(crate) fn tolerance_of_attention(
    inputs: ActivationPrecision,
    positions: usize,
    k_dim: usize,
    score: f32,
) -> f32 {
    let halves = match inputs {
        ActivationPrecision::F32 => 0.0,
        _ => (2.0 + 4.0 * score / (k_dim as f32).sqrt()) * HALF,
    };
    let steps = |n: usize| (PRODUCTS * n.div_ceil(STEP)) as f32;
    let cut = (steps(positions) + score * steps(k_dim)) * f32::EPSILON;
    let rounded = ((positions as f32).sqrt() + score * (k_dim as f32).sqrt()) * f32::EPSILON / 2.0;
    halves + cut + rounded
}

/// Of attention: rows, heads of queries and of keys, and floats of each.
const ROWS: usize = 150;
const HEADS: (usize, usize) = (4, 2);
const HEAD_DIM: usize = 64;

const SCALE: f32 = 0.06;

/// Whether products may go through cooperative matrices of f16: the device has them, and they
/// are right.
pub fn uses_coop_matrix(context: &Arc<Context>) -> bool {
    context.has_coop_matrix && *context.coop_matrix_is_right.get_or_init(|| are_right(context))
}

/// What products with many rows are fastest by on a device.
pub(crate) fn best_tiles(context: &Arc<Context>) -> Tiles {
    if uses_coop_matrix(context) { Tiles::CoopMatrix } else { Tiles::F32 }
}

/// Whether products and attention on the units agree with the same in singles, of inputs
/// as they are.
pub(crate) fn are_right(context: &Arc<Context>) -> bool {
    let both = [ActivationPrecision::F32, INPUTS];
    agree(context, Tiles::CoopMatrix)
        && both.into_iter().all(|inputs| attention_agrees(context, Tiles::CoopMatrix, inputs))
}

/// Whether attention by these, with its inputs taken so, agrees with the same in singles.
pub(crate) fn attention_agrees(
    context: &Arc<Context>,
    tiles: Tiles,
    inputs: ActivationPrecision,
) -> bool {
    let [got, want] = [tiles, Tiles::F32].map(|tiles| {
        let mut b = Wgpu::with_tiles(Arc::clone(context), None, tiles);
        b.attention_inputs = inputs;
        b.least_shared_queries = 1;
        attention(&mut b)
    });
    let (Some(got), Some(want)) = (got, want) else { return false };
    // Sines: vectors are as long as the root of half their elements.
    let score = SCALE * HEAD_DIM as f32 / 2.0;
    are_close(&got, &want, tolerance_of_attention(inputs, ROWS, HEAD_DIM, score))
}

/// Whether results differ by at most such a share of the largest.
pub(crate) fn are_close(got: &[f32], want: &[f32], share: f32) -> bool {
    let largest = want.iter().fold(0.0f32, |max, value| max.max(value.abs()));
    got.iter().zip(want).all(|(a, b)| (a - b).abs() <= share * largest)
}

/// Attention of [`ROWS`] rows to themselves; `None` where the device fails.
pub(crate) fn attention(b: &mut dyn Backend) -> Option<Vec<f32>> {
    let (n_heads, n_kv_heads) = HEADS;
    let [q, k, v, out] = [n_heads, n_kv_heads, n_kv_heads, n_heads].map(|n| {
        let len = n * HEAD_DIM;
        Cols { buf: b.alloc(ROWS, len), start: 0, len }
    });
    for (seed, cols) in [q, k, v].into_iter().enumerate() {
        let value = |i: usize| ((i + 1) as f32 * 0.618 + seed as f32).sin();
        b.write(cols.buf, &(0..ROWS * cols.len).map(value).collect::<Vec<f32>>());
    }
    let kv = CacheSpec::Pages {
        n_heads: n_kv_heads,
        k_dim: HEAD_DIM,
        v_dim: HEAD_DIM,
        dtype: KvType::F32,
        window: None,
    };
    let sequence = b.new_sequence(&[kv]);
    let op = Attention {
        out: out.heads(n_heads),
        q: q.heads(n_heads),
        append: Some(KeysValues { k: k.heads(n_kv_heads), v: Some(v.heads(n_kv_heads)) }),
        cache: Cache(0),
        scale: SCALE,
        window: None,
        sinks: None,
        selection: None,
        looks_ahead: false,
        entries: None,
    };
    b.attention(op, &[Span::new(sequence, 0..ROWS, 0)]);
    b.read(out.buf, ROWS).ok()
}

/// Whether products by these agree with the same in singles: of all matrices
/// in the tiles that suit them, and in tiles of all sizes, each of which
/// is a kernel that drivers may get wrong.
pub(crate) fn agree(context: &Arc<Context>, tiles: Tiles) -> bool {
    let suited = MATRICES.into_iter().map(|matrix| (matrix, None));
    let sizes = MATRICES.into_iter().flat_map(|matrix| {
        let of = Decoder::new(matrix.format).f16_operand();
        let all = F16Tiles::all(of).iter();
        all.map(move |tiles| (matrix, Some(*tiles)))
    });
    // One matrix of each kind of input.
    let is_in_all_sizes = |matrix: &TestMatrix| IN_ALL_SIZES.contains(&matrix.format);
    let sizes = sizes.filter(|(matrix, _)| is_in_all_sizes(matrix));
    suited.chain(sizes).all(|(matrix, f16_tiles)| {
        let product = |tiles, inputs| {
            let mut b = Wgpu::with_tiles(Arc::clone(context), None, tiles);
            b.f16_tiles = f16_tiles;
            product(&mut b, matrix, inputs, SHAPE.0)
        };
        let got = product(tiles, INPUTS);
        let want = product(Tiles::F32, ActivationPrecision::F32);
        let (Some(got), Some(want)) = (got, want) else { return false };
        let n_lower = Decoder::new(matrix.format).f16_operand().summands().saturating_sub(1);
        are_close(&got, &want, tolerance((n_parts(matrix.format) + n_lower) as usize, matrix.cols))
    })
}

/// How inputs are rounded.
const INPUTS: ActivationPrecision = ActivationPrecision::Int16;

/// Halves that an input of such a matrix is the sum of.
fn n_parts(format: MatrixFormat) -> u32 {
    activation_quant(Decoder::new(format), INPUTS).map_or(1, |quant| quant.parts)
}

/// The product of `n` rows of activations with a matrix; `None` where the device fails.
pub(crate) fn product(
    b: &mut dyn Backend,
    TestMatrix { format, cols }: TestMatrix,
    inputs: ActivationPrecision,
    n: usize,
) -> Option<Vec<f32>> {
    let (_, rows) = SHAPE;
    let mut random = SplitMix64::new(1);
    let mut bytes = |len: usize, word_of: fn(u16) -> u16| {
        let mut buf = HostBuf::zeroed(len);
        for pair in buf[..len].as_chunks_mut::<2>().0 {
            *pair = word_of((random.next_u64() >> 48) as u16).to_le_bytes();
        }
        buf
    };
    // 0x3c00 begins the numbers near 0.01 in BF16, 0xbd80 those below -0.06; two of E8M0 are
    // 2^-9 to 2^-6 each.
    let [element, scale]: [fn(u16) -> u16; 2] = match format {
        MatrixFormat::Dense(_) => [|bits| 0x3c00 | bits & 0x80ff, |bits| bits],
        MatrixFormat::Micro(_) => [|bits| bits, |bits| 0x7676 + (bits & 0x0303)],
        _ => [|bits| bits, |bits| 0x3c00 | bits & 0xff],
    };
    let weight = bytes(rows * format.row_bytes(cols), element);
    let mut params = |len: usize, word_of| (len > 0).then(|| bytes(len, word_of));
    let scales = params(format.scale_bytes(rows, cols), scale);
    let biases = params(format.bias_bytes(rows, cols), |bits| 0xbd80 | bits & 0x7f);
    let weight = b.load_matrix(HostMatrix { rows, cols, format, inputs, weight, scales, biases });
    let (x, y) = (b.alloc(n, cols), b.alloc(n, rows));
    let value = |i: usize| match n_parts(format) {
        1 => (i * 17 % 29) as f32 / 16.0 - 0.875,
        _ => (i as f32 * 0.37).sin(),
    };
    let values: Vec<f32> = (0..n * cols).map(value).collect();
    b.write(x, &values);
    let all = |buf, len| Cols { buf, start: 0, len };
    b.project(n, all(x, cols), &[Projection { weight, out: all(y, rows) }]);
    b.read(y, n).ok()
}
