//! How a weight matrix is stored, and which bytes its rows have.

use std::ops::Range;

use super::affine::{Affine, AffineBias};
use super::block::BlockType;
use super::float::Float;
use super::normal::NF4_GROUP;
use super::small::{MicroScaled, ScaledBlocks};

/// Bytes of the scale that all of a matrix shares: a little-endian `f32`.
const GLOBAL_SCALE_BYTES: usize = 4;

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixFormat {
    /// One float per element.
    Dense(Float),
    /// One float per element, inputs before outputs: `(cols, rows)`, row-major.
    Transposed(Float),
    /// The affine format of MLX.
    Affine(Affine),
    /// Small floats in groups that share a scale.
    Micro(MicroScaled),
    /// E4M3 in blocks that share a scale.
    Blocks(ScaledBlocks),
    /// NF4 of bitsandbytes: codes of four bits in groups of [`NF4_GROUP`] columns that share a scale.
    Nf4,
    /// Integers of ggml in blocks that hold their scales as well: one plane.
    Ggml(BlockType),
}

impl MatrixFormat {
    /// Bytes of the elements of a row. The rows of a transposed matrix have the same number of
    /// bytes, but their bytes are not contiguous.
    pub fn row_bytes(&self, cols: usize) -> usize {
        match self {
            MatrixFormat::Dense(float) | MatrixFormat::Transposed(float) => cols * float.bytes(),
            MatrixFormat::Affine(affine) => cols * usize::from(affine.bits) / 8,
            MatrixFormat::Micro(micro) => cols * micro.element.bits() / 8,
            MatrixFormat::Blocks(_) => cols,
            MatrixFormat::Nf4 => cols / 2,
            MatrixFormat::Ggml(it) => cols / it.block_cols() * it.block_bytes(),
        }
    }

    /// Bytes of the scales of `rows` rows.
    pub fn scale_bytes(&self, rows: usize, cols: usize) -> usize {
        match self {
            MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) | MatrixFormat::Ggml(_) => 0,
            MatrixFormat::Affine(affine) => rows * affine.n_groups(cols) * affine.params.bytes(),
            MatrixFormat::Micro(micro) => rows * micro.n_groups(cols),
            MatrixFormat::Nf4 => rows * (cols / NF4_GROUP) * Float::F32.bytes(),
            MatrixFormat::Blocks(blocks) => {
                blocks.n_row_blocks(rows) * blocks.n_col_blocks(cols) * blocks.scales.bytes()
            }
        }
    }

    /// Bytes of the biases of `rows` rows, or of the scale that all of a matrix shares.
    pub fn bias_bytes(&self, rows: usize, cols: usize) -> usize {
        match self {
            MatrixFormat::Affine(affine) if affine.bias == AffineBias::Stored => {
                self.scale_bytes(rows, cols)
            }
            MatrixFormat::Micro(micro) if micro.has_global_scale && rows > 0 => GLOBAL_SCALE_BYTES,
            _ => 0,
        }
    }

    /// Bytes of a whole matrix, including scales and biases.
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
            MatrixFormat::Nf4 => cols.is_multiple_of(NF4_GROUP),
            MatrixFormat::Ggml(it) => cols.is_multiple_of(it.block_cols()),
        }
    }

    /// The format of the rows from `start` on. If rows share scales, it records how far into a
    /// block the first row is.
    pub fn from_row(self, start: usize) -> MatrixFormat {
        match self {
            MatrixFormat::Blocks(blocks) => {
                let phase = (blocks.phase + start) % blocks.block_rows;
                MatrixFormat::Blocks(ScaledBlocks { phase, ..blocks })
            }
            other => other,
        }
    }

    /// The byte ranges of rows `start..start + n` in the whole matrix: of weights, of scales, of
    /// biases.
    ///
    /// # Panics
    /// If the matrix is transposed: its rows are not contiguous.
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
        let biases = match self {
            // All rows share it.
            MatrixFormat::Micro(_) => 0,
            _ => self.bias_bytes(start, cols),
        };
        [
            start * row..(start + n) * row,
            scales..scales + self.from_row(start).scale_bytes(n, cols),
            biases..biases + self.bias_bytes(n, cols),
        ]
    }
}
