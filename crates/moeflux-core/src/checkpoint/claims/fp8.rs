//! Matrices of E4M3 with scales of the whole matrix, of rows, of groups of columns, or of blocks.

use super::super::derived::Recipe;
use super::super::{Dtype, Extent, FormatError, Tensor};
use super::claimed::{Claimed, wanted};
use super::parts::{Parts, Stored, has_halves, stack_of};
use crate::quant::{Float, MatrixFormat, MicroScaled, ScaledBlocks};

/// Claims a matrix of E4M3 with a scale for each block (DeepSeek-V3), for each row or each group
/// of its columns, or for the whole matrix. The last entry of `outer` is the number of rows.
pub(super) fn stored<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    weight: &'a Tensor,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    claimed.expect_shape(weight, outer, cols)?;
    let known = SCALES.iter().find(|part| claimed.name_of(module, part).is_some());
    let scales = claimed.claim_part(module, known.unwrap_or(&SCALES[0]))?;
    let float = match scales.dtype {
        Dtype::Float(float) => float,
        // Powers of two, which kernels read as floats, unless they are those of MXFP8.
        Dtype::F8E8M0 | Dtype::U8 => Float::F32,
        _ => return Err(claimed.unsupported_dtype(scales)),
    };
    if !matches!(scales.dtype, Dtype::Float(_)) && is_mxfp8(claimed, module, scales, outer, cols) {
        let scales = Some(Parts::Whole(scales.extent));
        let format = MatrixFormat::Micro(MicroScaled::MXFP8);
        return Ok(Stored { scales, ..Stored::plain(format, weight) });
    }
    let blocks = match scaled_whole(claimed, module, scales, float, outer, cols) {
        Some(blocks) => blocks,
        None => scaled_blocks(claimed, module, scales, float, outer, cols)?,
    };
    let format = MatrixFormat::Blocks(blocks);
    if !format.is_supported(cols) {
        let what = format!("{module} with one scale for {outer:?} rows of {cols}");
        return Err(FormatError::unsupported(claimed.checkpoint.path_of(weight), what));
    }
    let extent = match scales.dtype {
        Dtype::Float(_) => scales.extent,
        _ => {
            let name = format!("{module}.scales");
            let len = scales.extent.len * Float::F32.bytes();
            claimed.derived().add(&name, len, vec![scales.extent], Recipe::PowersOfTwo)
        }
    };
    Ok(Stored {
        format,
        tensor: weight,
        weight: Parts::Whole(weight.extent),
        scales: Some(match scales.shape.iter().product::<usize>() {
            1 => Parts::Each(vec![extent; stack_of(outer)]),
            _ => Parts::Whole(extent),
        }),
        biases: None,
    })
}

/// Claims the scales of a small tensor of E4M3: one in all, or one for each entry of its first
/// dimension. Its elements are decoded.
pub(super) fn decoded<'a>(
    claimed: &mut Claimed<'a>,
    name: &str,
    tensor: &'a Tensor,
) -> Result<Extent, FormatError> {
    let module = name.strip_suffix(".weight").unwrap_or(name);
    let known = SCALES.iter().find(|part| claimed.name_of(module, part).is_some());
    let scales = claimed.claim_part(module, known.unwrap_or(&SCALES[1]))?;
    let Dtype::Float(float) = scales.dtype else {
        return Err(claimed.unsupported_dtype(scales));
    };
    let n_scales: usize = scales.shape.iter().product();
    let n_channels = tensor.shape.first().copied().unwrap_or(1);
    if n_scales != 1 && n_scales != n_channels {
        return Err(claimed.wrong_shape(scales, wanted(&[], &n_channels.to_string())));
    }
    let inputs = vec![tensor.extent, scales.extent];
    let len = tensor.extent.len * Float::F32.bytes();
    let recipe = Recipe::ScaledE4m3 { scales: float };
    Ok(claimed.derived().add(&format!("{name}.decoded"), len, inputs, recipe))
}

/// The blocks of a matrix whose scales are a grid of them.
fn scaled_blocks(
    claimed: &Claimed<'_>,
    module: &str,
    scales: &Tensor,
    float: Float,
    outer: &[usize],
    cols: usize,
) -> Result<ScaledBlocks, FormatError> {
    let (rows, stack) = outer.split_last().unwrap_or((&1, outer));
    let mut grids: Vec<Grid> = grids(claimed, module, float, *rows, cols);
    if has_halves(module, outer) {
        let halves: Vec<Grid> = grids.iter().map(|grid| grid.of_halves(*rows, cols)).collect();
        grids.extend(halves);
    }
    let shape = scales.shape.strip_prefix(stack).unwrap_or_default();
    let mut fitting = grids.iter().filter(|grid| grid.is_shape(shape));
    let Some(found) = fitting.next() else {
        let [n_rows, n_cols] = grids.first().map_or([1, 1], |grid| grid.sides);
        let outer = [stack, &[n_rows]].concat();
        return Err(claimed.wrong_shape(scales, wanted(&outer, &n_cols.to_string())));
    };
    let bounds =
        |grid: &Grid| [grid.blocks.block_rows.min(*rows), grid.blocks.block_cols.min(cols)];
    if let Some(other) = fitting.find(|grid| bounds(grid) != bounds(found)) {
        let sizes = [found, other]
            .map(|grid| format!("{} × {}", grid.blocks.block_rows, grid.blocks.block_cols));
        let what = format!("{module} with scales for blocks of {}", sizes.join(" or "));
        return Err(FormatError::unsupported(claimed.checkpoint.path_of(scales), what));
    }
    claimed.check_rule(module, scales, &MatrixFormat::Blocks(found.blocks))?;
    Ok(found.blocks)
}

/// The grids of scales that a matrix may have by the config.
fn grids(claimed: &Claimed<'_>, module: &str, float: Float, rows: usize, cols: usize) -> Vec<Grid> {
    let sizes = claimed.checkpoint.rules.blocks_of(module).into_iter();
    let grid = |(block_rows, block_cols)| {
        let blocks = ScaledBlocks::new(block_rows, block_cols, float);
        Grid { blocks, sides: [blocks.n_row_blocks(rows), blocks.n_col_blocks(cols)] }
    };
    sizes.map(grid).collect()
}

/// Whether scales that are powers of two are those of MXFP8, and not those of a grid.
fn is_mxfp8(
    claimed: &Claimed<'_>,
    module: &str,
    scales: &Tensor,
    outer: &[usize],
    cols: usize,
) -> bool {
    let micro = MicroScaled::MXFP8;
    let [stack @ .., rows] = outer else { return false };
    let want = [outer, &[cols / micro.group_size]].concat();
    let grids = || grids(claimed, module, Float::F32, *rows, cols);
    let is_grid = |grid: Grid| scales.shape.strip_prefix(stack) == Some(&grid.sides[..]);
    micro.is_supported(cols) && scales.shape == want && !grids().into_iter().any(is_grid)
}

/// The blocks of a matrix with one scale in all, or with one for each row or each group of its
/// columns, found from the shape of the scales; `None` if the scales are those of a grid.
fn scaled_whole(
    claimed: &Claimed<'_>,
    module: &str,
    scales: &Tensor,
    float: Float,
    outer: &[usize],
    cols: usize,
) -> Option<ScaledBlocks> {
    let (rows, stack) = outer.split_last()?;
    let grids = grids(claimed, module, float, *rows, cols);
    let shape: &[usize] = match &scales.shape[..] {
        // All of a stack share it.
        [] | [1] => &[],
        shape => shape.strip_prefix(stack)?,
    };
    let (block_rows, block_cols) = match *shape {
        _ if grids.iter().any(|grid| shape == grid.sides) => return None,
        [] | [1] | [1, 1] => (*rows, cols),
        [n] | [n, 1] if n == *rows => (1, cols),
        [2] | [2, 1] if has_halves(module, outer) => (rows / 2, cols),
        [n, groups] if n == *rows && groups > 0 && cols.is_multiple_of(groups) => {
            (1, cols / groups)
        }
        _ => return None,
    };
    Some(ScaledBlocks::new(block_rows, block_cols, float))
}

/// Scales of one matrix, one for each block.
struct Grid {
    blocks: ScaledBlocks,
    /// Rows and columns of blocks.
    sides: [usize; 2],
}

impl Grid {
    /// The grid of a matrix of `rows` rows whose halves were quantised apart: a block ends where the first half
    /// ends.
    fn of_halves(&self, rows: usize, cols: usize) -> Grid {
        let blocks = self.blocks;
        Grid { blocks, sides: [2 * blocks.n_row_blocks(rows / 2), blocks.n_col_blocks(cols)] }
    }

    /// Whether scales have this shape. ModelOpt has a dimension of one element after each of the two.
    fn is_shape(&self, shape: &[usize]) -> bool {
        let [rows, cols] = self.sides;
        shape == self.sides || shape == [rows, 1, cols, 1]
    }
}

/// Names of the scales, in order of preference; all of them are factors.
const SCALES: [&str; 5] = ["weight_scale_inv", "weight_scale", "scale_inv", "scale", "scales"];
