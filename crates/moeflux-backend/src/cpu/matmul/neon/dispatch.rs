//! The kernels of each level of instructions.

use std::arch::aarch64::*;
use std::ops::Range;

use super::instructions::Instructions;
use super::levels::{Dotprod, I8mm, Plain, widening_dot};
use super::limbs::{Chunk, FourRows};
use super::piece::{Inputs, Piece, ROWS, Sums};
use super::stream;
use super::tile::{pairs, quads, rows};
use super::unpack::Group;

impl Instructions for Plain {
    const SIGNED: bool = true;
    const PAIRS_LIMBS: bool = false;

    #[inline(always)]
    fn dot_group<const CODES: usize, const GROUP: usize, const LIMBS: usize>(
        self,
        q: &Group,
        x: &[[Chunk; LIMBS]],
        limb: usize,
    ) -> int32x4_t {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { widening_dot::<CODES, GROUP, LIMBS>(q, x, limb) }
    }

    #[inline(always)]
    fn dot_rows<const CODES: usize, const GROUP: usize, const LIMBS: usize>(
        self,
        rows: FourRows<'_>,
        x: &[[Chunk; LIMBS]],
    ) -> int32x4_t {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { stream::row_by_row::<_, CODES, GROUP, LIMBS>(self, rows, x) }
    }

    fn load(self, piece: &mut Piece, packed: [&[u8]; ROWS], codes: usize) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { rows::load(piece, packed, codes) }
    }

    fn prepack(self, _: &mut Inputs<'_>) {}

    fn multiply(self, piece: &Piece, inputs: &Inputs<'_>, groups: Range<usize>, sums: &mut [Sums]) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { rows::multiply(self, piece, inputs, groups, sums) }
    }
}

impl Instructions for Dotprod {
    const SIGNED: bool = true;
    const PAIRS_LIMBS: bool = false;

    #[inline(always)]
    fn dot_group<const CODES: usize, const GROUP: usize, const LIMBS: usize>(
        self,
        q: &Group,
        x: &[[Chunk; LIMBS]],
        limb: usize,
    ) -> int32x4_t {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { self.dot_chunks::<GROUP, LIMBS>(q, x, limb) }
    }

    #[inline(always)]
    fn dot_rows<const CODES: usize, const GROUP: usize, const LIMBS: usize>(
        self,
        rows: FourRows<'_>,
        x: &[[Chunk; LIMBS]],
    ) -> int32x4_t {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { stream::row_by_row::<_, CODES, GROUP, LIMBS>(self, rows, x) }
    }

    fn load(self, piece: &mut Piece, packed: [&[u8]; ROWS], codes: usize) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { quads::load(piece, packed, codes) }
    }

    fn prepack(self, _: &mut Inputs<'_>) {}

    fn multiply(self, piece: &Piece, inputs: &Inputs<'_>, groups: Range<usize>, sums: &mut [Sums]) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { quads::multiply(self, piece, inputs, groups, sums) }
    }
}

impl Instructions for I8mm {
    const SIGNED: bool = false;
    const PAIRS_LIMBS: bool = true;

    #[inline(always)]
    fn dot_group<const CODES: usize, const GROUP: usize, const LIMBS: usize>(
        self,
        q: &Group,
        x: &[[Chunk; LIMBS]],
        limb: usize,
    ) -> int32x4_t {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { self.dot_chunks::<GROUP, LIMBS>(q, x, limb) }
    }

    #[inline(always)]
    fn dot_rows<const CODES: usize, const GROUP: usize, const LIMBS: usize>(
        self,
        rows: FourRows<'_>,
        x: &[[Chunk; LIMBS]],
    ) -> int32x4_t {
        if LIMBS == 2 {
            // SAFETY: every 64-bit ARM processor has NEON.
            unsafe { stream::pair_by_pair::<CODES, GROUP>(self, rows, x.as_flattened()) }
        } else {
            // SAFETY: every 64-bit ARM processor has NEON.
            unsafe { stream::row_by_row::<_, CODES, GROUP, LIMBS>(self, rows, x) }
        }
    }

    fn load(self, piece: &mut Piece, packed: [&[u8]; ROWS], codes: usize) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { pairs::load(piece, packed, codes) }
    }

    fn prepack(self, inputs: &mut Inputs<'_>) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { pairs::prepack(inputs) }
    }

    fn multiply(self, piece: &Piece, inputs: &Inputs<'_>, groups: Range<usize>, sums: &mut [Sums]) {
        // SAFETY: every 64-bit ARM processor has NEON.
        unsafe { pairs::multiply(self, piece, inputs, groups, sums) }
    }
}
