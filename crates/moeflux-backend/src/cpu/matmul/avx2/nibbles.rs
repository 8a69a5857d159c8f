//! Few rows of activations times codes of four bits in planes, in groups of 16 or 32 columns: eight
//! rows of the matrix side by side, 256 columns of each at a time.
//!
//! The rows are the lanes of all vectors: of dots, of scales and biases, and of the chains of `fma`.

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ops::Range;

use super::block_dots::{bits, levels};
use super::block_rows::{BlockRows, StepRows};
use super::lane_sums::{GroupSum, QUADS};
use super::lanes::Ymm;
use super::params::{GROUPS, ParamTile, Place};
use super::step_x::{AlignedStep, Order, OrderedRow, StepOfX};
use super::stream::{Scales, Sums, X_ROWS, prefetch, prefetch_params};
use super::vector::ROWS;
use crate::cpu::matmul::block_params::StepParams;
use crate::cpu::matmul::integers::ParamFormat;
use crate::cpu::matmul::lanes::RowBytes;
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::rows::OutPart;
use crate::cpu::matmul::steps::{GROUPS_OF_STEP, STEP_COLS, of, step_groups};

/// How far ahead of its use a packed byte is asked for, at least.
const DISTANCE: usize = 8192;

/// Packed bytes of a step of one row.
const STEP_BYTES: usize = STEP_COLS / 2;

/// Parts of a step that are transposed together: 32 columns of each row.
const PARTS: usize = STEP_COLS / 32;

/// What a call needs besides its arguments.
#[derive(Default)]
struct Scratch {
    x: [OrderedRow; X_ROWS],
    /// Eight rows where the matrix has fewer, and a step that ends before 256 columns.
    padded: Vec<u8>,
    padded_step: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// The outputs of `rows` for all rows of the activations. `TYPE` is a type of blocks whose groups and
/// codes these are.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn integer_rows<const TYPE: u8, const VNNI: bool>(
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    out: &mut OutPart<'_>,
) {
    let n = product.x_rows.len();
    assert!(n <= X_ROWS, "{n} rows of activations");
    let mut scratch = SCRATCH.take();
    for (i, x) in scratch.x[..n].iter_mut().enumerate() {
        x.set(product.x, product.x_rows.at(i), Order::EvenAndOdd);
    }
    let Scratch { x, padded, padded_step } = &mut scratch;
    let row_bytes = product.row_bytes();
    for row in rows.clone().step_by(ROWS) {
        let block = row..rows.end.min(row + ROWS);
        let packed = BlockRows::padded(product.weight_rows(block.clone()), row_bytes, padded);
        for (i, x) in x[..n].iter().enumerate() {
            let x_row = product.x_rows.at(i);
            let scales = Scales { s: product.x.s(x_row), st: product.x.st(x_row) };
            let input = Input { steps: &x.steps, scales };
            let eight = EightRows { rows: block.clone(), packed };
            let sums = sums_of_rows::<TYPE, VNNI>(&product, &eight, input, padded_step);
            out.put(i, row, &sums.total()[..block.len()]);
        }
    }
    SCRATCH.set(scratch);
}

/// At most eight rows of the matrix.
struct EightRows<'a> {
    rows: Range<usize>,
    /// What absent ones hold changes nothing.
    packed: BlockRows<'a>,
}

/// A row of the activations.
#[derive(Clone, Copy)]
struct Input<'a> {
    steps: &'a [AlignedStep],
    scales: Scales<'a>,
}

/// Adds up all groups of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sums_of_rows<const TYPE: u8, const VNNI: bool>(
    product: &IntegerProduct<'_>,
    eight: &EightRows<'_>,
    x: Input<'_>,
    padded_step: &mut Vec<u8>,
) -> Sums {
    let (packed, n_groups) = (eight.packed, product.n_groups());
    let distance = DISTANCE.max(ROWS * packed.row_bytes);
    let mut total = Sums::zero();
    let mut params = StepParams::zero(Ymm::new());
    let per_step = const { step_groups(TYPE) };
    for (step, AlignedStep(x_step)) in x.steps.iter().enumerate() {
        let now = packed.step_or_padded(step, padded_step);
        let ahead = distance + step * ROWS * STEP_BYTES;
        for line in 0..ROWS * STEP_BYTES / 64 {
            prefetch(packed.bytes, ahead + 64 * line);
        }
        let mut dots = [_mm256_setzero_si256(); GROUPS_OF_STEP];
        step_dots::<TYPE, VNNI>(now, x_step, &mut dots);
        let groups = step * per_step..n_groups.min((step + 1) * per_step);
        prefetch_params(product, eight.rows.end, groups.clone());
        step_params::<TYPE>(product, eight, groups.clone(), &mut params);
        let (s, st) = (&x.scales.s[groups.clone()], &x.scales.st[groups]);
        // A copy whose address is not taken stays in registers.
        let mut now = total;
        for g in 0..per_step.min(s.len()) {
            let dots = _mm256_cvtepi32_ps(dots[g]);
            now = now.with(dots, params.scale[g], params.bias[g], s[g], st[g]);
        }
        total = now;
    }
    total
}

/// The parameters of the groups of a step.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn step_params<const TYPE: u8>(
    product: &IntegerProduct<'_>,
    eight: &EightRows<'_>,
    groups: Range<usize>,
    out: &mut StepParams<Ymm>,
) {
    let (isa, n_groups) = (Ymm::new(), product.n_groups());
    if let ParamFormat::OfE2M1(small) = product.integers.params
        && eight.rows.len() == ROWS
        && groups.len() == const { step_groups(TYPE) }
    {
        let first = eight.rows.start * n_groups;
        let stored = &product.weight.scales[first..first + ROWS * n_groups];
        let scales = BlockRows::new(stored, n_groups);
        if const { of(TYPE).group_cols() == 16 } {
            let rows = scales.step::<16>(groups.start);
            out.set_e2m1(small, rows.four_words(isa, 0));
        } else {
            let rows = scales.step::<8>(groups.start);
            out.set_e2m1(small, [rows.word(isa, 0), rows.word(isa, 4)]);
        }
        return;
    }
    let mut tile = ParamTile::zero();
    for first in groups.clone().step_by(GROUPS) {
        let place = Place { rows: eight.rows.clone(), group: first, n_groups };
        tile.load(&product.weight, product.integers.params, &place);
        let at = first - groups.start;
        out.scale[at..at + GROUPS].copy_from_slice(&tile.scale);
        out.bias[at..at + GROUPS].copy_from_slice(&tile.bias);
    }
}

/// The dots of the groups of a step: two columns a byte, the first one in the lower half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn step_dots<const TYPE: u8, const VNNI: bool>(
    rows: StepRows<'_, STEP_BYTES>,
    x: &StepOfX,
    out: &mut [__m256i; GROUPS_OF_STEP],
) {
    let zero = GroupSum::<TYPE, VNNI>::zero();
    for i in 0..PARTS {
        let packed = rows.four_words(Ymm::new(), 16 * i);
        let even = levels::<TYPE>(bits(packed, 0, 15));
        let odd = levels::<TYPE>(bits(packed, 4, 15));
        let halves = [[even[0], odd[0], even[1], odd[1]], [even[2], odd[2], even[3], odd[3]]];
        let x = &x[2 * QUADS * i..];
        if const { of(TYPE).group_cols() == 16 } {
            out[2 * i] = zero.with(halves[0], x).total();
            out[2 * i + 1] = zero.with(halves[1], &x[QUADS..]).total();
        } else {
            out[i] = zero.with(halves[0], x).with(halves[1], &x[QUADS..]).total();
        }
    }
}
