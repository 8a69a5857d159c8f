//! The order of an expert's parts in a record of a file.

use crate::quant::MatrixFormat;
use crate::{ExpertLayout, GateUp, MatrixLayout, PartSpan};

/// Formats of an expert's gate, up and down projections.
pub type PartFormats = [MatrixFormat; 3];

/// The layout of a record with one extent: gate {weights, scales, biases}, up {…}, down {…},
/// without padding.
pub fn record_layout(hidden: usize, intermediate: usize, formats: PartFormats) -> ExpertLayout {
    let shapes = part_shapes(hidden, intermediate);
    let mut end = 0;
    let mut span = |len| {
        let offset = end;
        end += len;
        PartSpan { extent: 0, offset, len }
    };
    let mut matrix = |i: usize| {
        let ((rows, cols), format) = (shapes[i], formats[i]);
        let weight = span(rows * format.row_bytes(cols));
        let scales = span(format.scale_bytes(rows, cols));
        let biases = span(format.bias_bytes(rows, cols));
        MatrixLayout { rows, cols, format, weight, scales, biases }
    };
    let (gate, up, down) = (matrix(0), matrix(1), matrix(2));
    ExpertLayout { extents: vec![end], gate_up: GateUp::Split { gate, up }, down }
}

/// Rows and columns of the gate, up and down projections.
pub(super) fn part_shapes(hidden: usize, intermediate: usize) -> [(usize, usize); 3] {
    [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
}
