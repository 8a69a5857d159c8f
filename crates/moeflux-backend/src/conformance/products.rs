//! Matrix products, embeddings and logits, in every format.

use moeflux_core::quant::{
    Affine, AffineBias, BlockType, Float, MatrixFormat, MicroScaled, NF4_GROUP, ScaledBlocks,
    SmallFloat, SmallScale,
};
use moeflux_core::{HostBuf, TokenId};

use super::suite::{Numbers, Products, Suite, filled, read};
use crate::{
    ActivationPrecision, Backend, HeadProduct, Heads, HiddenRows, HostMatrix, LogitsExtras,
    Projection, TokenLogit, Weight,
};

/// Outputs and groups of inputs, odd and even, small and large.
const SHAPES: [(usize, usize); 6] = [(1, 1), (3, 2), (16, 3), (33, 4), (70, 5), (130, 16)];

/// Rows, all or half of which are many to every backend.
const MANY_ROWS: usize = 133;

pub(super) fn formats() -> Vec<MatrixFormat> {
    let mut all = Vec::new();
    for params in [Float::BF16, Float::F16, Float::F32] {
        for bits in Affine::BITS {
            for group_size in Affine::GROUP_SIZES {
                if params == Float::BF16 || (bits == 4 && group_size == 64) {
                    all.push(MatrixFormat::Affine(Affine::new(bits, group_size, params)));
                }
            }
        }
        all.push(MatrixFormat::Dense(params));
        all.push(MatrixFormat::Transposed(params));
    }
    for params in [Float::BF16, Float::F16, Float::F32] {
        for (bits, group_size) in [4, 8].into_iter().flat_map(|bits| {
            Affine::GROUP_SIZES.into_iter().map(move |group_size| (bits, group_size))
        }) {
            if params == Float::BF16 || (bits == 4) == (group_size == 64) {
                all.push(MatrixFormat::Affine(Affine::symmetric(bits, group_size, params)));
            }
        }
    }
    all.extend(MicroScaled::MODES.map(|(_, micro)| MatrixFormat::Micro(micro)));
    for (rows, cols, scales) in [(128, 128, Float::F32), (7, 20, Float::BF16)] {
        all.push(MatrixFormat::Blocks(ScaledBlocks::new(rows, cols, scales)));
    }
    all.push(MatrixFormat::Nf4);
    all.extend(BlockType::all().map(MatrixFormat::Ggml));
    all
}

/// Columns that share a scale or a block, where their number must divide a row's.
pub(super) fn group_size(format: MatrixFormat) -> Option<usize> {
    match format {
        MatrixFormat::Affine(affine) => Some(affine.group_size),
        MatrixFormat::Micro(micro) => Some(micro.group_size),
        MatrixFormat::Ggml(block_type) => Some(block_type.block_cols()),
        MatrixFormat::Nf4 => Some(NF4_GROUP),
        MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) | MatrixFormat::Blocks(_) => None,
    }
}

/// Columns of `n_groups` groups; formats without get a ragged width.
fn width(format: MatrixFormat, n_groups: usize) -> usize {
    group_size(format).map_or(n_groups * 24 - 5, |n| n_groups * n)
}

/// The format and the shape of a matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatrixSpec {
    pub(super) format: MatrixFormat,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

/// The bytes of a matrix; formats without scales or biases have none.
pub(super) struct MatrixParts {
    pub(super) weight: Vec<u8>,
    pub(super) scales: Vec<u8>,
    pub(super) biases: Vec<u8>,
}

/// A reproducible matrix; its scales and biases are small.
pub(super) fn matrix_bytes(spec: MatrixSpec, seed: u64) -> MatrixParts {
    let MatrixSpec { format, rows, cols } = spec;
    let mut numbers = Numbers::new(seed);
    match format {
        MatrixFormat::Dense(float) | MatrixFormat::Transposed(float) => {
            let weight = floats(float, &numbers.floats(rows * cols));
            MatrixParts { weight, scales: vec![], biases: vec![] }
        }
        MatrixFormat::Micro(micro) => {
            let mut weight = numbers.bytes(rows * format.row_bytes(cols));
            if micro.element == SmallFloat::E4M3 {
                weight.iter_mut().for_each(|code| *code = no_nan(*code));
            }
            let scales = numbers.bytes(format.scale_bytes(rows, cols)).into_iter().map(|byte| {
                match micro.scale {
                    SmallScale::E8M0 => 120 + byte % 8,
                    SmallScale::E4M3 => 1 + byte % 80,
                }
            });
            let scales = scales.collect();
            let global_scale =
                micro.has_global_scale.then(|| (0.3 + 0.2 * numbers.float()).to_le_bytes());
            let biases = global_scale.map_or_else(Vec::new, |bytes| bytes.to_vec());
            MatrixParts { weight, scales, biases }
        }
        MatrixFormat::Blocks(blocks) => {
            let weight = numbers.bytes(rows * cols).into_iter().map(no_nan).collect();
            let n = format.scale_bytes(rows, cols) / blocks.scales.bytes();
            let scales: Vec<f32> = numbers.floats(n).iter().map(|value| value * 0.001).collect();
            MatrixParts { weight, scales: floats(blocks.scales, &scales), biases: vec![] }
        }
        MatrixFormat::Nf4 => {
            let weight = numbers.bytes(rows * format.row_bytes(cols));
            let n = format.scale_bytes(rows, cols) / Float::F32.bytes();
            let scales: Vec<f32> = numbers.floats(n).iter().map(|value| value * 0.1).collect();
            MatrixParts { weight, scales: floats(Float::F32, &scales), biases: vec![] }
        }
        MatrixFormat::Ggml(block_type) => {
            let mut blocks = numbers.bytes(rows * format.row_bytes(cols));
            let scales = numbers.floats(blocks.len() / block_type.block_bytes() * 2);
            set_scales(block_type, &mut blocks, &scales);
            MatrixParts { weight: blocks, scales: vec![], biases: vec![] }
        }
        MatrixFormat::Affine(affine) => {
            let weight = numbers.bytes(rows * format.row_bytes(cols));
            let n = rows * affine.n_groups(cols);
            let scales: Vec<f32> = numbers.floats(n).iter().map(|value| value * 0.02).collect();
            let n_biases = if affine.bias == AffineBias::Stored { n } else { 0 };
            let biases = numbers.floats(n_biases);
            let biases: Vec<f32> = biases.iter().map(|value| value * 0.2).collect();
            let [scales, biases] = [scales, biases].map(|values| floats(affine.params, &values));
            MatrixParts { weight, scales, biases }
        }
    }
}

/// Gives blocks small scales, as those of real weights: two of `values` each.
pub(crate) fn set_scales(block_type: BlockType, blocks: &mut [u8], values: &[f32]) {
    let size = match block_type.block_cols() {
        256 => 0.001,
        _ => 0.02,
    };
    let blocks = blocks.chunks_exact_mut(block_type.block_bytes());
    for (block, values) in blocks.zip(values.as_chunks::<2>().0) {
        let halves = values.map(|value| half::f16::from_f32(value * size).to_le_bytes());
        match block_type {
            BlockType::MXFP4 => block[0] = 120 + block[0] % 8,
            BlockType::NVFP4 => block[..4].iter_mut().for_each(|scale| *scale = 1 + *scale % 80),
            // The scale is in the upper halves of four words.
            BlockType::IQ1_M => {
                let [low, high] = halves[0];
                let nibbles = [low & 15, low >> 4, high & 15, high >> 4];
                for (word, nibble) in block[48..].as_chunks_mut::<2>().0.iter_mut().zip(nibbles) {
                    word[1] = word[1] & 15 | nibble << 4;
                }
            }
            _ => {
                for (at, half) in block_type.scale_offsets().iter().zip(halves) {
                    block[*at..at + 2].copy_from_slice(&half);
                }
            }
        }
    }
}

/// The bits of a NaN depend on more than a product's definition.
fn no_nan(e4m3: u8) -> u8 {
    if e4m3 & 0x7f == 0x7f { e4m3 ^ 1 } else { e4m3 }
}

fn floats(float: Float, values: &[f32]) -> Vec<u8> {
    match float {
        Float::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Float::F16 => {
            values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect()
        }
        Float::BF16 => {
            values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect()
        }
    }
}

fn host(bytes: &[u8]) -> HostBuf {
    let mut buf = HostBuf::zeroed(bytes.len());
    buf[..bytes.len()].copy_from_slice(bytes);
    buf
}

pub(super) fn load(
    backend: &mut dyn Backend,
    spec: MatrixSpec,
    inputs: ActivationPrecision,
    seed: u64,
) -> Weight {
    let MatrixSpec { format, rows, cols } = spec;
    let MatrixParts { weight, scales, biases } = matrix_bytes(spec, seed);
    let params = |bytes: Vec<u8>| (!bytes.is_empty()).then(|| host(&bytes));
    backend.load_matrix(HostMatrix {
        rows,
        cols,
        format,
        inputs,
        weight: host(&weight),
        scales: params(scales),
        biases: params(biases),
    })
}

pub(super) fn check(suite: &Suite<'_>, formats: &[MatrixFormat]) {
    for format in formats.iter().copied() {
        let shapes = match format {
            // One decoder before the same kernels, and wide blocks.
            MatrixFormat::Ggml(_) => &SHAPES[1..3],
            // The kernels of other affine formats, with other parameters.
            MatrixFormat::Affine(affine)
                if affine.bias == AffineBias::Symmetric || affine.params != Float::BF16 =>
            {
                &SHAPES[1..4]
            }
            _ => &SHAPES[..],
        };
        for (outputs, n_groups) in shapes.iter().copied() {
            let spec = MatrixSpec { format, rows: outputs, cols: width(format, n_groups) };
            for inputs in
                [ActivationPrecision::F32, ActivationPrecision::Int16, ActivationPrecision::Int8]
            {
                for rows in [1, 2, 5, 19] {
                    product(suite, spec, inputs, rows);
                }
                if n_groups == 3 {
                    product(suite, spec, inputs, MANY_ROWS);
                }
            }
            lookup(suite, spec);
        }
        if !matches!(format, MatrixFormat::Transposed(_)) {
            // Heads, rows of a head's matrix, activations; rows that no head owns are between.
            for (n_heads, rows, n) in [(1, 1, 1), (3, 6, 2), (5, 17, 33), (2, 130, 70)] {
                let head = MatrixSpec { format, rows, cols: width(format, 3) };
                head_product(suite, head, n_heads, n);
            }
            let wide = MatrixSpec { format, rows: 9, cols: width(format, 40) };
            head_product(suite, wide, 2, 3);
        }
    }
}

/// Products of `n` rows of activations with heads of this matrix each.
fn head_product(suite: &Suite<'_>, head: MatrixSpec, n_heads: usize, n: usize) {
    let MatrixSpec { format, rows, cols } = head;
    let name = format!("head product {format:?} {n_heads} of {rows}x{cols}, x{n}");
    suite.case(&name, &|b| {
        let (first_row, row_stride) = (2, rows + 3);
        let all = MatrixSpec { rows: first_row + n_heads * row_stride, ..head };
        let weight = load(b, all, ActivationPrecision::Int16, 27);
        // Gaps between heads, and columns before the first.
        let heads =
            |buf, head_dim| Heads { buf, start: 1, n_heads, head_dim, stride: head_dim + 2 };
        let wide = filled(b, n, 1 + n_heads * (cols + 2), 28).buf;
        let narrow = filled(b, n, 1 + n_heads * (rows + 2), 29).buf;
        let (wide, narrow) = (heads(wide, cols), heads(narrow, rows));
        let op =
            |out, x, transposed| HeadProduct { out, x, weight, first_row, row_stride, transposed };
        b.head_product(n, op(narrow, wide, false));
        let mut all = read(b, narrow.buf, n);
        b.head_product(n, op(wide, narrow, true));
        all.extend(read(b, wide.buf, n));
        all
    });
}

fn product(suite: &Suite<'_>, spec: MatrixSpec, inputs: ActivationPrecision, rows: usize) {
    let MatrixSpec { format, rows: outputs, cols } = spec;
    let name = format!("project {format:?} {outputs}x{cols} {inputs:?} x{rows}");
    let case = Products { format, inputs, is_many: rows == MANY_ROWS, step: 0.0 };
    suite.case_of_products(&name, case, &|b, inputs| {
        let x = filled(b, rows, cols + 3, 20).slice(2, cols);
        let out = filled(b, rows, 2 * outputs + 1, 21);
        let first = load(b, spec, inputs, 22);
        let second = load(b, spec, inputs, 23);
        let projections = [
            Projection { weight: first, out: out.slice(0, outputs) },
            Projection { weight: second, out: out.slice(outputs + 1, outputs) },
        ];
        b.project(rows, x, &projections);
        let mut all = read(b, out.buf, rows);
        b.write(x.buf, &Numbers::new(24).floats(cols + 3));
        b.project(1, x, &projections[..1]);
        all.extend(read(b, out.buf, 1));
        let chosen: Vec<usize> = (0..rows).step_by(2).collect();
        let states = read(b, x.buf, rows);
        let mut seen = Vec::new();
        let hidden_rows = Some(HiddenRows { n: rows, into: &mut seen });
        let extras = LogitsExtras { hidden_rows, next_step: None };
        let logits = b.logits(&chosen, x, second, extras).expect("the device works");
        assert_eq!(seen, states, "hidden rows with logits");
        for n in [1, 3, 20] {
            let mut seen = Vec::new();
            let hidden_rows = Some(HiddenRows { n: rows, into: &mut seen });
            let extras = LogitsExtras { hidden_rows, next_step: None };
            let top = b.top_logits(&chosen, n, x, second, extras).expect("the device works");
            assert!(top.is_none() || seen == states, "hidden rows with the {n} highest");
            for (top, logits) in top.iter().flatten().zip(logits.chunks(outputs)) {
                assert_eq!(*top, highest(logits, n), "the {n} highest");
            }
        }
        all.extend(logits);
        all
    });
}

/// The highest logits, of equal ones the first.
fn highest(logits: &[f32], n: usize) -> Vec<TokenLogit> {
    let mut all: Vec<TokenLogit> =
        (0..).zip(logits).map(|(id, &logit)| TokenLogit { token: TokenId(id), logit }).collect();
    all.sort_by(TokenLogit::order);
    all.truncate(n);
    all
}

fn lookup(suite: &Suite<'_>, spec: MatrixSpec) {
    let MatrixSpec { format, rows, cols } = spec;
    suite.case(&format!("embed {format:?} {rows}x{cols}"), &|b| {
        let table = load(b, spec, ActivationPrecision::F32, 25);
        let out = filled(b, 3, cols, 26);
        let last = u32::try_from(rows - 1).expect("shapes are small");
        b.embed(out, table, &[TokenId(last), TokenId(0), TokenId(last / 2)]);
        read(b, out.buf, 3)
    });
}
