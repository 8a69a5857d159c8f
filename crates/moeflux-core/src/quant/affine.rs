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
    /// Where the bias of a group comes from.
    pub bias: AffineBias,
}

/// Where the bias of a group of integers comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AffineBias {
    /// It is stored, as the scale is.
    Stored,
    /// It is the scale times minus `2^(bits - 1)`, and not stored: the integers are those of a
    /// symmetric range, with the middle of the range added (`pack-quantized` of compressed-tensors).
    Symmetric,
}

impl Affine {
    /// The supported widths in bits.
    pub const BITS: [u8; 6] = [2, 3, 4, 5, 6, 8];
    /// The supported group sizes.
    pub const GROUP_SIZES: [usize; 3] = [32, 64, 128];

    /// The format with stored biases.
    pub const fn new(bits: u8, group_size: usize, params: Float) -> Affine {
        Affine { bits, group_size, params, bias: AffineBias::Stored }
    }

    /// The format without stored biases.
    pub const fn symmetric(bits: u8, group_size: usize, params: Float) -> Affine {
        Affine { bits, group_size, params, bias: AffineBias::Symmetric }
    }

    /// Minus the middle of the range of the integers: a symmetric bias is this times the scale.
    pub fn symmetric_bias(&self) -> f32 {
        -f32::from(1u16 << (self.bits - 1))
    }

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
