//! A matrix on the device.

use std::ops::Range;

use moeflux_backend::ActivationPrecision;

use crate::device::buffer::Mem;
use crate::layouts::format::{Decoder, Place};

/// Rows of a resident matrix that are in one buffer.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) mem: Mem,
    pub(crate) rows: Range<usize>,
    pub(crate) place: Place,
    /// Rows of the first rectangle that are before the first row.
    pub(crate) phase: usize,
}

/// A resident matrix.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) decoder: Decoder,
    pub(crate) inputs: ActivationPrecision,
    pub(crate) pieces: Vec<Piece>,
}
