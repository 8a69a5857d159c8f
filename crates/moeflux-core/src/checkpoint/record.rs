//! The order of an expert's parts in a record of a file.

use crate::quant::MatrixFormat;
use crate::{ExpertLayout, ExpertParts, MatrixLayout, PartSpan, ShapedPart};

/// Formats of an expert's matrices.
pub type PartFormats = ExpertParts<MatrixFormat>;

/// The layout of a record with one extent: gate {weights, scales, biases} where there is one, up {…},
/// down {…}, without padding.
pub fn record_layout(hidden: usize, intermediate: usize, formats: PartFormats) -> ExpertLayout {
    let mut end = 0;
    let mut span = |len| {
        let offset = end;
        end += len;
        PartSpan { extent: 0, offset, len }
    };
    let parts = formats.shaped(hidden, intermediate).map(|part| {
        let ShapedPart { part: format, rows, cols } = part;
        let weight = span(rows * format.row_bytes(cols));
        let scales = span(format.scale_bytes(rows, cols));
        let biases = span(format.bias_bytes(rows, cols));
        MatrixLayout { rows, cols, format, weight, scales, biases }
    });
    ExpertLayout::of_parts(vec![end], parts)
}
