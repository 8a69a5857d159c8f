//! How the elements of a weight matrix are stored, and what they mean.
//!
//! The affine format is MLX's: a row is a stream of unsigned `bits`-wide
//! integers, lowest column in the lowest bits of little-endian 32-bit words,
//! in groups of `group_size` columns that share one scale and one bias:
//! `w = scale * q + bias`.
//!
//! The micro-scaled formats (OCP's MX, NVIDIA's NVFP4) store floats of 4 or 8
//! bits in groups that share a scale of 8 bits, without a bias; DeepSeek-V3's
//! FP8 shares a scale among a rectangle of a matrix: `w = scale * element`.

mod decode;
mod feedback;
mod finite;
mod fit;
mod quantise;
mod small;

use std::ops::Range;

pub use decode::{bf16_to_f32, unpack_group};
pub use feedback::{Feedback, feedback_rows};
pub use finite::Encoding;
pub use fit::fit_rows;
pub use quantise::{QuantError, QuantiseError, QuantisedRows, pack_group, quantise_rows};
pub use small::{MicroScaled, ScaledBlocks, SmallFloat, SmallScale};
pub use small::{e2m1_to_f32, e4m3_to_f32, e8m0_to_f32};

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
    /// One float an element, inputs before outputs: `(cols, rows)`, row-major.
    Transposed(Float),
    /// MLX affine.
    Affine(Affine),
    /// Small floats in groups that share a scale.
    Micro(MicroScaled),
    /// E4M3 in rectangles that share a scale.
    Blocks(ScaledBlocks),
}

impl MatrixFormat {
    /// Bytes of the elements of a row. A transposed matrix has as many for each
    /// row, but not in one piece.
    pub fn row_bytes(&self, cols: usize) -> usize {
        match self {
            MatrixFormat::Dense(float) | MatrixFormat::Transposed(float) => cols * float.bytes(),
            MatrixFormat::Affine(affine) => cols * usize::from(affine.bits) / 8,
            MatrixFormat::Micro(micro) => cols * micro.element.bits() / 8,
            MatrixFormat::Blocks(_) => cols,
        }
    }

    /// Bytes of the scales of some rows.
    pub fn scale_bytes(&self, rows: usize, cols: usize) -> usize {
        match self {
            MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) => 0,
            MatrixFormat::Affine(affine) => rows * affine.n_groups(cols) * affine.params.bytes(),
            MatrixFormat::Micro(micro) => rows * micro.n_groups(cols),
            MatrixFormat::Blocks(blocks) => {
                blocks.n_row_blocks(rows) * blocks.n_col_blocks(cols) * blocks.scales.bytes()
            }
        }
    }

    /// Bytes of the biases of some rows.
    pub fn bias_bytes(&self, rows: usize, cols: usize) -> usize {
        match self {
            MatrixFormat::Affine(_) => self.scale_bytes(rows, cols),
            _ => 0,
        }
    }

    /// Bytes of a whole matrix, scales and biases included.
    pub fn matrix_bytes(&self, rows: usize, cols: usize) -> usize {
        rows * self.row_bytes(cols) + self.scale_bytes(rows, cols) + self.bias_bytes(rows, cols)
    }

    /// Whether kernels exist for this format over rows of `cols` columns.
    pub fn is_supported(&self, cols: usize) -> bool {
        match self {
            MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) => true,
            MatrixFormat::Affine(affine) => affine.is_supported(cols),
            MatrixFormat::Micro(micro) => micro.is_supported(cols),
            MatrixFormat::Blocks(blocks) => blocks.is_supported(),
        }
    }

    /// The format of the rows from `start` on: where rows share scales, it
    /// remembers how far into the first of these it begins.
    pub fn from_row(self, start: usize) -> MatrixFormat {
        match self {
            MatrixFormat::Blocks(blocks) => {
                let phase = (blocks.phase + start) % blocks.block_rows;
                MatrixFormat::Blocks(ScaledBlocks { phase, ..blocks })
            }
            other => other,
        }
    }

    /// Where the bytes of rows `start..start + n` lie among those of the whole
    /// matrix: of weights, of scales, of biases.
    ///
    /// # Panics
    /// For transposed matrices, whose rows lie in no piece.
    pub fn row_ranges(&self, start: usize, n: usize, cols: usize) -> [Range<usize>; 3] {
        assert!(!matches!(self, MatrixFormat::Transposed(_)), "rows of a transposed matrix");
        let row = self.row_bytes(cols);
        let scales = match self {
            MatrixFormat::Blocks(blocks) => {
                let before = (blocks.phase + start) / blocks.block_rows;
                before * blocks.n_col_blocks(cols) * blocks.scales.bytes()
            }
            _ => self.scale_bytes(start, cols),
        };
        let biases = self.bias_bytes(start, cols);
        [
            start * row..(start + n) * row,
            scales..scales + self.from_row(start).scale_bytes(n, cols),
            biases..biases + self.bias_bytes(n, cols),
        ]
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
    /// `scale_bytes` bytes.
    pub scales: &'a [u8],
    /// `bias_bytes` bytes.
    pub biases: &'a [u8],
}

impl<'a> MatrixView<'a> {
    /// Asserts that every part has the length that its shape asks for.
    pub fn assert_sizes(&self) {
        let MatrixView { rows, cols, format, .. } = *self;
        assert_eq!(self.weight.len(), rows * format.row_bytes(cols), "weight bytes");
        assert_eq!(self.scales.len(), format.scale_bytes(rows, cols), "scale bytes");
        assert_eq!(self.biases.len(), format.bias_bytes(rows, cols), "bias bytes");
    }

    /// Some of its rows.
    ///
    /// # Panics
    /// Where there are not as many, or the matrix is transposed.
    pub fn slice_rows(&self, start: usize, n: usize) -> MatrixView<'a> {
        assert!(start <= self.rows && n <= self.rows - start, "rows of a matrix");
        let [weight, scales, biases] = self.format.row_ranges(start, n, self.cols);
        MatrixView {
            rows: n,
            cols: self.cols,
            format: self.format.from_row(start),
            weight: &self.weight[weight],
            scales: &self.scales[scales],
            biases: &self.biases[biases],
        }
    }
}
