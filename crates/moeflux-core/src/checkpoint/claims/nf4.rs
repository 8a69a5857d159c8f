//! NF4: as bitsandbytes publishes it, and as containers hold it.

use super::super::derived::Recipe;
use super::super::{Dtype, FormatError, Tensor};
use super::claimed::{Claimed, wanted};
use super::parts::{Parts, Stored};
use crate::quant::{Float, MatrixFormat, NF4_GROUP};

/// The scales of bitsandbytes: the largest magnitudes of blocks.
pub(super) const ABSMAX: &str = "weight.absmax";

/// JSON with what tensors of a matrix leave open, in a tensor whose name ends with the type.
const QUANT_STATE: &str = "weight.quant_state.bitsandbytes__nf4";

const FORMAT: MatrixFormat = MatrixFormat::Nf4;

/// Claims a matrix of a container.
pub(super) fn stored<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    weight: &'a Tensor,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    let scales = claimed.claim_part(module, "scales")?;
    if scales.dtype != Dtype::Float(Float::F32) {
        return Err(claimed.unsupported_dtype(scales));
    }
    claimed.expect_shape(weight, outer, FORMAT.row_bytes(cols))?;
    claimed.expect_shape(scales, outer, cols / NF4_GROUP)?;
    let scales = Some(Parts::Whole(scales.extent));
    Ok(Stored { scales, ..Stored::plain(FORMAT, weight) })
}

/// Claims a matrix of bitsandbytes: all codes in one column of bytes, row after row, and the
/// largest magnitude of each block of them, which may be quantised to eight bits itself.
pub(super) fn stored_bitsandbytes<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    weight: &'a Tensor,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    let path = claimed.checkpoint.path_of(weight);
    let &[rows] = outer else {
        let what = format!("{module}, a stack of matrices of bitsandbytes,");
        return Err(FormatError::unsupported(path, what));
    };
    let fp4 = claimed.name_of(module, "weight.quant_state.bitsandbytes__fp4");
    if fp4.is_some() {
        let what = format!("{module} in fp4 of bitsandbytes (only nf4)");
        return Err(FormatError::unsupported(path, what));
    }
    let absmax = claimed.claim_part(module, ABSMAX)?;
    let levels = claimed.claim_part(module, "weight.quant_map")?;
    let state = claimed.claim_part(module, QUANT_STATE)?;
    claimed.expect_shape(levels, &[], 16)?;
    claimed.expect_shape(weight, &[rows * FORMAT.row_bytes(cols)], 1)?;
    let n_blocks = match absmax.shape[..] {
        [n] if n > 0 => n,
        _ => return Err(claimed.wrong_shape(absmax, wanted(&[], "blocks"))),
    };
    let block = rows * cols / n_blocks;
    let is_whole = block * n_blocks == rows * cols && cols.is_multiple_of(block.max(1));
    if !is_whole || !block.is_multiple_of(NF4_GROUP) {
        let what = format!("{module} with {cols} columns in blocks of {block} elements");
        return Err(FormatError::unsupported(path, what));
    }
    if levels.dtype != Dtype::Float(Float::F32) {
        return Err(claimed.unsupported_dtype(levels));
    }
    let mut inputs = vec![levels.extent, absmax.extent];
    match absmax.dtype {
        Dtype::Float(Float::F32) => {}
        Dtype::U8 => {
            let nested = claimed.claim_part(module, "weight.nested_absmax")?;
            let map = claimed.claim_part(module, "weight.nested_quant_map")?;
            let is_float = |tensor: &&Tensor| tensor.dtype == Dtype::Float(Float::F32);
            if let Some(odd) = [nested, map].into_iter().find(|tensor| !is_float(tensor)) {
                return Err(claimed.unsupported_dtype(odd));
            }
            claimed.expect_shape(map, &[], 256)?;
            inputs.extend([nested.extent, map.extent, state.extent]);
        }
        _ => return Err(claimed.unsupported_dtype(absmax)),
    }
    let len = FORMAT.scale_bytes(rows, cols);
    let recipe = Recipe::Absmax { groups: block / NF4_GROUP };
    let scales = claimed.derive(&format!("{module}.absmax"), 1, len, &inputs, &recipe);
    Ok(Stored { scales: Some(scales), ..Stored::plain(FORMAT, weight) })
}
