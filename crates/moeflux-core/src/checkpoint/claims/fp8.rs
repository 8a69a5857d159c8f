//! Matrices of E4M3 with scales of the whole matrix, of rows, or of blocks.

use super::super::derived::Recipe;
use super::super::{Dtype, Extent, FormatError, Tensor};
use super::stored::{Parts, Stored};
use super::{Claims, wanted};
use crate::quant::{Float, MatrixFormat, ScaledBlocks};

impl<'a> Claims<'a> {
    /// Claims a matrix of E4M3 with a scale for each block (DeepSeek-V3), for each row, or for the
    /// whole matrix. The last entry of `outer` is the number of rows.
    pub(super) fn stored_fp8(
        &mut self,
        module: &str,
        weight: &'a Tensor,
        outer: &[usize],
        cols: usize,
    ) -> Result<Stored<'a>, FormatError> {
        self.expect_shape(weight, outer, cols)?;
        let known = SCALES.iter().find(|part| self.name_of(module, part).is_some());
        let scales = self.claim_part(module, known.unwrap_or(&SCALES[0]))?;
        let float = match scales.dtype {
            Dtype::Float(float) => float,
            // Powers of two, which kernels read as floats.
            Dtype::F8E8M0 | Dtype::U8 => Float::F32,
            _ => return Err(self.unsupported_dtype(scales)),
        };
        let blocks = match self.scaled_whole(module, scales, float, outer, cols) {
            Some(blocks) => blocks,
            None => self.scaled_blocks(module, scales, float, outer, cols)?,
        };
        let format = MatrixFormat::Blocks(blocks);
        if !format.is_supported(cols) {
            let what = format!("{module} with one scale for {outer:?} rows of {cols}");
            return Err(FormatError::unsupported(self.checkpoint.path_of(weight), what));
        }
        let extent = match scales.dtype {
            Dtype::Float(_) => scales.extent,
            _ => {
                let name = format!("{module}.scales");
                let len = scales.extent.len * Float::F32.bytes();
                self.derived().add(&name, len, vec![scales.extent], Recipe::PowersOfTwo)
            }
        };
        Ok(Stored {
            format,
            tensor: weight,
            weight: Parts::Whole(weight.extent),
            scales: Some(Parts::Whole(extent)),
            biases: None,
        })
    }

    /// Claims the scales of a small tensor of E4M3: one in all, or one for each entry of its first
    /// dimension. Its elements are decoded.
    pub(super) fn decoded_fp8(
        &mut self,
        name: &str,
        tensor: &'a Tensor,
    ) -> Result<Extent, FormatError> {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let known = SCALES.iter().find(|part| self.name_of(module, part).is_some());
        let scales = self.claim_part(module, known.unwrap_or(&SCALES[1]))?;
        let Dtype::Float(float) = scales.dtype else {
            return Err(self.unsupported_dtype(scales));
        };
        let n_scales: usize = scales.shape.iter().product();
        let n_channels = tensor.shape.first().copied().unwrap_or(1);
        if n_scales != 1 && n_scales != n_channels {
            return Err(self.wrong_shape(scales, wanted(&[], &n_channels.to_string())));
        }
        let inputs = vec![tensor.extent, scales.extent];
        let len = tensor.extent.len * Float::F32.bytes();
        let recipe = Recipe::ScaledE4m3 { scales: float };
        Ok(self.derived().add(&format!("{name}.decoded"), len, inputs, recipe))
    }

    /// The blocks of a matrix whose scales are a grid of them.
    fn scaled_blocks(
        &self,
        module: &str,
        scales: &Tensor,
        float: Float,
        outer: &[usize],
        cols: usize,
    ) -> Result<ScaledBlocks, FormatError> {
        let (block_rows, block_cols) = self.checkpoint.rules.block_of(module);
        let blocks = ScaledBlocks::new(block_rows, block_cols, float);
        let mut grid = outer.to_vec();
        if let Some(rows) = grid.last_mut() {
            *rows = blocks.n_row_blocks(*rows);
        }
        // ModelOpt has a dimension of one element after each of the two.
        let squeezed = |shape: &[usize]| -> Vec<usize> {
            shape.iter().copied().filter(|len| *len != 1).collect()
        };
        grid.push(blocks.n_col_blocks(cols));
        if scales.shape != grid && squeezed(&scales.shape) != squeezed(&grid) {
            let inner = grid.pop().unwrap_or_default();
            return Err(self.wrong_shape(scales, wanted(&grid, &inner.to_string())));
        }
        self.check_rule(module, scales, &MatrixFormat::Blocks(blocks))?;
        Ok(blocks)
    }

    /// The blocks of a matrix with one scale in all or one per row, found from the shape of the
    /// scales; `None` if the scales are those of a grid.
    fn scaled_whole(
        &self,
        module: &str,
        scales: &Tensor,
        float: Float,
        outer: &[usize],
        cols: usize,
    ) -> Option<ScaledBlocks> {
        let (rows, stack) = outer.split_last()?;
        let (block_rows, block_cols) = self.checkpoint.rules.block_of(module);
        let blocks = ScaledBlocks::new(block_rows, block_cols, float);
        let grid = [blocks.n_row_blocks(*rows), blocks.n_col_blocks(cols)];
        let shape = scales.shape.strip_prefix(stack)?;
        let (block_rows, block_cols) = match *shape {
            _ if shape == grid => return None,
            [] | [1] | [1, 1] => (*rows, cols),
            [n] | [n, 1] if n == *rows => (1, cols),
            _ => return None,
        };
        Some(ScaledBlocks::new(block_rows, block_cols, float))
    }
}

/// Names of the scales, in order of preference; all of them are factors.
const SCALES: [&str; 5] = ["weight_scale_inv", "weight_scale", "scale_inv", "scale", "scales"];
