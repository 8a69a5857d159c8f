//! Tables whose rows are read one by one: a container has them as they are, among the resident
//! tensors.

use moeflux_core::checkpoint::{Dtype, Extent};
use moeflux_core::quant::{Encoding, Float, MatrixFormat};
use moeflux_core::{RowEncoding, RowTable};

use crate::files::TensorEntry;

/// A tensor of a table.
pub(crate) struct TableTensor {
    pub(crate) entry: TensorEntry,
    pub(super) content: TableContent,
}

/// What a tensor of a table holds.
pub(super) enum TableContent {
    /// Rows, copied.
    Rows(Extent, Encoding),
    /// The factor of all elements.
    Scale(f32),
}

/// What a container says of a table whose type its tensors have no name for.
pub(super) fn format(table: &RowTable) -> Option<(String, MatrixFormat)> {
    match table.encoding {
        RowEncoding::Ggml(it) => Some((table.name.clone(), MatrixFormat::Ggml(it))),
        RowEncoding::Float(_) | RowEncoding::F8E4M3 => None,
    }
}

/// The tensors of a table: its rows, in as many tensors as the source has, and its scale.
pub(super) fn tensors(table: &RowTable) -> Vec<TableTensor> {
    let dtype = match table.encoding {
        RowEncoding::Float(float) => Dtype::Float(float),
        RowEncoding::F8E4M3 => Dtype::F8E4M3,
        RowEncoding::Ggml(_) => Dtype::U8,
    };
    let encoding = table.encoding.encoding();
    let is_whole = table.parts.len() == 1;
    let rows = table.extents().enumerate().map(|(i, extent)| {
        let shard = if is_whole { String::new() } else { format!(".shard_{i}") };
        let name = format!("{}{shard}.weight", table.name);
        let row_bytes = table.row_bytes();
        let cols = if dtype == Dtype::U8 { row_bytes } else { table.cols };
        let shape = vec![extent.len / row_bytes, cols];
        TableTensor {
            entry: TensorEntry { name, dtype: dtype.clone(), shape },
            content: TableContent::Rows(extent, encoding),
        }
    });
    let mut all: Vec<TableTensor> = rows.collect();
    if table.encoding == RowEncoding::F8E4M3 {
        let name = format!("{}.weight_scale", table.name);
        let entry = TensorEntry { name, dtype: Dtype::Float(Float::F32), shape: vec![1] };
        all.push(TableTensor { entry, content: TableContent::Scale(table.scale) });
    }
    all
}
