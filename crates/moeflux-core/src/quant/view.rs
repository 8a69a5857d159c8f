//! A weight matrix in memory.

use super::format::MatrixFormat;

/// A matrix in memory, row-major. Its parts need no alignment.
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a> {
    /// Rows: outputs.
    pub rows: usize,
    /// Columns: inputs.
    pub cols: usize,
    /// How the elements are stored.
    pub format: MatrixFormat,
    /// `rows * row_bytes` bytes.
    pub weight: &'a [u8],
    /// `scale_bytes` bytes.
    pub scales: &'a [u8],
    /// `bias_bytes` bytes: biases, or the scale that all of the matrix shares.
    pub biases: &'a [u8],
}

impl<'a> MatrixView<'a> {
    /// Asserts that every part has the length that the shape and the format require.
    pub fn assert_sizes(&self) {
        let MatrixView { rows, cols, format, .. } = *self;
        assert_eq!(self.weight.len(), rows * format.row_bytes(cols), "weight bytes");
        assert_eq!(self.scales.len(), format.scale_bytes(rows, cols), "scale bytes");
        assert_eq!(self.biases.len(), format.bias_bytes(rows, cols), "bias bytes");
    }

    /// A view of the rows `start..start + n`.
    ///
    /// # Panics
    /// If there are fewer rows, or the matrix is transposed.
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
