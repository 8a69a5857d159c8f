//! One row of activations times blocks of ggml.
//!
//! Codes are unpacked in registers, 32 columns to a vector in their own order, widened to 16 bits
//! and multiplied with activations of 16 bits. The dots of eight rows are finished as those of affine
//! matrices are. Scales and biases of the rows were decoded before.

use std::arch::x86_64::*;
use std::cell::Cell;

use moeflux_core::quant::BlockType;

use super::dots::{add_halves, add_products, four};
use super::stream::{Scales, Sums, add_groups, prefetch};
use super::unpack_blocks::{GROUPS_OF_STEP, of, step_bytes, unpack};
use super::vector::{ROWS, load_halves, store_floats};
use crate::cpu::matmul::Quantised;
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::rows::OutPart;

/// Columns of a step: one block of the widest types.
const STEP_COLS: usize = 256;

/// Bytes of the longest step: eight blocks of Q8_0.
const MAX_STEP_BYTES: usize = 8 * 34;

/// Bytes that blocks are prefetched ahead.
const DISTANCE: usize = 8192;

/// What a call needs besides its arguments.
#[derive(Default)]
struct Scratch {
    /// What `x` holds: a rounding and a row of it.
    of: Option<(u64, usize)>,
    /// Activations in the order of columns, and zeros up to the end of a step.
    x: Vec<i16>,
    /// (rows, groups), with room for a tile.
    dots: Vec<f32>,
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
        self.x.extend_from_slice(bytemuck::cast_slice(x.pairs(row)));
        self.x.resize(x.cols().next_multiple_of(STEP_COLS), 0);
        self.of = Some((x.id(), row));
    }
}

/// The outputs of some rows of blocks for the `i`-th row of the activations. The scales and biases of
/// `product` are those of these rows, in `f32`.
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

#[target_feature(enable = "avx2,fma,f16c")]
fn rows<const TYPE: u8, const VNNI: bool>(
    product: &IntegerProduct<'_>,
    blocks: &[u8],
    i: usize,
    out: &mut OutPart<'_>,
) {
    let (n_rows, n_groups) = (product.weight.rows, product.n_groups());
    let x_row = product.x_rows.at(i);
    let mut scratch = SCRATCH.take();
    scratch.take_row(product.x, x_row);
    let Scratch { x, dots, .. } = &mut scratch;
    dots.resize(ROWS * n_groups + GROUPS_OF_STEP, 0.0);
    let row_bytes = blocks.len() / n_rows;
    let scales = Scales { s: product.x.s(x_row), st: product.x.st(x_row) };
    for row in (0..n_rows).step_by(ROWS) {
        let block = row..n_rows.min(row + ROWS);
        let stored = blocks[block.start * row_bytes..block.end * row_bytes].chunks_exact(row_bytes);
        for (stored, dots) in stored.zip(dots.chunks_exact_mut(n_groups)) {
            row_dots::<TYPE, VNNI>(stored, x, dots);
        }
        let mut sums = [Sums::zero()];
        // A tile follows the dots of eight rows.
        let n_dots = ROWS * n_groups + super::params::GROUPS;
        add_groups(product, block.clone(), &dots[..n_dots], &[scales], &mut sums);
        out.put(i, row, &sums[0].total()[..block.len()]);
    }
    SCRATCH.set(scratch);
}

/// The dots of all groups of a row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn row_dots<const TYPE: u8, const VNNI: bool>(blocks: &[u8], x: &[i16], dots: &mut [f32]) {
    let n_bytes = const { step_bytes(TYPE) };
    let per_step = const { STEP_COLS / of(TYPE).group_cols() };
    let steps = blocks.chunks_exact(n_bytes);
    let rest = steps.remainder();
    let mut padded = [0; MAX_STEP_BYTES];
    padded[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(&padded[..n_bytes]);
    let steps = steps.chain(last).zip(x.as_chunks::<STEP_COLS>().0);
    for ((step, x), dots) in steps.zip(dots.chunks_mut(per_step)) {
        for line in 0..const { step_bytes(TYPE) / 64 } {
            prefetch(step, DISTANCE + 64 * line);
        }
        let mut all = [0.0; GROUPS_OF_STEP];
        step_dots::<TYPE, VNNI>(step, x, &mut all);
        dots.copy_from_slice(&all[..dots.len()]);
    }
}

/// The dots of the groups of 256 columns: eight, or sixteen.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn step_dots<const TYPE: u8, const VNNI: bool>(
    step: &[u8],
    x: &[i16; STEP_COLS],
    out: &mut [f32; GROUPS_OF_STEP],
) {
    let codes = unpack::<TYPE>(step);
    let zero = _mm256_setzero_si256();
    let [first, second] = out.as_chunks_mut::<8>().0 else { unreachable!("twice eight groups") };
    let half = |vector: usize, half: usize| {
        let codes = codes[vector];
        let bytes = if half == 0 {
            _mm256_castsi256_si128(codes)
        } else {
            _mm256_extracti128_si256::<1>(codes)
        };
        (_mm256_cvtepu8_epi16(bytes), load_halves(&x[32 * vector + 16 * half..]))
    };
    let mut v = [zero; 8];
    if const { of(TYPE).group_cols() } == 16 {
        for (part, out) in [first, second].into_iter().enumerate() {
            for (g, v) in v.iter_mut().enumerate() {
                let (w, x) = half(4 * part + g / 2, g % 2);
                *v = add_products::<VNNI>(zero, w, x);
            }
            store_floats(out, _mm256_cvtepi32_ps(sums_of_eight(v)));
        }
        return;
    }
    for (g, v) in v.iter_mut().enumerate() {
        let ((w, x), (w_high, x_high)) = (half(g, 0), half(g, 1));
        *v = add_products::<VNNI>(add_products::<VNNI>(zero, w, x), w_high, x_high);
    }
    store_floats(first, _mm256_cvtepi32_ps(sums_of_eight(v)));
}

/// The sums of the lanes of eight vectors.
#[inline]
#[target_feature(enable = "avx2")]
fn sums_of_eight(v: [__m256i; 8]) -> __m256i {
    add_halves(four(v[0], v[1], v[2], v[3]), four(v[4], v[5], v[6], v[7]))
}
