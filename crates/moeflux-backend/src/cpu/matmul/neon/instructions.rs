//! The operations that kernels need from a level of NEON.

use std::arch::aarch64::*;
use std::ops::Range;

use super::limbs::{Chunk, FourRows};
use super::piece::{Inputs, Piece, ROWS, Sums};
use super::unpack::Group;

/// A level of instructions. Holding one is the proof that the machine has it.
pub(super) trait Instructions: Copy {
    /// Whether bytes are multiplied with bytes of both signs: weights of eight
    /// bits go in less 128.
    const SIGNED: bool;

    /// Whether both limbs of a row of activations are multiplied at once, and
    /// are in halves of the same vectors.
    const PAIRS_LIMBS: bool;

    /// The sums of four products each of one group with one limb, of which
    /// every `LIMBS`-th vector is one.
    fn dot_group<const CODES: usize, const GROUP: usize, const LIMBS: usize>(
        self,
        q: &Group,
        x: &[[Chunk; LIMBS]],
        limb: usize,
    ) -> int32x4_t;

    /// The dots of one group of four rows, less what [`SIGNED`](Self::SIGNED)
    /// takes away.
    fn dot_rows<const CODES: usize, const GROUP: usize, const LIMBS: usize>(
        self,
        rows: FourRows<'_>,
        x: &[[Chunk; LIMBS]],
    ) -> int32x4_t;

    /// Unpacks some columns of eight rows.
    fn load(self, piece: &mut Piece, packed: [&[u8]; ROWS], codes: usize);

    /// Lays out rows of activations as `multiply` wants them.
    fn prepack(self, inputs: &mut Inputs<'_>);

    /// Adds the products of unpacked columns with some rows of activations.
    fn multiply(self, piece: &Piece, inputs: &Inputs<'_>, groups: Range<usize>, sums: &mut [Sums]);
}
