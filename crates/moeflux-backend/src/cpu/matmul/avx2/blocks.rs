//! One row of activations times blocks of ggml: eight rows of the matrix side by side, 256 columns of
//! each at a time.
//!
//! Codes are unpacked into the first cache, a byte a column in the order of columns, widened to 16
//! bits and multiplied with activations of 16 bits. What is added up last are already the lanes of
//! the chains of `fma`.

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ops::Range;

use moeflux_core::quant::BlockType;

use super::block_params::{BlockRows, StepParams, step_params};
use super::dots::{add_halves, add_products, four};
use super::stream::{Scales, Sums, prefetch};
use super::unpack_blocks::{of, step_bytes, unpack};
use super::vector::{ROWS, load_16, load_halves, store_bytes};
use crate::cpu::matmul::Quantised;
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::rows::OutPart;

/// Columns of a step: one block of the widest types.
const STEP_COLS: usize = 256;

/// Columns of a vector of products.
const PART: usize = 16;

/// Vectors of products of a step.
const PARTS: usize = STEP_COLS / PART;

/// Bytes that blocks are prefetched ahead, at least.
const DISTANCE: usize = 8192;

/// Activations of a step, aligned so that no load crosses a line of the cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct StepOfX([[i16; PART]; PARTS]);

/// What a call needs besides its arguments.
#[derive(Default)]
struct Scratch {
    /// What `x` holds: a rounding and a row of it.
    of: Option<(u64, usize)>,
    /// Activations in the order of columns, and zeros up to the end of a step.
    x: Vec<StepOfX>,
    /// Eight rows where the matrix has fewer, and the blocks of a step that ends before 256 columns.
    padded: Vec<u8>,
    padded_step: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

impl Scratch {
    fn take_row(&mut self, x: &Quantised, row: usize) {
        if self.of == Some((x.id(), row)) {
            return;
        }
        self.x.clear();
        self.x.resize(x.cols().div_ceil(STEP_COLS), StepOfX([[0; PART]; PARTS]));
        let row_of_x: &[i16] = bytemuck::cast_slice(x.pairs(row));
        for (step, values) in self.x.iter_mut().zip(row_of_x.chunks(STEP_COLS)) {
            step.0.as_flattened_mut()[..values.len()].copy_from_slice(values);
        }
        self.of = Some((x.id(), row));
    }
}

/// The outputs of some rows of blocks for the `i`-th row of the activations.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::matmul) fn integer_row<const VNNI: bool>(
    product: &IntegerProduct<'_>,
    block_type: BlockType,
    blocks: &[u8],
    i: usize,
    out: &mut OutPart<'_>,
) {
    macro_rules! dispatch {
        ($($name:ident)*) => {
            match block_type {
                $(
                    BlockType::$name => {
                        rows::<{ BlockType::$name as u8 }, VNNI>(product, blocks, i, out);
                    }
                )*
            }
        };
    }
    dispatch!(
        Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S
        IQ2_S IQ4_XS IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0 Q2_0
    );
}

// A function for each type: in one of all types the compiler inlines nothing.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn rows<const TYPE: u8, const VNNI: bool>(
    product: &IntegerProduct<'_>,
    blocks: &[u8],
    i: usize,
    out: &mut OutPart<'_>,
) {
    let n_rows = product.weight.rows;
    let x_row = product.x_rows.at(i);
    let mut scratch = SCRATCH.take();
    scratch.take_row(product.x, x_row);
    let Scratch { x, padded, padded_step, .. } = &mut scratch;
    let row_bytes = blocks.len() / n_rows;
    let scales = Scales { s: product.x.s(x_row), st: product.x.st(x_row) };
    for row in (0..n_rows).step_by(ROWS) {
        let block = row..n_rows.min(row + ROWS);
        let mut stored = &blocks[block.start * row_bytes..block.end * row_bytes];
        if block.len() < ROWS {
            // The contents of absent rows change nothing.
            padded.clear();
            padded.extend_from_slice(stored);
            padded.resize(ROWS * row_bytes, 0);
            stored = padded;
        }
        let eight = BlockRows::new(stored, row_bytes);
        let sums = sums_of_rows::<TYPE, VNNI>(eight, padded_step, x, scales);
        out.put(i, row, &sums.total()[..block.len()]);
    }
    SCRATCH.set(scratch);
}

/// Adds up all groups of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sums_of_rows<const TYPE: u8, const VNNI: bool>(
    rows: BlockRows<'_>,
    padded_step: &mut Vec<u8>,
    x: &[StepOfX],
    scales: Scales<'_>,
) -> Sums {
    let n_bytes = const { step_bytes(TYPE) };
    let per_step = const { STEP_COLS / of(TYPE).group_cols() };
    let distance = DISTANCE.max(rows.bytes.len());
    let (n_groups, mut sums) = (scales.s.len(), Sums::zero());
    let mut params = StepParams::zero();
    let mut codes = Codes([[[0; PART]; PARTS]; ROWS]);
    for (step, StepOfX(x)) in x.iter().enumerate() {
        let (now, at) = if (step + 1) * n_bytes <= rows.row_bytes {
            (rows, step)
        } else {
            pad_step(rows, step * n_bytes..(step + 1) * n_bytes, padded_step);
            (BlockRows::new(padded_step, n_bytes), 0)
        };
        let groups = step * per_step..n_groups.min((step + 1) * per_step);
        step_params::<TYPE>(now, at, &mut params);
        let lines = const { (ROWS * step_bytes(TYPE)).div_ceil(64) };
        let ahead = distance + step * ROWS * n_bytes;
        for r in 0..ROWS {
            // A few lines at a time: the core tracks a limited number of misses, and where all are
            // taken the loads of this row wait.
            for line in lines * r / ROWS..lines * (r + 1) / ROWS {
                prefetch(rows.bytes, ahead + 64 * line);
            }
            let unpacked = unpack::<TYPE>(&now.row(r, at * n_bytes)[..n_bytes]);
            for (i, vector) in unpacked.into_iter().enumerate() {
                let halves = codes.0[r].as_chunks_mut::<2>().0;
                store_bytes(halves[i].as_flattened_mut(), vector);
            }
        }
        let (s, st) = (&scales.s[groups.clone()], &scales.st[groups]);
        // A copy whose address is not taken stays in registers.
        let mut total = sums;
        for g in 0..per_step.min(s.len()) {
            let dots = _mm256_cvtepi32_ps(group_dots::<TYPE, VNNI>(&codes, g, x));
            total = total.with(dots, params.scale[g], params.bias[g], s[g], st[g]);
        }
        sums = total;
    }
    sums
}

/// Copies these bytes of eight rows as far as the rows go, and zeros after that.
fn pad_step(rows: BlockRows<'_>, bytes: Range<usize>, out: &mut Vec<u8>) {
    out.clear();
    for row in rows.bytes.chunks_exact(rows.row_bytes) {
        let end = out.len() + bytes.len();
        out.extend_from_slice(&row[bytes.start..bytes.end.min(rows.row_bytes)]);
        out.resize(end, 0);
    }
}

/// The codes of 256 columns of eight rows.
#[repr(align(64))]
struct Codes([[[u8; PART]; PARTS]; ROWS]);

/// The dots of group `g` of the eight rows, in their order.
#[inline]
#[target_feature(enable = "avx2")]
fn group_dots<const TYPE: u8, const VNNI: bool>(
    codes: &Codes,
    g: usize,
    x: &[[i16; PART]; PARTS],
) -> __m256i {
    let per_group = const { of(TYPE).group_cols() / PART };
    let zero = _mm256_setzero_si256();
    let mut v = [zero; ROWS];
    for (v, codes) in v.iter_mut().zip(&codes.0) {
        for part in 0..per_group {
            let codes = _mm256_cvtepu8_epi16(load_16(&codes[g * per_group + part]));
            *v = add_products::<VNNI>(*v, codes, load_halves(&x[g * per_group + part]));
        }
    }
    add_halves(four(v[0], v[1], v[2], v[3]), four(v[4], v[5], v[6], v[7]))
}
