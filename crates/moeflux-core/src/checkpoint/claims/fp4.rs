//! Floats of four bits as published: NVFP4 of ModelOpt and compressed-tensors, and MXFP4.

use super::super::derived::Recipe;
use super::super::{Dtype, FormatError, Tensor};
use super::claimed::{Claimed, wanted};
use super::parts::{Parts, Stored, has_halves, stack_of};
use crate::quant::{Float, MatrixFormat, MicroScaled};

/// Names of the scale that all of a matrix shares, and whether elements are divided by it.
const GLOBAL_SCALES: [(&str, bool); 3] = [
    ("weight_scale_2", false),     // ModelOpt
    ("weight_global_scale", true), // compressed-tensors
    ("scale", false),              // GGUF
];

/// Claims a matrix whose bytes have two floats each, the lower column in the lower half. The
/// type of its scales tells NVFP4 from MXFP4.
pub(super) fn stored<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    weight: &'a Tensor,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    let scales = claimed.claim_part(module, "weight_scale")?;
    let global_scale = global_scale(claimed, module, outer)?;
    let micro = match scales.dtype {
        Dtype::U8 | Dtype::F8E8M0 if global_scale.is_none() => MicroScaled::MXFP4,
        Dtype::F8E4M3 if global_scale.is_some() => MicroScaled::NVFP4_GLOBAL,
        Dtype::F8E4M3 => {
            // An error: it is missing.
            let is_packed = weight.stored_name.ends_with("weight_packed");
            let part = if is_packed { "weight_global_scale" } else { "weight_scale_2" };
            claimed.claim_part(module, part)?;
            MicroScaled::NVFP4_GLOBAL
        }
        _ => return Err(claimed.unsupported_dtype(scales)),
    };
    let stored = pairs(claimed, module, weight, scales, micro, outer, cols)?;
    Ok(Stored { biases: global_scale, ..stored })
}

/// Name of the powers of two that groups of columns share, next to bytes of two floats each as DeepSeek
/// publishes them.
const POWERS: &str = "scale";

/// Whether the bytes of a module have two floats each, with powers of two for groups of columns.
pub(super) fn has_powers(claimed: &Claimed<'_>, module: &str) -> bool {
    let scales = claimed.name_of(module, POWERS);
    let scales = scales.and_then(|name| claimed.checkpoint.tensors().get(&name));
    scales.is_some_and(|scales| matches!(scales.dtype, Dtype::F8E8M0 | Dtype::U8))
}

/// Claims a matrix of MXFP4 whose bytes, of either sign, have two floats each, the lower column in the
/// lower half.
pub(super) fn stored_with_powers<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    weight: &'a Tensor,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    let scales = claimed.claim_part(module, POWERS)?;
    pairs(claimed, module, weight, scales, MicroScaled::MXFP4, outer, cols)
}

/// A matrix of bytes of two floats each, and the scales of its groups.
fn pairs<'a>(
    claimed: &Claimed<'a>,
    module: &str,
    weight: &'a Tensor,
    scales: &'a Tensor,
    micro: MicroScaled,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    if !cols.is_multiple_of(micro.group_size) {
        let what = format!("{module} with {cols} columns in groups of {}", micro.group_size);
        return Err(FormatError::unsupported(claimed.checkpoint.path_of(weight), what));
    }
    claimed.expect_shape(weight, outer, cols / 2)?;
    claimed.expect_shape(scales, outer, cols / micro.group_size)?;
    Ok(Stored {
        format: MatrixFormat::Micro(micro),
        tensor: weight,
        weight: Parts::Whole(weight.extent),
        scales: Some(Parts::Whole(scales.extent)),
        biases: None,
    })
}

/// Claims a matrix of ggml's NVFP4 with a scale of the whole matrix, which blocks do not have:
/// elements and scales in planes.
pub(super) fn stored_ggml<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    weight: &'a Tensor,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    let micro = MicroScaled::NVFP4_GLOBAL;
    let global_scale = global_scale(claimed, module, outer)?;
    let n = stack_of(outer);
    let rows = outer.last().copied().unwrap_or(0);
    let format = MatrixFormat::Micro(micro);
    let plane = |name: &str, len: usize, recipe: Recipe| {
        claimed.derive(&format!("{module}.{name}"), n, len, &[weight.extent], &recipe)
    };
    Ok(Stored {
        format,
        tensor: weight,
        weight: plane("elements", rows * format.row_bytes(cols), Recipe::GgmlNvfp4Elements),
        scales: Some(plane("scales", format.scale_bytes(rows, cols), Recipe::GgmlNvfp4Scales)),
        biases: global_scale,
    })
}

/// Claims the scale that all of a matrix shares: one for each of a stack, one for all of it, or one
/// for the gate rows and one for the up rows of each.
fn global_scale(
    claimed: &mut Claimed<'_>,
    module: &str,
    outer: &[usize],
) -> Result<Option<Parts>, FormatError> {
    let n = stack_of(outer);
    for (part, is_divisor) in GLOBAL_SCALES {
        let Some(tensor) = claimed.claim_if_stored(module, part)? else { continue };
        let n_stored: usize = tensor.shape.iter().product();
        if tensor.dtype != Dtype::Float(Float::F32) {
            return Err(claimed.unsupported_dtype(tensor));
        }
        let of_halves = has_halves(module, outer) && tensor.shape == [n, 2];
        if n_stored != n && n_stored != 1 && !of_halves {
            return Err(claimed.wrong_shape(tensor, wanted(&[], &n.to_string())));
        }
        let name = format!("{module}.global_scale");
        let recipe = Recipe::GlobalScale { is_divisor };
        let inputs = vec![tensor.extent];
        let scales = claimed.derived().add(&name, 4 * n_stored, inputs, recipe);
        let is_shared = n_stored < n;
        return Ok(Some(if is_shared {
            Parts::Each(vec![scales; n])
        } else {
            Parts::Whole(scales)
        }));
    }
    Ok(None)
}
