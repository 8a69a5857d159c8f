//! How the elements of a weight matrix are stored, and what they mean.
//!
//! The affine format is MLX's: a row is a stream of unsigned `bits`-wide
//! integers, lowest column in the lowest bits of little-endian 32-bit words,
//! in groups of `group_size` columns that share one scale and one bias:
//! `w = scale * q + bias`.

mod decode;
mod quantise;

pub use decode::{bf16_to_f32, unpack_group};
pub use quantise::{QuantError, QuantiseError, QuantisedRows, pack_group, quantise_rows};

/// An unquantised element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    BF16,
}

impl Float {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::BF16 => 2,
        }
    }
}

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
    /// Widths that exist.
    pub const BITS: [u8; 6] = [2, 3, 4, 5, 6, 8];
    /// Group sizes that exist.
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

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixFormat {
    /// One float an element.
    Dense(Float),
    /// MLX affine.
    Affine(Affine),
}

impl MatrixFormat {
    /// Bytes of the elements of a row.
    pub fn row_bytes(&self, cols: usize) -> usize {
        match self {
            MatrixFormat::Dense(float) => cols * float.bytes(),
            MatrixFormat::Affine(affine) => cols * usize::from(affine.bits) / 8,
        }
    }

    /// Bytes of the scales of a row, and as many of its biases.
    pub fn param_bytes(&self, cols: usize) -> usize {
        match self {
            MatrixFormat::Dense(_) => 0,
            MatrixFormat::Affine(affine) => affine.n_groups(cols) * affine.params.bytes(),
        }
    }

    /// Bytes of a whole matrix, scales and biases included.
    pub fn matrix_bytes(&self, rows: usize, cols: usize) -> usize {
        rows * (self.row_bytes(cols) + 2 * self.param_bytes(cols))
    }
}

/// A matrix in memory, row-major; no part has any alignment.
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a> {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// How the elements are stored.
    pub format: MatrixFormat,
    /// `rows * row_bytes` bytes.
    pub weight: &'a [u8],
    /// `rows * param_bytes` bytes.
    pub scales: &'a [u8],
    /// `rows * param_bytes` bytes.
    pub biases: &'a [u8],
}

impl<'a> MatrixView<'a> {
    /// Asserts that every part has the length that its shape asks for.
    pub fn assert_sizes(&self) {
        assert_eq!(self.weight.len(), self.rows * self.format.row_bytes(self.cols), "weight bytes");
        assert_eq!(
            self.scales.len(),
            self.rows * self.format.param_bytes(self.cols),
            "scale bytes"
        );
        assert_eq!(self.biases.len(), self.rows * self.format.param_bytes(self.cols), "bias bytes");
    }
}
