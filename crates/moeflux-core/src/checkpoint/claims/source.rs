//! Where resident weights are stored, and their bytes.

use super::super::{Extent, FileReader, FormatError};
use crate::quant::{Float, MatrixFormat, MatrixView};

/// Where a resident matrix is stored, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixSource {
    /// Rows: outputs.
    pub rows: usize,
    /// Columns: inputs.
    pub cols: usize,
    /// How the elements are stored.
    pub format: MatrixFormat,
    /// The elements, row-major.
    pub weight: Extent,
    /// The scales; empty for formats without scales.
    pub scales: Extent,
    /// One bias per group and row; empty for formats without biases.
    pub biases: Extent,
}

/// Where a resident vector is stored, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorSource {
    /// The bytes of the elements.
    pub extent: Extent,
    /// The type of the elements.
    pub float: Float,
    /// The shape in the checkpoint, one of those declared.
    pub shape: Vec<usize>,
}

/// The bytes of a matrix, or of some of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixBytes {
    /// The elements.
    pub weight: Vec<u8>,
    /// The scales.
    pub scales: Vec<u8>,
    /// The biases.
    pub biases: Vec<u8>,
}

impl MatrixSource {
    /// The source of the rows `start..start + n`, as a matrix.
    pub fn rows(&self, start: usize, n: usize) -> MatrixSource {
        assert!(start <= self.rows && n <= self.rows - start, "rows of a matrix");
        let [weight, scales, biases] = self.format.row_ranges(start, n, self.cols);
        MatrixSource {
            rows: n,
            cols: self.cols,
            format: self.format.from_row(start),
            weight: self.weight.slice(weight.start, weight.len()),
            scales: self.scales.slice(scales.start, scales.len()),
            biases: self.biases.slice(biases.start, biases.len()),
        }
    }

    /// Reads the bytes of the matrix.
    ///
    /// # Errors
    /// If a file cannot be opened or ends too early.
    pub fn read(&self, reader: &FileReader) -> Result<MatrixBytes, FormatError> {
        Ok(MatrixBytes {
            weight: reader.read(self.weight)?,
            scales: reader.read(self.scales)?,
            biases: reader.read(self.biases)?,
        })
    }
}

impl MatrixBytes {
    /// A view of these bytes as the matrix `source`.
    pub fn view(&self, source: &MatrixSource) -> MatrixView<'_> {
        MatrixView {
            rows: source.rows,
            cols: source.cols,
            format: source.format,
            weight: &self.weight,
            scales: &self.scales,
            biases: &self.biases,
        }
    }
}

impl VectorSource {
    /// Reads the elements, in the order in which they are stored.
    ///
    /// # Errors
    /// If the file cannot be opened or ends too early.
    pub fn read_f32(&self, reader: &FileReader) -> Result<Vec<f32>, FormatError> {
        let bytes = reader.read(self.extent)?;
        Ok((0..bytes.len() / self.float.bytes()).map(|i| self.float.read(&bytes, i)).collect())
    }
}
