//! Scales and biases, with four rows of the matrix as lanes.

use std::arch::aarch64::*;
use std::ops::Range;

use super::vector::load_floats;
use crate::cpu::matmul::block_format::BlockFormat;
use crate::cpu::matmul::product::IntegerProduct;

/// Groups whose parameters are decoded together: a piece of the tile, where
/// groups are smallest.
pub(super) const GROUPS: usize = 128;

/// Of each of some groups, four rows' scales and biases.
#[derive(Clone, Copy)]
pub(super) struct Params {
    pub(super) scale: [[f32; 4]; GROUPS],
    pub(super) bias: [[f32; 4]; GROUPS],
}

impl Default for Params {
    fn default() -> Params {
        Params { scale: [[0.0; 4]; GROUPS], bias: [[0.0; 4]; GROUPS] }
    }
}

impl Params {
    /// At most four rows; those beyond the last get a zero or what was there.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn load(
        &mut self,
        product: &IntegerProduct<'_>,
        rows: Range<usize>,
        groups: Range<usize>,
    ) {
        let n = groups.len();
        let (mut scale, mut bias) = ([[0f32; GROUPS]; 4], [[0f32; GROUPS]; 4]);
        for (r, row) in rows.enumerate() {
            let (scale, bias) = (&mut scale[r][..n], &mut bias[r][..n]);
            let first = row * product.n_groups() + groups.start;
            product.integers.params_of_groups(&product.weight, first..first + n, scale, bias);
        }
        transpose(&scale, n, &mut self.scale);
        transpose(&bias, n, &mut self.bias);
    }
}

/// The first `n` groups, with the rows as lanes.
#[inline]
#[target_feature(enable = "neon")]
fn transpose(by_row: &[[f32; GROUPS]; 4], n: usize, out: &mut [[f32; 4]; GROUPS]) {
    let [a, b, c, d] = by_row.each_ref().map(|row| row.as_chunks::<4>().0);
    let out = out.as_chunks_mut::<4>().0.iter_mut().take(n.div_ceil(4));
    for (i, out) in out.enumerate() {
        let rows = float32x4x4_t(
            load_floats(&a[i]),
            load_floats(&b[i]),
            load_floats(&c[i]),
            load_floats(&d[i]),
        );
        // SAFETY: sixteen elements are writable, and the store needs no alignment.
        unsafe { vst4q_f32(out.as_flattened_mut().as_mut_ptr(), rows) };
    }
}
