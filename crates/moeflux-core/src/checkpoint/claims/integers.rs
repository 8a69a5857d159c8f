//! Integers as published: `pack-quantized` and `int-quantized` of compressed-tensors, GPTQ and AWQ.
//! They become the affine format, as they are where their bytes are those of that format.

use super::super::derived::{CodeLayout, Input, IntegerMatrix, Plane, Recipe, ZeroLayout};
use super::super::published::{GptqRules, IntegerRules};
use super::super::{Dtype, Extent, FormatError, Tensor};
use super::claimed::{Claimed, last, wanted};
use super::fp4;
use super::parts::{Parts, Stored, stack_of};
use crate::quant::{Affine, Float, MatrixFormat};

/// The tensors of a published matrix of integers.
struct Tensors<'a> {
    codes: &'a Tensor,
    scales: &'a Tensor,
    zeros: Option<&'a Tensor>,
    group_index: Option<&'a Tensor>,
    /// Whether the groups of columns are not in order.
    is_reordered: bool,
}

/// Claims a packed matrix of compressed-tensors: integers in words, or small floats in bytes.
pub(super) fn stored_compressed<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    name: &str,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    let codes = claimed.claim(name)?;
    match codes.dtype {
        Dtype::U8 => return fp4::stored(claimed, module, codes, outer, cols),
        Dtype::I32 => {}
        _ => return Err(claimed.unsupported_dtype(codes)),
    }
    let scales = claimed.claim_part(module, "weight_scale")?;
    let rules = claimed.checkpoint.rules.integers;
    let zeros = claimed.claim_where(rules.has_zeros, module, "weight_zero_point")?;
    let group_index = claimed.claim_where(rules.has_group_index, module, "weight_g_idx")?;
    let words = last(codes);
    claimed.expect_shape(codes, outer, words)?;
    let bits = bits_of_rows(claimed, module, codes, outer, cols)?;
    let rows = outer.last().copied().unwrap_or(0);
    let matrix = IntegerMatrix {
        rows,
        cols,
        bits,
        group_cols: group_cols(claimed, scales, outer, cols)?,
        scales: float_of(claimed, scales)?,
        codes: CodeLayout::Rows,
        zeros: zeros.map_or(Ok(ZeroLayout::Middle), |zeros| zeros_of_rows(claimed, zeros))?,
        has_group_index: group_index.is_some(),
    };
    if let Some(group_index) = group_index {
        expect_group_index(claimed, group_index, cols)?;
    }
    if let Some(zeros) = zeros {
        let words = (rows * usize::from(bits)).div_ceil(32);
        let mut outer = outer.to_vec();
        if let Some(rows) = outer.last_mut().filter(|_| zeros.dtype == Dtype::I32) {
            *rows = words;
        }
        claimed.expect_shape(zeros, &outer, matrix.n_groups())?;
    }
    let is_reordered = group_index.is_some();
    let tensors = Tensors { codes, scales, zeros, group_index, is_reordered };
    integers(claimed, module, outer, matrix, tensors)
}

/// Bits of a code in rows of words: those of the declared ones that fit.
fn bits_of_rows(
    claimed: &Claimed<'_>,
    module: &str,
    codes: &Tensor,
    outer: &[usize],
    cols: usize,
) -> Result<u8, FormatError> {
    let declared = claimed.checkpoint.rules.integers.bits;
    let words = last(codes);
    let fits =
        |bits: &u8| declared.allow(*bits) && (cols * usize::from(*bits)).div_ceil(32) == words;
    let mut fitting = (2..=8).filter(fits);
    match (fitting.next(), fitting.next()) {
        (Some(bits), None) => Ok(bits),
        (None, _) => Err(claimed.wrong_shape(codes, wanted(outer, "columns × bits / 32"))),
        // Rows of few columns may fit several widths.
        (Some(bits), Some(other)) => {
            let what = format!("{module} with {cols} columns of {bits} or {other} bits");
            Err(FormatError::unsupported(claimed.checkpoint.path_of(codes), what))
        }
    }
}

fn zeros_of_rows(claimed: &Claimed<'_>, zeros: &Tensor) -> Result<ZeroLayout, FormatError> {
    match zeros.dtype {
        Dtype::I32 => Ok(ZeroLayout::PackedRows),
        Dtype::I8 => Ok(ZeroLayout::SignedBytes),
        _ => Err(claimed.unsupported_dtype(zeros)),
    }
}

/// Columns that share a scale, from scales `outer + [groups]`.
fn group_cols(
    claimed: &Claimed<'_>,
    scales: &Tensor,
    outer: &[usize],
    cols: usize,
) -> Result<usize, FormatError> {
    let n_groups = if scales.shape == outer { 1 } else { last(scales) };
    if scales.shape != outer {
        claimed.expect_shape(scales, outer, n_groups)?;
    }
    if n_groups == 0 || !cols.is_multiple_of(n_groups) {
        return Err(claimed.wrong_shape(scales, wanted(outer, "groups of equal size")));
    }
    Ok(cols / n_groups)
}

fn float_of(claimed: &Claimed<'_>, tensor: &Tensor) -> Result<Float, FormatError> {
    match tensor.dtype {
        Dtype::Float(float) => Ok(float),
        _ => Err(claimed.unsupported_dtype(tensor)),
    }
}

/// Claims a matrix of signed bytes with scales of rows or groups (`int-quantized`).
pub(super) fn stored_signed_bytes<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    weight: &'a Tensor,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    claimed.expect_shape(weight, outer, cols)?;
    let scales = claimed.claim_part(module, "weight_scale")?;
    if let Some(zeros) = claimed.claim_if_stored(module, "weight_zero_point")? {
        let what = format!("{} with weights of I8", zeros.stored_name);
        return Err(FormatError::unsupported(claimed.checkpoint.path_of(zeros), what));
    }
    let matrix = IntegerMatrix {
        rows: outer.last().copied().unwrap_or(0),
        cols,
        bits: 8,
        group_cols: group_cols(claimed, scales, outer, cols)?,
        scales: float_of(claimed, scales)?,
        codes: CodeLayout::Rows,
        zeros: ZeroLayout::Middle,
        has_group_index: false,
    };
    let tensors =
        Tensors { codes: weight, scales, zeros: None, group_index: None, is_reordered: false };
    let mut stored = integers(claimed, module, outer, matrix, tensors)?;
    if stored.weight != Parts::Whole(weight.extent) {
        // Its columns fit no group of kernels.
        let what = format!("{module} with {cols} columns of I8");
        return Err(FormatError::unsupported(claimed.checkpoint.path_of(weight), what));
    }
    let (n, inputs) = (stack_of(outer), [weight.extent]);
    let name = format!("{module}.unsigned");
    let len = weight.extent.len / n;
    stored.weight = claimed.derive(&name, n, len, &inputs, &Recipe::SignedBytes);
    Ok(stored)
}

/// Claims a matrix whose words go from output to output: GPTQ's or AWQ's. The shapes tell which,
/// unless the matrix is square.
pub(super) fn stored_by_columns<'a>(
    claimed: &mut Claimed<'a>,
    module: &str,
    name: &str,
    outer: &[usize],
    cols: usize,
) -> Result<Stored<'a>, FormatError> {
    let codes = claimed.claim(name)?;
    let scales = claimed.claim_part(module, "scales")?;
    let IntegerRules { gptq, is_awq: declared_awq, group_cols, has_zeros, has_group_index, .. } =
        claimed.checkpoint.rules.integers;
    let zeros = claimed.claim_where(has_zeros, module, "qzeros")?;
    let group_index = claimed.claim_where(has_group_index, module, "g_idx")?;
    let &[rows] = outer else {
        let what = format!("{module}, a stack of matrices in the layout of GPTQ or AWQ,");
        return Err(FormatError::unsupported(claimed.checkpoint.path_of(codes), what));
    };
    if let Some(odd) = [Some(codes), zeros, group_index]
        .into_iter()
        .flatten()
        .find(|tensor| tensor.dtype != Dtype::I32)
    {
        return Err(claimed.unsupported_dtype(odd));
    }
    let has_shape_of_awq = codes.shape == [cols, rows / 8] && rows.is_multiple_of(8);
    let bits = codes.shape.first().and_then(|words| words.checked_mul(32));
    let bits = bits.filter(|bits| cols > 0 && bits.is_multiple_of(cols));
    let bits = bits.and_then(|bits| u8::try_from(bits / cols).ok());
    let has_shape_of_gptq =
        codes.shape.get(1) == Some(&rows) && bits.is_some_and(|bits| (2..=8).contains(&bits));
    // Only matrices of some shapes could be both.
    let is_awq = has_shape_of_awq && (!has_shape_of_gptq || declared_awq.unwrap_or(false));
    if !is_awq && !has_shape_of_gptq {
        let want = format!("[{cols} × bits / 32, {rows}] or [{cols}, {rows} / 8]");
        return Err(claimed.wrong_shape(codes, want));
    }
    let bits = if is_awq { 4 } else { bits.unwrap_or(4) };
    let gptq = match gptq {
        Some(gptq) => gptq,
        None if is_awq => GptqRules::default(),
        None => {
            let what = format!(
                "{module} is stored as GPTQ stores it, but the config does not say by which \
                 version; copy quantize_config.json of its repository here"
            );
            return Err(FormatError::malformed(claimed.checkpoint.path_of(codes), what));
        }
    };
    let zeros = zeros.filter(|_| is_awq || !gptq.is_symmetric);
    if zeros.is_none() && !is_awq && !gptq.is_symmetric {
        // An error: it is missing.
        claimed.claim_part(module, "qzeros")?;
    }
    let n_groups = scales.shape.first().copied().unwrap_or(0);
    claimed.expect_shape(scales, &[n_groups], rows)?;
    let fits = |size: &usize| cols.div_ceil(*size) == n_groups;
    let equal = cols.checked_div(n_groups).filter(|_| cols.is_multiple_of(n_groups));
    // The last group may have fewer columns than others.
    let Some(group_cols) = group_cols.filter(fits).or(equal).filter(|size| *size > 0) else {
        return Err(claimed.wrong_shape(scales, format!("[groups, {rows}]")));
    };
    if let Some(zeros) = zeros {
        let row_bits = rows * usize::from(bits);
        if !row_bits.is_multiple_of(32) {
            let what = format!("{module} with zero points of {rows} outputs, no whole words,");
            return Err(FormatError::unsupported(claimed.checkpoint.path_of(zeros), what));
        }
        claimed.expect_shape(zeros, &[n_groups], row_bits / 32)?;
    }
    if let Some(group_index) = group_index {
        expect_group_index(claimed, group_index, cols)?;
    }
    let zero_layout = match zeros {
        None => ZeroLayout::Middle,
        Some(_) if is_awq => ZeroLayout::Awq,
        Some(_) => ZeroLayout::PackedColumns { offset: gptq.zero_offset },
    };
    let matrix = IntegerMatrix {
        rows,
        cols,
        bits,
        group_cols,
        scales: float_of(claimed, scales)?,
        codes: if is_awq { CodeLayout::Awq } else { CodeLayout::Columns },
        zeros: zero_layout,
        has_group_index: group_index.is_some(),
    };
    let is_reordered = gptq.is_reordered && group_index.is_some();
    let tensors = Tensors { codes, scales, zeros, group_index, is_reordered };
    integers(claimed, module, outer, matrix, tensors)
}

/// Checks a tensor that names the group of each column.
fn expect_group_index(
    claimed: &Claimed<'_>,
    tensor: &Tensor,
    cols: usize,
) -> Result<(), FormatError> {
    if tensor.dtype != Dtype::I32 {
        return Err(claimed.unsupported_dtype(tensor));
    }
    claimed.expect_shape(tensor, &[], cols)
}

/// The matrix in the affine format; decoded where its groups fit no kernel.
fn integers<'a>(
    claimed: &Claimed<'a>,
    module: &str,
    outer: &[usize],
    matrix: IntegerMatrix,
    tensors: Tensors<'a>,
) -> Result<Stored<'a>, FormatError> {
    let extent_of = |input: Input| -> Extent {
        let tensor = match input {
            Input::Codes => Some(tensors.codes),
            Input::Scales => Some(tensors.scales),
            Input::Zeros => tensors.zeros,
            Input::GroupIndex => tensors.group_index,
        };
        tensor.expect("a layout has the tensors that it names").extent
    };
    let group_cols = matrix.affine_group_cols(tensors.is_reordered);
    let derive = |plane: Plane| -> Parts {
        let inputs: Vec<Extent> = matrix.inputs(plane).into_iter().map(extent_of).collect();
        let len = matrix.plane_bytes(plane, group_cols.unwrap_or(matrix.group_cols));
        let name = format!("{module}.{plane:?}");
        let recipe = Recipe::Integers(matrix.clone(), plane);
        claimed.derive(&name, stack_of(outer), len, &inputs, &recipe)
    };
    let Some(group_cols) = group_cols else {
        return Ok(Stored {
            format: MatrixFormat::Dense(Float::F32),
            tensor: tensors.codes,
            weight: derive(Plane::Decoded),
            scales: None,
            biases: None,
        });
    };
    let are_codes_rows = matrix.codes == CodeLayout::Rows;
    let weight =
        if are_codes_rows { Parts::Whole(tensors.codes.extent) } else { derive(Plane::Codes) };
    let keeps_scales = are_codes_rows && matrix.is_symmetric() && group_cols == matrix.group_cols;
    let (params, scales) = if keeps_scales {
        (matrix.scales, Parts::Whole(tensors.scales.extent))
    } else {
        (Float::F32, derive(Plane::Scales))
    };
    let (affine, biases) = if matrix.is_symmetric() {
        (Affine::symmetric(matrix.bits, group_cols, params), None)
    } else {
        (Affine::new(matrix.bits, group_cols, params), Some(derive(Plane::Biases)))
    };
    Ok(Stored {
        format: MatrixFormat::Affine(affine),
        tensor: tensors.codes,
        weight,
        scales: Some(scales),
        biases,
    })
}
