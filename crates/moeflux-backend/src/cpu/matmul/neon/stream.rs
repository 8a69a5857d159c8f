//! One row of activations: four rows of the matrix side by side. The dots of
//! each row end in four lanes, which are added so that the rows are the lanes.

use std::arch::aarch64::*;
use std::cell::Cell;
use std::ops::Range;

use super::instructions::Instructions;
use super::levels::I8mm;
use super::limbs::{Chunk, FourRows, ROWS, both_limbs, halves, missing};
use super::params::{GROUPS, Params};
use super::unpack::{Group, in_group_order, unpack_group, unpack_pair};
use super::vector::{load_floats, load_signed, store_floats, store_signed};
use crate::cpu::matmul::Quantised;
use crate::cpu::matmul::integers::width;
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::rows::OutPart;

/// What a call needs besides its arguments.
#[derive(Default)]
struct Scratch {
    /// The activations in the order in which weights are unpacked, limbs by
    /// turns; see [`Scratch::load`].
    x: Vec<Chunk>,
    /// Of each group, 128 times the sum of the activations' integers: what dots
    /// lack whose weights are less by 128.
    missing: Vec<i32>,
}

thread_local! {
    /// Kept from call to call: small matrices are as quick as an allocation.
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// The outputs of `rows` for the `i`-th row of the activations.
#[target_feature(enable = "neon")]
pub(super) fn integer_row<
    L: Instructions,
    const CODES: usize,
    const GROUP: usize,
    const LIMBS: usize,
>(
    isa: L,
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    i: usize,
    out: &mut OutPart<'_>,
) {
    let (n_groups, x_row) = (product.n_groups(), product.x_rows.at(i));
    let mut scratch = SCRATCH.take();
    scratch.load::<L, CODES, GROUP, LIMBS>(product.x, x_row);
    let mut params = Params::default();
    for row in rows.clone().step_by(ROWS) {
        let block = row..rows.end.min(row + ROWS);
        let mut sums = Sums { acc: vdupq_n_f32(0.0), off: vdupq_n_f32(0.0) };
        for first in (0..n_groups).step_by(GROUPS) {
            let groups = first..n_groups.min(first + GROUPS);
            params.load(&product, block.clone(), groups.clone());
            let input = scratch.part::<GROUP, LIMBS>(&product, x_row, groups.clone());
            // A short block multiplies its last row several times.
            let bytes = GROUP * width(CODES) / 8;
            let packed = std::array::from_fn(|r| {
                let row = block.start + r.min(block.len() - 1);
                &product.weight_rows(row..row + 1)[groups.start * bytes..groups.end * bytes]
            });
            sums.add::<L, CODES, GROUP, LIMBS>(isa, packed, &params, input);
        }
        let mut total = [0.0; ROWS];
        store_floats(&mut total, vaddq_f32(sums.acc, sums.off));
        out.put(i, row, &total[..block.len()]);
    }
    SCRATCH.set(scratch);
}

/// Some groups of a row of activations.
struct Input<'a, const LIMBS: usize> {
    x: &'a [[Chunk; LIMBS]],
    missing: &'a [i32],
    s: &'a [f32],
    st: &'a [f32],
}

impl Scratch {
    /// Lays out a row of activations. Where limbs are paired, the lower halves
    /// of both make a vector, and the upper halves the next.
    #[inline]
    #[target_feature(enable = "neon")]
    fn load<L: Instructions, const CODES: usize, const GROUP: usize, const LIMBS: usize>(
        &mut self,
        x: &Quantised,
        row: usize,
    ) {
        self.x.clear();
        self.x.resize(x.cols() / 16 * LIMBS, [0; 16]);
        let groups = self.x.chunks_exact_mut(GROUP / 16 * LIMBS);
        let high = x.q(row, 0).chunks_exact(GROUP);
        let low = x.q(row, LIMBS - 1).chunks_exact(GROUP);
        for (out, (high, low)) in groups.zip(high.zip(low)) {
            let (high, low) = (ordered::<CODES, GROUP>(high), ordered::<CODES, GROUP>(low));
            for (k, out) in out.as_chunks_mut::<LIMBS>().0.iter_mut().enumerate() {
                let pair = if LIMBS == 2 && L::PAIRS_LIMBS {
                    halves(high[k], low[k])
                } else {
                    [high[k], low[k]]
                };
                for (out, it) in out.iter_mut().zip(pair) {
                    store_signed(out, it);
                }
            }
        }
        self.missing.clear();
        if CODES == 8 && L::SIGNED {
            self.missing.extend(missing(x, row));
        }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn part<'a, const GROUP: usize, const LIMBS: usize>(
        &'a self,
        product: &IntegerProduct<'a>,
        x_row: usize,
        groups: Range<usize>,
    ) -> Input<'a, LIMBS> {
        let n = GROUP / 16;
        Input {
            x: &self.x.as_chunks().0[groups.start * n..groups.end * n],
            missing: self.missing.get(groups.clone()).unwrap_or(&[]),
            s: &product.x.s(x_row)[groups.clone()],
            st: &product.x.st(x_row)[groups],
        }
    }
}

/// A group of one limb, in the order in which weights are unpacked.
#[inline]
#[target_feature(enable = "neon")]
fn ordered<const CODES: usize, const GROUP: usize>(x: &[i8]) -> [int8x16_t; 8] {
    let mut out = [vdupq_n_s8(0); 8];
    for (out, x) in out.iter_mut().zip(x[..GROUP].as_chunks::<16>().0) {
        *out = load_signed(x);
    }
    in_group_order::<CODES, GROUP>(out)
}

/// The accumulators of four outputs.
struct Sums {
    acc: float32x4_t,
    off: float32x4_t,
}

impl Sums {
    /// Adds some groups, whose bytes `packed` are.
    #[inline]
    #[target_feature(enable = "neon")]
    fn add<L: Instructions, const CODES: usize, const GROUP: usize, const LIMBS: usize>(
        &mut self,
        isa: L,
        packed: FourRows<'_>,
        params: &Params,
        input: Input<'_, LIMBS>,
    ) {
        let bytes = GROUP * width(CODES) / 8;
        let [a, b, c, d] = packed.map(|row| row.chunks_exact(bytes));
        let Sums { mut acc, mut off } = *self;
        let params = params.scale.iter().zip(&params.bias);
        let x = input.x.chunks_exact(GROUP / 16).zip(input.s.iter().zip(input.st));
        let rows = a.zip(b).zip(c.zip(d));
        for (g, (((a, b), (c, d)), ((x, (s, st)), (scale, bias)))) in
            rows.zip(x.zip(params)).enumerate()
        {
            let mut dots = isa.dot_rows::<CODES, GROUP, LIMBS>([a, b, c, d], x);
            if CODES == 8 && L::SIGNED {
                dots = vaddq_s32(dots, vdupq_n_s32(input.missing[g]));
            }
            let scale = vmulq_n_f32(load_floats(scale), *s);
            acc = vfmaq_f32(acc, vcvtq_f32_s32(dots), scale);
            off = vfmaq_n_f32(off, load_floats(bias), *st);
        }
        *self = Sums { acc, off };
    }
}

/// The dots of one group of four rows, each unpacked and multiplied for itself.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn row_by_row<
    L: Instructions,
    const CODES: usize,
    const GROUP: usize,
    const LIMBS: usize,
>(
    isa: L,
    rows: FourRows<'_>,
    x: &[[Chunk; LIMBS]],
) -> int32x4_t {
    let [a, b, c, d] = rows;
    let a = row_dot::<L, CODES, GROUP, LIMBS>(isa, a, x);
    let b = row_dot::<L, CODES, GROUP, LIMBS>(isa, b, x);
    let c = row_dot::<L, CODES, GROUP, LIMBS>(isa, c, x);
    let d = row_dot::<L, CODES, GROUP, LIMBS>(isa, d, x);
    vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d))
}

/// Four sums of one group of one row. Calls would cost as much as the work.
#[inline(always)]
fn row_dot<L: Instructions, const CODES: usize, const GROUP: usize, const LIMBS: usize>(
    isa: L,
    packed: &[u8],
    x: &[[Chunk; LIMBS]],
) -> int32x4_t {
    // SAFETY: every 64-bit ARM processor has NEON.
    let q = unsafe { signed_group::<L, CODES, GROUP>(packed) };
    let high = isa.dot_group::<CODES, GROUP, LIMBS>(&q, x, 0);
    if LIMBS == 1 {
        return high;
    }
    let low = isa.dot_group::<CODES, GROUP, LIMBS>(&q, x, 1);
    // SAFETY: every 64-bit ARM processor has NEON.
    unsafe { both_limbs(high, low) }
}

/// The weights of a group as `L` multiplies them.
#[inline]
#[target_feature(enable = "neon")]
fn signed_group<L: Instructions, const CODES: usize, const GROUP: usize>(packed: &[u8]) -> Group {
    let mut q = unpack_group::<CODES, GROUP>(packed);
    if CODES == 8 && L::SIGNED {
        for it in &mut q {
            *it = veorq_u8(*it, vdupq_n_u8(0x80));
        }
    }
    q
}

/// The dots of one group of four rows with both limbs, by products of two rows
/// with two limbs.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn pair_by_pair<const CODES: usize, const GROUP: usize>(
    isa: I8mm,
    rows: FourRows<'_>,
    x: &[Chunk],
) -> int32x4_t {
    let [a, b, c, d] = rows;
    // Each: the first row's high and low limb, then the second's.
    let (ab, cd) =
        (pair_dots::<CODES, GROUP>(isa, a, b, x), pair_dots::<CODES, GROUP>(isa, c, d, x));
    both_limbs(vuzp1q_s32(ab, cd), vuzp2q_s32(ab, cd))
}

#[inline(always)]
fn pair_dots<const CODES: usize, const GROUP: usize>(
    isa: I8mm,
    a: &[u8],
    b: &[u8],
    x: &[Chunk],
) -> int32x4_t {
    // SAFETY: every 64-bit ARM processor has NEON.
    let q = unsafe { unpack_pair::<CODES, GROUP>(a, b) };
    // SAFETY: every 64-bit ARM processor has NEON.
    unsafe { isa.multiply_all(q[..GROUP / 16].as_flattened(), x) }
}
