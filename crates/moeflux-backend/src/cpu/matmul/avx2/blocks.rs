//! One row of activations times blocks of ggml: eight rows of the matrix side by side, 256 columns of
//! each at a time.
//!
//! The rows are the lanes of all vectors: of dots, of scales and biases, and of the chains of `fma`.

use std::arch::x86_64::*;
use std::cell::Cell;

use moeflux_core::quant::BlockType;

use super::block_dots::step_dots;
use super::block_rows::BlockRows;
use super::lane_sums::is_wide;
use super::lanes::Ymm;
use super::step_x::{AlignedStep, Order, OrderedRow};
use super::stream::{Scales, Sums, prefetch};
use super::vector::{ROWS, store_bytes};
use crate::cpu::matmul::block_params::StepParams;
use crate::cpu::matmul::by_type::for_type;
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::rows::OutPart;
use crate::cpu::matmul::step_codes::codes;
use crate::cpu::matmul::steps::{GROUPS_OF_STEP, STEP_COLS, step_bytes, step_groups};

/// Bytes that blocks are prefetched ahead, at least.
const DISTANCE: usize = 8192;

/// The most rows of activations of a matrix: for more, unpacking once pays.
const X_ROWS: usize = 5;

/// What a call needs besides its arguments.
#[derive(Default)]
struct Scratch {
    /// By row of the activations: panels of few rows of the matrix take turns with all of them.
    x: [OrderedRow; X_ROWS],
    /// Eight rows where the matrix has fewer, and the blocks of a step that ends before 256 columns.
    padded: Vec<u8>,
    padded_step: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// The most rows of activations for which [`integer_row`] is faster than unpacking once.
pub(in crate::cpu::matmul) fn streamed_rows(block_type: BlockType) -> usize {
    // Unpacking these takes several times the instructions of the product.
    let is_slow = block_type.has_codebook()
        || matches!(block_type, BlockType::TQ1_0 | BlockType::Q1_0 | BlockType::Q2_0);
    if is_slow { 1 } else { X_ROWS }
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
    for_type!(block_type, rows::<VNNI>(product, blocks, i, out));
}

/// The codes of the first blocks, as many as make whole steps. Returns how many columns these are.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::matmul) fn unpack_codes(
    block_type: BlockType,
    blocks: &[u8],
    codes: &mut [u8],
) -> usize {
    for_type!(block_type, unpack_steps(blocks, codes))
}

#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_steps<const TYPE: u8, const N: usize>(blocks: &[u8], out: &mut [u8]) -> usize {
    let (steps, _) = blocks.as_chunks::<N>();
    for (step, out) in steps.iter().zip(out.as_chunks_mut::<STEP_COLS>().0) {
        let unpacked = codes::<_, TYPE>(Ymm::new(), step);
        for (vector, out) in unpacked.into_iter().zip(out.as_chunks_mut::<32>().0) {
            store_bytes(out, vector);
        }
    }
    steps.len() * STEP_COLS
}

// A function for each type: in one of all types the compiler inlines nothing.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn rows<const TYPE: u8, const N: usize, const VNNI: bool>(
    product: &IntegerProduct<'_>,
    blocks: &[u8],
    i: usize,
    out: &mut OutPart<'_>,
) {
    let n_rows = product.weight.rows;
    let x_row = product.x_rows.at(i);
    let mut scratch = SCRATCH.take();
    let order = const { if is_wide(TYPE, VNNI) { Order::Wide } else { Order::Fours } };
    let Scratch { x, padded, padded_step } = &mut scratch;
    let x = &mut x[i % X_ROWS];
    x.set(product.x, x_row, order);
    let row_bytes = blocks.len() / n_rows;
    let scales = Scales { s: product.x.s(x_row), st: product.x.st(x_row) };
    for row in (0..n_rows).step_by(ROWS) {
        let block = row..n_rows.min(row + ROWS);
        let stored = &blocks[block.start * row_bytes..block.end * row_bytes];
        let eight = BlockRows::padded(stored, row_bytes, padded);
        let sums = sums_of_rows::<TYPE, N, VNNI>(eight, padded_step, &x.steps, scales);
        out.put(i, row, &sums.total()[..block.len()]);
    }
    SCRATCH.set(scratch);
}

/// Adds up all groups of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sums_of_rows<const TYPE: u8, const N: usize, const VNNI: bool>(
    rows: BlockRows<'_>,
    padded_step: &mut Vec<u8>,
    x: &[AlignedStep],
    scales: Scales<'_>,
) -> Sums {
    let per_step = const { step_groups(TYPE) };
    let distance = DISTANCE.max(rows.bytes.len());
    let (n_groups, mut sums) = (scales.s.len(), Sums::zero());
    let mut params = StepParams::zero(Ymm::new());
    let mut dots = [_mm256_setzero_si256(); GROUPS_OF_STEP];
    let lines = const { (ROWS * N).div_ceil(64) };
    for (step, AlignedStep(x)) in x.iter().enumerate() {
        let now = rows.step_or_padded::<N>(step, padded_step);
        let ahead = distance + step * ROWS * N;
        // A few lines at a time: the core tracks a limited number of misses, and where all are
        // taken the loads of this step wait.
        for line in 0..lines / 2 {
            prefetch(rows.bytes, ahead + 64 * line);
        }
        params.load::<TYPE>(now);
        for line in lines / 2..lines {
            prefetch(rows.bytes, ahead + 64 * line);
        }
        step_dots::<TYPE, N, VNNI>(now, x, &mut dots);
        let groups = step * per_step..n_groups.min((step + 1) * per_step);
        let (s, st) = (&scales.s[groups.clone()], &scales.st[groups]);
        // A copy whose address is not taken stays in registers.
        let mut total = sums;
        for g in 0..per_step.min(s.len()) {
            let dots = _mm256_cvtepi32_ps(dots[g]);
            total = total.with(dots, params.scale[g], params.bias[g], s[g], st[g]);
        }
        sums = total;
    }
    sums
}
