//! Integers in groups that share a scale and a bias: the format of MLX.

use super::float::Float;

/// Integers in groups that share a scale and a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affine {
    /// Bits of one integer: 2, 3, 4, 5, 6 or 8.
    pub bits: u8,
    /// Columns that share a scale and a bias: 32, 64 or 128.
    pub group_size: usize,
    /// How scales and biases are stored.
    pub params: Float,
}

impl Affine {
    /// The supported widths in bits.
    pub const BITS: [u8; 6] = [2, 3, 4, 5, 6, 8];
    /// The supported group sizes.
    pub const GROUP_SIZES: [usize; 3] = [32, 64, 128];

    /// Whether kernels exist for this format over rows of `cols` columns.
    pub fn is_supported(&self, cols: usize) -> bool {
        Self::BITS.contains(&self.bits)
            && Self::GROUP_SIZES.contains(&self.group_size)
            && cols.is_multiple_of(self.group_size)
    }

    /// Groups in a row of `cols` columns.
    pub fn n_groups(&self, cols: usize) -> usize {
        cols / self.group_size
    }
}
