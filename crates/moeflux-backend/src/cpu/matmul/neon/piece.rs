//! What many rows of activations are multiplied with and added to.

use std::arch::aarch64::*;

use super::limbs::Chunk;
use super::params::{GROUPS, Params};
use super::vector::{load_floats, store_floats};

/// Rows of the matrix that are unpacked together.
pub(super) const ROWS: usize = 8;

/// Columns that are unpacked together: eight rows of them take half of the
/// smallest first cache. A multiple of every group size.
pub(super) const COLS: usize = 2048;

/// Some columns of eight rows; rows beyond the last repeat it.
pub(super) struct Piece {
    /// One byte a weight.
    pub(super) q: [[u8; 16]; ROWS * COLS / 16],
    /// Bits of a weight, or what stands for these.
    pub(super) codes: usize,
    pub(super) params: [Params; 2],
}

/// Some rows of the activations.
pub(super) struct Inputs<'a> {
    pub(super) rows: Vec<Input<'a>>,
    pub(super) group_size: usize,
    pub(super) n_groups: usize,
    /// What dots lack of each group of each row; empty where they lack nothing.
    pub(super) missing: Vec<i32>,
    /// The rows in another order; see the tile of pairs.
    pub(super) prepacked: Vec<Chunk>,
}

/// One row of the activations.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    /// The limbs, if there are two the larger one first, else the same twice.
    pub(super) limbs: [&'a [i8]; 2],
    pub(super) n_limbs: usize,
    pub(super) s: &'a [f32],
    pub(super) st: &'a [f32],
}

/// The accumulators of eight outputs.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) acc: [float32x4_t; 2],
    pub(super) off: [float32x4_t; 2],
}

impl Sums {
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn zero() -> Sums {
        let zero = [vdupq_n_f32(0.0); 2];
        Sums { acc: zero, off: zero }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn total(&self) -> [f32; ROWS] {
        let mut out = [0.0; ROWS];
        for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            store_floats(out, vaddq_f32(self.acc[i], self.off[i]));
        }
        out
    }

    /// Ends a group, the `g`-th of the piece.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn end_group(
        &mut self,
        dots: [int32x4_t; 2],
        params: &[Params; 2],
        g: usize,
        s: f32,
        st: f32,
    ) {
        for i in 0..2 {
            let scale = vmulq_n_f32(load_floats(&params[i].scale[g]), s);
            self.acc[i] = vfmaq_f32(self.acc[i], vcvtq_f32_s32(dots[i]), scale);
            self.off[i] = vfmaq_n_f32(self.off[i], load_floats(&params[i].bias[g]), st);
        }
    }
}

impl Inputs<'_> {
    pub(super) fn n_limbs(&self) -> usize {
        self.rows.first().map_or(0, |row| row.n_limbs)
    }

    /// What the dots of a group with row `i` lack.
    #[inline]
    pub(super) fn missing(&self, i: usize, group: usize) -> i32 {
        self.missing.get(i * self.n_groups + group).copied().unwrap_or(0)
    }
}

const _: () = assert!(GROUPS * 16 == COLS, "the parameters of a piece");
