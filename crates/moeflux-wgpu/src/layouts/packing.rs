//! How an expert is stored in a slot: as kernels read it.

use std::sync::Arc;

use moeflux_core::quant::MatrixView;
use moeflux_core::{ExpertLayout, MatrixLayout};
use moeflux_residency::{MatrixBytes, Packing};

use crate::layouts::format::{Place, as_stored, place, sizes};

/// Bytes that a thread writes at a time, so that all end together.
const PIECE_BYTES: usize = if cfg!(test) { 1 << 10 } else { 128 << 10 };

/// The shape of a matrix whose bytes are of no interest.
pub(crate) fn empty_view(layout: &MatrixLayout) -> MatrixView<'static> {
    let MatrixLayout { rows, cols, format, .. } = *layout;
    MatrixView { rows, cols, format, weight: &[], scales: &[], biases: &[] }
}

/// How slots store experts of a layout.
pub(crate) fn pack(layout: &Arc<ExpertLayout>) -> Packing {
    Packing::new(layout, PIECE_BYTES, |matrix| {
        let view = empty_view(matrix);
        let (len, scales_at) = sizes(&view);
        MatrixBytes { len, scales_at, as_stored: as_stored(&view) }
    })
}

/// Where the matrices of an expert are whose slot begins at byte `at`: gate and up (or both in one
/// matrix), then down.
pub(crate) fn places(packing: &Packing, at: usize) -> [Place; 3] {
    let parts = packing.parts();
    [0, 1, 2].map(|nth: usize| {
        let part = &parts[nth.min(parts.len() - 1)];
        place(at + part.bytes.start, part.scales_at)
    })
}
