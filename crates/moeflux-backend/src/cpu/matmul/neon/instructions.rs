//! What the processor multiplies bytes with, and what kernels do with it.
//! Compilers do not offer these instructions yet, so they are written out.

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::stream::{self, Chunk, FourRows};
use super::tile::{self, Inputs, Piece, Sums};
use super::unpack::Group;
use super::vector::load_signed;

/// A level of instructions. Holding one is the proof that the machine has it.
pub(super) trait Instructions: Copy {
    /// Whether bytes are multiplied with bytes of both signs: weights of eight
    /// bits go in less 128.
    const SIGNED: bool;

    /// Whether both digits of a row of activations are multiplied at once, and
    /// lie in halves of the same vectors.
    const PAIRS_DIGITS: bool;

    /// The sums of four products each of one group with one digit, of which
    /// every `DIGITS`-th vector is one.
    fn dot_group<const CODES: usize, const GROUP: usize, const DIGITS: usize>(
        self,
        q: &Group,
        x: &[[Chunk; DIGITS]],
        digit: usize,
    ) -> int32x4_t;

    /// The dots of one group of four rows, less what [`SIGNED`](Self::SIGNED)
    /// takes away.
    fn dot_rows<const CODES: usize, const GROUP: usize, const DIGITS: usize>(
        self,
        rows: FourRows<'_>,
        x: &[[Chunk; DIGITS]],
    ) -> int32x4_t;

    /// Unpacks some columns of eight rows.
    fn load(self, piece: &mut Piece, packed: [&[u8]; tile::ROWS], codes: usize);

    /// Lays out rows of activations as `multiply` wants them.
    fn arrange(self, inputs: &mut Inputs<'_>);

    /// Adds the products of unpacked columns with some rows of activations.
    fn multiply(self, piece: &Piece, inputs: &Inputs<'_>, groups: Range<usize>, sums: &mut [Sums]);
}

/// What every 64-bit ARM processor has.
#[derive(Clone, Copy)]
pub(super) struct Plain;

/// Dot products of four bytes (`sdot`).
#[derive(Clone, Copy)]
pub(super) struct Dotprod(());

/// Products of matrices of two by eight bytes (`usmmla`), and dot products of
/// bytes without and with sign (`usdot`).
#[derive(Clone, Copy)]
pub(super) struct I8mm(());

impl Instructions for Plain {
    const SIGNED: bool = true;
    const PAIRS_DIGITS: bool = false;

    #[inline(always)]
    fn dot_group<const CODES: usize, const GROUP: usize, const DIGITS: usize>(
        self,
        q: &Group,
        x: &[[Chunk; DIGITS]],
        digit: usize,
    ) -> int32x4_t {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { widening_dot::<CODES, GROUP, DIGITS>(q, x, digit) }
    }

    #[inline(always)]
    fn dot_rows<const CODES: usize, const GROUP: usize, const DIGITS: usize>(
        self,
        rows: FourRows<'_>,
        x: &[[Chunk; DIGITS]],
    ) -> int32x4_t {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { stream::row_by_row::<_, CODES, GROUP, DIGITS>(self, rows, x) }
    }

    fn load(self, piece: &mut Piece, packed: [&[u8]; tile::ROWS], codes: usize) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { tile::rows::load(piece, packed, codes) }
    }

    fn arrange(self, _: &mut Inputs<'_>) {}

    fn multiply(self, piece: &Piece, inputs: &Inputs<'_>, groups: Range<usize>, sums: &mut [Sums]) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { tile::rows::multiply(self, piece, inputs, groups, sums) }
    }
}

impl Instructions for Dotprod {
    const SIGNED: bool = true;
    const PAIRS_DIGITS: bool = false;

    #[inline(always)]
    fn dot_group<const CODES: usize, const GROUP: usize, const DIGITS: usize>(
        self,
        q: &Group,
        x: &[[Chunk; DIGITS]],
        digit: usize,
    ) -> int32x4_t {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { self.dot_chunks::<GROUP, DIGITS>(q, x, digit) }
    }

    #[inline(always)]
    fn dot_rows<const CODES: usize, const GROUP: usize, const DIGITS: usize>(
        self,
        rows: FourRows<'_>,
        x: &[[Chunk; DIGITS]],
    ) -> int32x4_t {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { stream::row_by_row::<_, CODES, GROUP, DIGITS>(self, rows, x) }
    }

    fn load(self, piece: &mut Piece, packed: [&[u8]; tile::ROWS], codes: usize) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { tile::quads::load(piece, packed, codes) }
    }

    fn arrange(self, _: &mut Inputs<'_>) {}

    fn multiply(self, piece: &Piece, inputs: &Inputs<'_>, groups: Range<usize>, sums: &mut [Sums]) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { tile::quads::multiply(self, piece, inputs, groups, sums) }
    }
}

impl Dotprod {
    /// # Safety
    /// The machine has FEAT_DotProd.
    pub(super) unsafe fn assume() -> Self {
        Dotprod(())
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn dot_chunks<const GROUP: usize, const DIGITS: usize>(
        self,
        q: &Group,
        x: &[[Chunk; DIGITS]],
        digit: usize,
    ) -> int32x4_t {
        let mut sum = vdupq_n_s32(0);
        for (q, x) in q[..GROUP / 16].iter().zip(x) {
            sum = self.dot(sum, *q, load_signed(&x[digit]));
        }
        sum
    }

    /// Adds to each lane the products of four bytes of both signs.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn dot(self, mut sum: int32x4_t, q: uint8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: `self` proves that the machine has this instruction, which changes one register.
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {sum:v}.4s, {q:v}.16b, {x:v}.16b",
                sum = inout(vreg) sum,
                q = in(vreg) q,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }

    /// Adds to each lane the products of its four bytes with the four bytes of
    /// one lane of `x`.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn dot_lane<const LANE: usize>(
        self,
        mut sum: int32x4_t,
        q: uint8x16_t,
        x: int8x16_t,
    ) -> int32x4_t {
        // SAFETY: `self` proves that the machine has this instruction, which changes one register.
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {sum:v}.4s, {q:v}.16b, {x:v}.4b[{lane}]",
                sum = inout(vreg) sum,
                q = in(vreg) q,
                x = in(vreg) x,
                lane = const LANE,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }
}

impl Instructions for I8mm {
    const SIGNED: bool = false;
    const PAIRS_DIGITS: bool = true;

    #[inline(always)]
    fn dot_group<const CODES: usize, const GROUP: usize, const DIGITS: usize>(
        self,
        q: &Group,
        x: &[[Chunk; DIGITS]],
        digit: usize,
    ) -> int32x4_t {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { self.dot_chunks::<GROUP, DIGITS>(q, x, digit) }
    }

    #[inline(always)]
    fn dot_rows<const CODES: usize, const GROUP: usize, const DIGITS: usize>(
        self,
        rows: FourRows<'_>,
        x: &[[Chunk; DIGITS]],
    ) -> int32x4_t {
        if DIGITS == 2 {
            // SAFETY: every 64-bit ARM processor has NEON.
            unsafe { stream::pair_by_pair::<CODES, GROUP>(self, rows, x.as_flattened()) }
        } else {
            // SAFETY: every 64-bit ARM processor has NEON.
            unsafe { stream::row_by_row::<_, CODES, GROUP, DIGITS>(self, rows, x) }
        }
    }

    fn load(self, piece: &mut Piece, packed: [&[u8]; tile::ROWS], codes: usize) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { tile::pairs::load(piece, packed, codes) }
    }

    fn arrange(self, inputs: &mut Inputs<'_>) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { tile::pairs::arrange(inputs) }
    }

    fn multiply(self, piece: &Piece, inputs: &Inputs<'_>, groups: Range<usize>, sums: &mut [Sums]) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { tile::pairs::multiply(self, piece, inputs, groups, sums) }
    }
}

impl I8mm {
    /// # Safety
    /// The machine has FEAT_I8MM.
    pub(super) unsafe fn assume() -> Self {
        I8mm(())
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn dot_chunks<const GROUP: usize, const DIGITS: usize>(
        self,
        q: &Group,
        x: &[[Chunk; DIGITS]],
        digit: usize,
    ) -> int32x4_t {
        let mut sum = vdupq_n_s32(0);
        for (q, x) in q[..GROUP / 16].iter().zip(x) {
            sum = self.dot(sum, *q, load_signed(&x[digit]));
        }
        sum
    }

    /// Adds to each lane the products of four bytes without and with sign.
    #[inline]
    #[target_feature(enable = "neon")]
    fn dot(self, mut sum: int32x4_t, q: uint8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: `self` proves that the machine has this instruction, which changes one register.
        unsafe {
            asm!(
                ".arch_extension i8mm",
                "usdot {sum:v}.4s, {q:v}.16b, {x:v}.16b",
                sum = inout(vreg) sum,
                q = in(vreg) q,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }

    /// The sums of [`multiply_pairs`](Self::multiply_pairs) of all vectors.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn multiply_all(self, q: &[uint8x16_t], x: &[Chunk]) -> int32x4_t {
        let mut sum = vdupq_n_s32(0);
        for (q, x) in q.iter().zip(x) {
            sum = self.multiply_pairs(sum, *q, load_signed(x));
        }
        sum
    }

    /// Adds the products of the rows of two matrices of two rows of eight bytes,
    /// without and with sign: lane `2 i + j` gets row `i` of `q` times row `j`
    /// of `x`.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn multiply_pairs(
        self,
        mut sum: int32x4_t,
        q: uint8x16_t,
        x: int8x16_t,
    ) -> int32x4_t {
        // SAFETY: `self` proves that the machine has this instruction, which changes one register.
        unsafe {
            asm!(
                ".arch_extension i8mm",
                "usmmla {sum:v}.4s, {q:v}.16b, {x:v}.16b",
                sum = inout(vreg) sum,
                q = in(vreg) q,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }
}

/// The sums of four products each, through products of 16 bits, which several
/// small weights fill up before they are added in pairs.
#[inline]
#[target_feature(enable = "neon")]
fn widening_dot<const CODES: usize, const GROUP: usize, const DIGITS: usize>(
    q: &Group,
    x: &[[Chunk; DIGITS]],
    digit: usize,
) -> int32x4_t {
    // 16 products of 15 * -128, 4 of 24 or 63 * -128 and 1 of -128 * -128 fit.
    let n_together = match CODES {
        2..=4 => GROUP / 16,
        8 => 1,
        _ => 2,
    };
    let mut sum = vdupq_n_s32(0);
    let (q, x) = (&q[..GROUP / 16], &x[..GROUP / 16]);
    for (q, x) in q.chunks_exact(n_together).zip(x.chunks_exact(n_together)) {
        let first = (vreinterpretq_s8_u8(q[0]), load_signed(&x[0][digit]));
        let low = vmull_s8(vget_low_s8(first.0), vget_low_s8(first.1));
        if CODES == 8 {
            sum = vpadalq_s16(sum, low);
            sum = vpadalq_s16(sum, vmull_high_s8(first.0, first.1));
            continue;
        }
        let mut products = vmlal_high_s8(low, first.0, first.1);
        for (q, x) in q.iter().zip(x).skip(1) {
            let (q, x) = (vreinterpretq_s8_u8(*q), load_signed(&x[digit]));
            products = vmlal_s8(products, vget_low_s8(q), vget_low_s8(x));
            products = vmlal_high_s8(products, q, x);
        }
        sum = vpadalq_s16(sum, products);
    }
    sum
}
