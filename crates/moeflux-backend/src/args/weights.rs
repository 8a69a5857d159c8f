//! Weights on their way to the device.

use moeflux_core::HostBuf;
use moeflux_core::quant::MatrixFormat;

use super::spans::{PositionPart, RowPosition};

/// The precision of the activations that a matrix product multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationPrecision {
    /// Not rounded.
    F32,
    /// Rounded to 16-bit integers, stored as two limbs of 8 bits, with one scale for each
    /// group of columns. This applies to weights that are integers, as affine ones, MXFP4 and
    /// NVFP4 are; activations of other weights are not rounded.
    ///
    /// For many rows, a backend may instead round each activation to an `f16`, where the weights
    /// are integers, and weights in blocks of GGUF files as well; activations of other weights may
    /// become the sum of two `f16`, which keeps 22 bits. Those of MXFP4 and NVFP4 may stay
    /// unrounded.
    Int16,
    /// Rounded to 8-bit integers, with one scale for each group of columns, where the weights
    /// are integers; else as for [`Int16`](ActivationPrecision::Int16).
    ///
    /// For many rows the same holds as for [`Int16`](ActivationPrecision::Int16).
    Int8,
}

/// A matrix on its way to the device.
#[derive(Debug)]
pub struct HostMatrix {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The stored format of the elements.
    pub format: MatrixFormat,
    /// The precision of the activations that products with it use.
    pub inputs: ActivationPrecision,
    /// The elements; bytes after them are ignored.
    pub weight: HostBuf,
    /// The scales, where the format has them.
    pub scales: Option<HostBuf>,
    /// The biases, where the format has them.
    pub biases: Option<HostBuf>,
}

/// Which elements of a head a rotation pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// `(i, i + rotary_dim / 2)`.
    Halves,
    /// `(2i, 2i + 1)`.
    Adjacent,
}

/// Rotary frequencies on their way to the device.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Radians a position, one for each pair; `rotary_dim / 2` of them.
    pub inv_freq: Vec<f32>,
    /// Which elements form a pair.
    pub pairs: RopePairs,
    /// Multiplies sine and cosine; 1 without YaRN.
    pub scale: f32,
    /// For each pair the part of a position that turns it. None where positions have one part.
    pub parts: Vec<PositionPart>,
}

impl RopeSpec {
    /// The angle of each pair at a position, in radians.
    ///
    /// # Panics
    /// Where only some pairs have a part.
    pub fn angles(&self, position: RowPosition) -> impl Iterator<Item = f32> + '_ {
        assert!([0, self.inv_freq.len()].contains(&self.parts.len()), "a part for each pair");
        let part = move |pair: usize| match self.parts.get(pair) {
            Some(part) => position.part(*part),
            None => position.temporal,
        };
        (0..).zip(&self.inv_freq).map(move |(pair, frequency)| part(pair) as f32 * frequency)
    }
}
