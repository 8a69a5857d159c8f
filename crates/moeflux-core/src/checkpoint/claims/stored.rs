//! How a matrix is stored, found from the tensors of its module. Configs only say what tensors leave
//! open: in published checkpoints their lists of exceptions are often wrong.

use super::super::{Dtype, FormatError, Tensor};
use super::claimed::{Claimed, last, wanted};
use super::parts::{Parts, Stored};
use super::{fp4, fp8, integers, nf4};
use crate::quant::{Affine, BlockType, Float, MatrixFormat, MicroScaled};

/// Claims the tensors of a module whose weight has the shape `outer + [cols]`.
pub(super) fn stored<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    if let Some(name) = claimed.name_of(module, "weight_packed") {
        return integers::stored_compressed(claimed, module, &name, outer, cols);
    }
    if let Some(name) = claimed.name_of(module, "qweight") {
        return integers::stored_by_columns(claimed, module, &name, outer, cols);
    }
    let weight = claimed.claim(&format!("{module}.weight"))?;
    stored_weight(claimed, module, weight, outer, cols)
}

/// Claims what belongs to a tensor with the elements of a module.
pub(super) fn stored_weight<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    weight: &'a Tensor,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    let float = match weight.dtype {
        Dtype::Float(float) => float,
        Dtype::U32 => return stored_packed(claimed, module, weight, outer, cols),
        Dtype::F8E4M3 => return fp8::stored(claimed, module, weight, outer, cols),
        Dtype::I8 if fp4::has_powers(claimed, module) => {
            return fp4::stored_with_powers(claimed, module, weight, outer, cols);
        }
        Dtype::I8 => return integers::stored_signed_bytes(claimed, module, weight, outer, cols),
        Dtype::Ggml(block_type) => {
            claimed.expect_shape(weight, outer, cols)?;
            if block_type == BlockType::NVFP4 && claimed.name_of(module, "scale").is_some() {
                return fp4::stored_ggml(claimed, module, weight, outer, cols);
            }
            return stored_ggml(claimed, module, weight, block_type, cols);
        }
        // A container's own tensors, whose headers have no name for these types.
        Dtype::U8 if let Some(block_type) = claimed.checkpoint.rules.ggml_type_of(module) => {
            let row_bytes = MatrixFormat::Ggml(block_type).row_bytes(cols);
            claimed.expect_shape(weight, outer, row_bytes)?;
            return stored_ggml(claimed, module, weight, block_type, cols);
        }
        Dtype::U8 if claimed.checkpoint.rules.is_nf4(module) => {
            return nf4::stored(claimed, module, weight, outer, cols);
        }
        Dtype::U8 if claimed.name_of(module, nf4::ABSMAX).is_some() => {
            return nf4::stored_bitsandbytes(claimed, module, weight, outer, cols);
        }
        Dtype::U8 if claimed.name_of(module, "weight_scale").is_some() => {
            return fp4::stored(claimed, module, weight, outer, cols);
        }
        Dtype::U8 if fp4::has_powers(claimed, module) => {
            return fp4::stored_with_powers(claimed, module, weight, outer, cols);
        }
        Dtype::U8 | Dtype::I32 | Dtype::I64 | Dtype::F8E8M0 | Dtype::Other(_) => {
            return Err(claimed.unsupported_dtype(weight));
        }
    };
    claimed.expect_shape(weight, outer, cols)?;
    for part in ["scales", "weight_scale_inv", "weight_scale"] {
        if claimed.name_of(module, part).is_some() {
            let what = format!("{module} has {} weights and {part}", weight.dtype.name());
            return Err(FormatError::unsupported(claimed.checkpoint.path_of(weight), what));
        }
    }
    Ok(Stored::plain(MatrixFormat::Dense(float), weight))
}

/// A matrix of blocks of ggml.
fn stored_ggml<'a>(
    claimed: &Claimed<'a>,
    module: &str,
    weight: &'a Tensor,
    block_type: BlockType,
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    let format = MatrixFormat::Ggml(block_type);
    if !format.is_supported(cols) {
        let (name, block) = (block_type.name(), block_type.block_cols());
        let what = format!("{module} with {cols} columns of {name}, in blocks of {block},");
        return Err(FormatError::unsupported(claimed.checkpoint.path_of(weight), what));
    }
    Ok(Stored::plain(format, weight))
}

/// Claims a matrix in a format of MLX: packed words of integers with scales and biases, or of
/// small floats with scales of one byte.
fn stored_packed<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    weight: &'a Tensor,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    let scales = claimed.claim(&format!("{module}.scales"))?;
    let words = last(weight);
    let bits = words.checked_mul(32).filter(|bits| bits.is_multiple_of(cols));
    let bits = bits.and_then(|bits| u8::try_from(bits / cols).ok());
    let n_groups = last(scales);
    let group_size = (n_groups > 0 && cols.is_multiple_of(n_groups)).then(|| cols / n_groups);
    let (Some(bits), Some(group_size)) = (bits, group_size) else {
        return Err(claimed.wrong_shape(weight, wanted(outer, "columns × bits / 32")));
    };
    claimed.expect_shape(weight, outer, words)?;
    claimed.expect_shape(scales, outer, n_groups)?;
    let path = claimed.checkpoint.path_of(weight);
    let unsupported = || {
        let what = format!("{module} with {bits} bits in groups of {group_size}");
        FormatError::unsupported(path, what)
    };
    let (format, biases) = match scales.dtype {
        Dtype::Float(params) => affine_of_mlx(claimed, module, bits, group_size, params, outer)?,
        Dtype::U8 => {
            let has_global_scale = claimed.name_of(module, GLOBAL_SCALE).is_some();
            let micro = MicroScaled::MODES.iter().map(|(_, micro)| *micro).find(|micro| {
                micro.element.bits() == usize::from(bits)
                    && micro.group_size == group_size
                    && micro.has_global_scale == has_global_scale
            });
            let format = MatrixFormat::Micro(micro.ok_or_else(unsupported)?);
            (format, claimed.claim_if_stored(module, GLOBAL_SCALE)?)
        }
        _ => return Err(claimed.unsupported_dtype(scales)),
    };
    if !format.is_supported(cols) {
        return Err(unsupported());
    }
    claimed.check_rule(module, weight, &format)?;
    Ok(Stored {
        format,
        tensor: weight,
        weight: Parts::Whole(weight.extent),
        scales: Some(Parts::Whole(scales.extent)),
        biases: biases.map(|biases| Parts::Whole(biases.extent)),
    })
}

/// The format of integers, and their biases if they are stored.
fn affine_of_mlx<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    bits: u8,
    group_size: usize,
    params: Float,
    outer: &[usize],
) -> Result<(MatrixFormat, Option<&'a Tensor>), FormatError> {
    if claimed.checkpoint.rules.is_symmetric(module) {
        let affine = Affine::symmetric(bits, group_size, params);
        return Ok((MatrixFormat::Affine(affine), None));
    }
    let biases = claimed.claim(&format!("{module}.biases"))?;
    let n_groups = last(biases);
    claimed.expect_shape(biases, outer, n_groups)?;
    if biases.dtype != Dtype::Float(params) {
        let what = format!("{module} has {} biases", biases.dtype.name());
        return Err(FormatError::unsupported(claimed.checkpoint.path_of(biases), what));
    }
    Ok((MatrixFormat::Affine(Affine::new(bits, group_size, params)), Some(biases)))
}

/// The scale that all of a matrix shares, as containers name it.
const GLOBAL_SCALE: &str = "global_scale";
