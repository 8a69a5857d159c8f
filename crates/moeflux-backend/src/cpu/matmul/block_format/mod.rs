//! How a matrix stores integers, scales and biases.
//!
//! Integer kernels see every format as unsigned integers of at most 8 bits in groups of columns,
//! with a scale and a bias for each group: an element is `scale * integer + bias`. A
//! [`BlockFormat`] says where in memory these are. Affine matrices, MXFP4 and NVFP4 store codes,
//! scales and biases in planes; formats with super-blocks interleave them.

use std::ops::Range;

use moeflux_core::quant::MatrixView;

/// A stored format that integer kernels can read. Kernels take it as a type parameter, so that
/// formats known at compile time cost no branches.
pub(super) trait BlockFormat: Copy {
    /// Columns of a block, the fewest that can be unpacked alone: a multiple of
    /// [`group_cols`](BlockFormat::group_cols).
    fn block_cols(self) -> usize;

    /// Columns that share a scale and a bias.
    fn group_cols(self) -> usize;

    /// Bytes of a block in [`MatrixView::weight`]: its codes and, where these are interleaved,
    /// its scales and biases.
    fn block_bytes(self) -> usize;

    /// Writes the integers of one block of [`block_bytes`](BlockFormat::block_bytes), in the
    /// order of the columns.
    fn unpack(self, block: &[u8], out: &mut [u8]);

    /// The scale and the bias of a group, which counts from the first group of the matrix.
    fn params(self, weight: &MatrixView<'_>, group: usize) -> (f32, f32);

    /// [`params`](BlockFormat::params) of consecutive groups.
    #[inline(always)]
    fn params_of_groups(
        self,
        weight: &MatrixView<'_>,
        groups: Range<usize>,
        scales: &mut [f32],
        biases: &mut [f32],
    ) {
        for ((group, scale), bias) in groups.zip(scales).zip(biases) {
            (*scale, *bias) = self.params(weight, group);
        }
    }

    /// Groups of a row of `cols` columns.
    fn n_groups(self, cols: usize) -> usize {
        cols / self.group_cols()
    }

    /// Bytes of a row of `cols` columns in [`MatrixView::weight`].
    fn row_bytes(self, cols: usize) -> usize {
        cols / self.block_cols() * self.block_bytes()
    }

    /// Writes the integers of a row.
    fn unpack_row(self, weight: &MatrixView<'_>, row: usize, out: &mut [u8]) {
        let n = self.row_bytes(weight.cols);
        let blocks = weight.weight[row * n..(row + 1) * n].chunks_exact(self.block_bytes());
        for (block, out) in blocks.zip(out.chunks_exact_mut(self.block_cols())) {
            self.unpack(block, out);
        }
    }
}

#[cfg(test)]
mod tests;
