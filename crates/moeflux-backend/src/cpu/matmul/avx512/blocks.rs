//! One row of activations times blocks of ggml.
//!
//! Codes are unpacked in registers, 64 columns to a vector in their own order, and multiplied at
//! once; the dots of sixteen rows are finished as those of affine matrices are. Scales and biases of
//! the rows were decoded before.

use std::arch::x86_64::*;
use std::cell::Cell;

use moeflux_core::quant::{BlockType, MatrixView};

use super::dots::{DISTANCE, Line, prefetch, sums_of_fours, sums_of_twos};
use super::lanes::{SixteenRows, Zmm};
use super::stream::Sums;
use super::vector::{ROWS, STEP_LINES, load_64, store_64, store_floats};
use crate::cpu::matmul::Quantised;
use crate::cpu::matmul::block_params::StepParams;
use crate::cpu::matmul::by_type::for_type;
use crate::cpu::matmul::lane_params::LaneParams;
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::rows::OutPart;
use crate::cpu::matmul::step_codes::codes;
use crate::cpu::matmul::steps::{STEP_COLS, of, step_bytes, step_groups};

/// Bytes of the longest step: eight blocks of Q8_0.
const MAX_STEP_BYTES: usize = 8 * 34;

/// A row of activations: lines of 64 columns, all limbs of one after the other, and zeros up to the
/// end of a step.
#[derive(Default)]
struct Natural {
    of: Option<(u64, usize)>,
    lines: Vec<Line>,
}

/// What a call needs besides its arguments.
#[derive(Default)]
struct Scratch {
    x: Natural,
    /// (rows, groups)
    dots: Vec<f32>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

impl Natural {
    fn take_row(&mut self, x: &Quantised, row: usize) {
        if self.of == Some((x.id(), row)) {
            return;
        }
        let n_limbs = x.n_limbs();
        self.lines.clear();
        self.lines.resize(x.cols().div_ceil(STEP_COLS) * STEP_LINES * n_limbs, Line([0; 64]));
        for limb in 0..n_limbs {
            let lines = self.lines[limb..].iter_mut().step_by(n_limbs);
            for (line, q) in lines.zip(x.q(row, limb).chunks(64)) {
                line.0[..q.len()].copy_from_slice(bytemuck::cast_slice(q));
            }
        }
        self.of = Some((x.id(), row));
    }
}

/// Whether [`integer_row`] reads the scales and biases of sixteen rows itself.
pub(in crate::cpu::matmul) fn reads_params(block_type: BlockType, weight: &MatrixView<'_>) -> bool {
    weight.rows == ROWS && weight.cols.is_multiple_of(STEP_COLS) && streamed_rows(block_type) > 0
}

/// The most rows of activations for which [`integer_row`] is faster than unpacking once; none of a
/// type that it does not take.
pub(in crate::cpu::matmul) fn streamed_rows(block_type: BlockType) -> usize {
    if block_type == BlockType::TQ1_0 { 0 } else { 3 }
}

/// The outputs of at most sixteen `rows` of blocks for the `i`-th row of the activations. The
/// scales and biases of `product` are those of these rows, in `f32`.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(in crate::cpu::matmul) fn integer_row(
    product: &IntegerProduct<'_>,
    block_type: BlockType,
    blocks: &[u8],
    i: usize,
    out: &mut OutPart<'_>,
) {
    for_type!(block_type, rows(product, blocks, i, out));
}

/// The codes of the first blocks, as many as make whole steps. Returns how many columns these are.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(in crate::cpu::matmul) fn unpack_codes(
    block_type: BlockType,
    blocks: &[u8],
    out: &mut [u8],
) -> usize {
    for_type!(block_type, unpack_steps(blocks, out))
}

#[inline(never)]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn unpack_steps<const TYPE: u8, const N: usize>(blocks: &[u8], out: &mut [u8]) -> usize {
    let (steps, _) = blocks.as_chunks::<N>();
    for (step, out) in steps.iter().zip(out.as_chunks_mut::<STEP_COLS>().0) {
        for (line, out) in codes::<_, TYPE>(Zmm::new(), step).into_iter().zip(out.chunks_mut(64)) {
            store_64(out, line);
        }
    }
    steps.len() * STEP_COLS
}

/// The scales and biases of rows of whole steps, a multiple of sixteen of them.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(in crate::cpu::matmul) fn fill_params(
    block_type: BlockType,
    blocks: &[u8],
    n_rows: usize,
    out: &mut LaneParams,
) {
    for_type!(block_type, params_of_steps(blocks, n_rows, out));
}

#[inline(never)]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn params_of_steps<const TYPE: u8, const N: usize>(
    blocks: &[u8],
    n_rows: usize,
    out: &mut LaneParams,
) {
    let row_bytes = blocks.len() / n_rows;
    let per_step = const { step_groups(TYPE) };
    out.resize(n_rows / ROWS, row_bytes / N * per_step);
    let mut params = StepParams::zero(Zmm::new());
    for (tile, blocks) in blocks.chunks_exact(ROWS * row_bytes).enumerate() {
        let rows = SixteenRows::new(blocks, row_bytes);
        for step in 0..row_bytes / N {
            params.load::<TYPE>(rows.from(step * N));
            for g in 0..per_step {
                let [scale, bias] = out.group_mut(tile, step * per_step + g);
                store_floats(&mut scale.0, params.scale[g]);
                store_floats(&mut bias.0, params.bias[g]);
            }
        }
    }
}

#[inline(never)]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn rows<const TYPE: u8, const N: usize>(
    product: &IntegerProduct<'_>,
    blocks: &[u8],
    i: usize,
    out: &mut OutPart<'_>,
) {
    let n_rows = product.weight.rows;
    let x_row = product.x_rows.at(i);
    let mut scratch = SCRATCH.take();
    let Scratch { x, dots } = &mut scratch;
    x.take_row(product.x, x_row);
    let n_groups = product.n_groups();
    dots.resize(ROWS * n_groups, 0.0);
    let row_bytes = blocks.len() / n_rows;
    for (blocks, dots) in blocks.chunks_exact(row_bytes).zip(dots.chunks_exact_mut(n_groups)) {
        match product.x.n_limbs() {
            1 => row_dots::<TYPE, 1>(blocks, &x.lines, dots),
            _ => row_dots::<TYPE, 2>(blocks, &x.lines, dots),
        }
    }
    let mut sums = Sums::new(product, 0..n_rows, x_row);
    if reads_params(const { of(TYPE) }, &product.weight) {
        add_steps::<TYPE>(&mut sums, SixteenRows::new(blocks, row_bytes), dots);
    } else {
        sums.add(&dots[..n_rows * n_groups], 0..n_groups);
    }
    out.put(i, 0, &sums.total()[..n_rows]);
    SCRATCH.set(scratch);
}

/// Adds all groups of sixteen rows, of which these are the dots: (rows, groups).
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn add_steps<const TYPE: u8>(sums: &mut Sums<'_>, rows: SixteenRows<'_>, dots: &[f32]) {
    let n_groups = dots.len() / ROWS;
    let per_step = const { step_groups(TYPE) };
    let mut params = StepParams::zero(Zmm::new());
    for first in (0..n_groups).step_by(16) {
        let groups = first..n_groups.min(first + 16);
        let tile = sums.dot_tile(dots, n_groups, groups.clone());
        for (step, groups_of_step) in tile[..groups.len()].chunks(per_step).enumerate() {
            let step = first / per_step + step;
            params.load::<TYPE>(rows.from(step * const { step_bytes(TYPE) }));
            for (g, dots) in groups_of_step.iter().enumerate() {
                sums.add_next_group(step * per_step + g, *dots, [params.scale[g], params.bias[g]]);
            }
        }
    }
}

/// The dots of all groups of a row.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn row_dots<const TYPE: u8, const LIMBS: usize>(blocks: &[u8], x: &[Line], dots: &mut [f32]) {
    let block_type = const { of(TYPE) };
    let step_bytes = const { step_bytes(TYPE) };
    let steps = blocks.chunks_exact(step_bytes);
    let rest = steps.remainder();
    let mut padded = [0; MAX_STEP_BYTES];
    padded[..rest.len()].copy_from_slice(rest);
    let mut x = x.chunks_exact(STEP_LINES * LIMBS);
    let last = (!rest.is_empty()).then_some(&padded[..step_bytes]);
    let mut steps = steps.chain(last);
    let mut next = || {
        let (step, x) = (steps.next()?, x.next()?);
        Some((step, x))
    };
    if block_type.group_cols() == 16 {
        for dots in dots.chunks_mut(16) {
            let Some((step, x)) = next() else { return };
            let v = line_sums::<TYPE, LIMBS>(step, x);
            let zero = _mm512_setzero_si512();
            let [a, b, c, d] = v;
            let v = [
                a, b, c, d, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero,
            ];
            store(dots, sums_of_fours(&v, usize::MAX / 4));
        }
        return;
    }
    for dots in dots.chunks_mut(16) {
        let zero = _mm512_setzero_si512();
        let Some((step, x)) = next() else { return };
        let [a, b, c, d] = line_sums::<TYPE, LIMBS>(step, x);
        let [e, f, g, h] = match next() {
            Some((step, x)) => line_sums::<TYPE, LIMBS>(step, x),
            None => [zero; 4],
        };
        let v = [a, b, c, d, e, f, g, h, zero, zero, zero, zero, zero, zero, zero, zero];
        store(dots, sums_of_twos(&v, usize::MAX / 4));
    }
}

/// As many dots as the row has groups.
#[inline]
#[target_feature(enable = "avx512f")]
fn store(out: &mut [f32], dots: __m512i) {
    let dots = _mm512_cvtepi32_ps(dots);
    match out.as_mut_array::<16>() {
        Some(out) => store_floats(out, dots),
        None => {
            let mut all = [0.0; 16];
            store_floats(&mut all, dots);
            out.copy_from_slice(&all[..out.len()]);
        }
    }
}

/// The dots of a step: four columns of each line in a lane.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn line_sums<const TYPE: u8, const LIMBS: usize>(step: &[u8], x: &[Line]) -> [__m512i; STEP_LINES] {
    let x = &x[..STEP_LINES * LIMBS];
    // Steps begin and end within lines: rounded down, some lines would be left out.
    for line in 0..const { step_bytes(TYPE).div_ceil(64) } {
        prefetch(step, DISTANCE + 64 * line);
    }
    let codes = codes::<_, TYPE>(Zmm::new(), step);
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (line, out) in out.iter_mut().enumerate() {
        for limb in 0..LIMBS {
            // What came before counts 256 times.
            let higher = if limb == 0 { *out } else { _mm512_slli_epi32::<8>(*out) };
            *out = _mm512_dpbusd_epi32(higher, codes[line], load_64(&x[line * LIMBS + limb].0));
        }
    }
    out
}
