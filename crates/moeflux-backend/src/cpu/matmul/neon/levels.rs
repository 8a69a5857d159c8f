//! Levels of instructions. Compilers do not offer these instructions yet, so they are
//! written out.

use std::arch::aarch64::*;
use std::arch::asm;

use super::limbs::Chunk;
use super::unpack::Group;
use super::vector::load_signed;

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

/// The sums of four products each, through products of 16 bits, which several
/// small weights fill up before they are added in pairs.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn widening_dot<const CODES: usize, const GROUP: usize, const LIMBS: usize>(
    q: &Group,
    x: &[[Chunk; LIMBS]],
    limb: usize,
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
        let first = (vreinterpretq_s8_u8(q[0]), load_signed(&x[0][limb]));
        let low = vmull_s8(vget_low_s8(first.0), vget_low_s8(first.1));
        if CODES == 8 {
            sum = vpadalq_s16(sum, low);
            sum = vpadalq_s16(sum, vmull_high_s8(first.0, first.1));
            continue;
        }
        let mut products = vmlal_high_s8(low, first.0, first.1);
        for (q, x) in q.iter().zip(x).skip(1) {
            let (q, x) = (vreinterpretq_s8_u8(*q), load_signed(&x[limb]));
            products = vmlal_s8(products, vget_low_s8(q), vget_low_s8(x));
            products = vmlal_high_s8(products, q, x);
        }
        sum = vpadalq_s16(sum, products);
    }
    sum
}

impl Dotprod {
    /// # Safety
    /// The machine has FEAT_DotProd.
    pub(super) unsafe fn assume() -> Self {
        Dotprod(())
    }

    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn dot_chunks<const GROUP: usize, const LIMBS: usize>(
        self,
        q: &Group,
        x: &[[Chunk; LIMBS]],
        limb: usize,
    ) -> int32x4_t {
        let mut sum = vdupq_n_s32(0);
        for (q, x) in q[..GROUP / 16].iter().zip(x) {
            sum = self.dot(sum, *q, load_signed(&x[limb]));
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

impl I8mm {
    /// # Safety
    /// The machine has FEAT_I8MM.
    pub(super) unsafe fn assume() -> Self {
        I8mm(())
    }

    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn dot_chunks<const GROUP: usize, const LIMBS: usize>(
        self,
        q: &Group,
        x: &[[Chunk; LIMBS]],
        limb: usize,
    ) -> int32x4_t {
        let mut sum = vdupq_n_s32(0);
        for (q, x) in q[..GROUP / 16].iter().zip(x) {
            sum = self.dot(sum, *q, load_signed(&x[limb]));
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
