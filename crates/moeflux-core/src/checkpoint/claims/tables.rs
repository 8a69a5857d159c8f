//! Tables whose rows are read one by one: the shards that a table is published in, and its scale.

use super::super::{Dtype, FormatError, Tensor};
use super::claimed::Claimed;
use crate::manifest::TableDecl;
use crate::{RowEncoding, RowPart, RowTable};

/// Name of the factor of all elements of a table of E4M3.
const SCALE: &str = "weight_scale";

/// The largest number of E4M3.
const LARGEST_E4M3: f32 = 448.0;

/// Claims a table; see [`Claims::table`](super::Claims::table).
pub(super) fn table(claimed: &mut Claimed<'_>, decl: &TableDecl) -> Result<RowTable, FormatError> {
    let shards = shards(claimed, decl)?;
    let first = shards[0];
    let encoding = match first.dtype {
        Dtype::Float(float) => RowEncoding::Float(float),
        Dtype::F8E4M3 => RowEncoding::F8E4M3,
        Dtype::Ggml(block_type) => RowEncoding::Ggml(block_type),
        // A container's own table, whose header has no name for these types.
        Dtype::U8 if let Some(it) = claimed.checkpoint.rules.ggml_type_of(&decl.name) => {
            RowEncoding::Ggml(it)
        }
        _ => return Err(claimed.unsupported_dtype(first)),
    };
    if let Some(odd) = shards.iter().find(|shard| shard.dtype != first.dtype) {
        let what = format!("{} stored unlike its siblings", odd.stored_name);
        return Err(FormatError::unsupported(claimed.checkpoint.path_of(odd), what));
    }
    if let RowEncoding::Ggml(it) = encoding
        && !decl.cols.is_multiple_of(it.block_cols())
    {
        let (name, block) = (it.name(), it.block_cols());
        let what =
            format!("{} with {} columns of {name}, in blocks of {block},", decl.name, decl.cols);
        return Err(FormatError::unsupported(claimed.checkpoint.path_of(first), what));
    }
    // Columns of a header are bytes where it has no name for the type.
    let stored_cols =
        if first.dtype == Dtype::U8 { encoding.row_bytes(decl.cols) } else { decl.cols };
    let mut parts = Vec::with_capacity(shards.len());
    for shard in shards {
        let &[rows, cols] = &shard.shape[..] else {
            return Err(claimed.wrong_shape(shard, format!("[_, {}]", decl.cols)));
        };
        if cols != stored_cols || cols == 0 {
            return Err(claimed.wrong_shape(shard, format!("[{rows}, {stored_cols}]")));
        }
        let extent = shard.extent;
        parts.push(RowPart { file: extent.file, offset: extent.offset, rows: rows as u64 });
    }
    let scale = table_scale(claimed, decl, encoding)?;
    let (name, cols) = (decl.name.clone(), decl.cols);
    let table = RowTable { name, cols, encoding, scale, parts };
    if table.rows() != decl.rows as u64 {
        let n_shards = table.parts.len();
        let (rows, want) = (table.rows(), decl.rows);
        let what =
            format!("{} has {rows} rows in {n_shards} tensors where {want} belong", decl.name);
        return Err(FormatError::malformed(claimed.checkpoint.path_of(first), what));
    }
    Ok(table)
}

/// Claims the tensors of a table, in the order of their rows; there is at least one.
fn shards<'a>(claimed: &mut Claimed<'a>, decl: &TableDecl) -> Result<Vec<&'a Tensor>, FormatError> {
    let whole = format!("{}.weight", decl.name);
    let shard = |i: usize| format!("{}.shard_{i}.weight", decl.name);
    let has = |name: &str| claimed.checkpoint.tensors().contains_key(name);
    if !has(&shard(0)) {
        return Ok(vec![claimed.claim(if has(&whole) { whole } else { shard(0) }.as_str())?]);
    }
    // A shard that is missing in the middle leaves those after it unclaimed.
    let n_shards = (1..).find(|i| !has(&shard(*i))).unwrap_or(1);
    (0..n_shards).map(|i| claimed.claim(&shard(i))).collect()
}

/// The factor of all elements: that of the checkpoint for elements of eight bits, else 1.
fn table_scale(
    claimed: &mut Claimed<'_>,
    decl: &TableDecl,
    encoding: RowEncoding,
) -> Result<f32, FormatError> {
    if encoding != RowEncoding::F8E4M3 {
        return Ok(1.0);
    }
    let tensor = claimed.claim(&format!("{}.{SCALE}", decl.name))?;
    let Dtype::Float(float) = tensor.dtype else { return Err(claimed.unsupported_dtype(tensor)) };
    if tensor.shape.iter().product::<usize>() != 1 {
        return Err(claimed.wrong_shape(tensor, String::from("[] or [1]")));
    }
    let bytes = claimed.checkpoint.reader().read(tensor.extent)?;
    let scale = float.read(&bytes, 0);
    if !(scale * LARGEST_E4M3).is_finite() {
        let what = format!("tensor {}: {scale} is not a scale", tensor.stored_name);
        return Err(FormatError::malformed(claimed.checkpoint.path_of(tensor), what));
    }
    Ok(scale)
}
