//! What lies behind the handles: activations, weights, sequences.

use moeflux_core::HostBuf;
use moeflux_core::quant::{Affine, MatrixFormat, MatrixView};

use super::attention::KvCache;
use super::conv::ConvCache;
use crate::{CacheSpec, Cols, Heads, HostMatrix, Inputs};

/// Rows of `f32`.
#[derive(Debug, Default)]
pub(super) struct Activations {
    pub(super) data: Vec<f32>,
    pub(super) width: usize,
    /// Grows with every write, so that what was derived from the data can tell
    /// whether it still holds.
    pub(super) version: u64,
}

impl Activations {
    /// The columns of one row.
    pub(super) fn cols(&self, row: usize, cols: Cols) -> &[f32] {
        let start = row * self.width + cols.start;
        &self.data[start..start + cols.len]
    }

    /// One head of one row.
    pub(super) fn head(&self, row: usize, heads: Heads, head: usize) -> &[f32] {
        let start = row * self.width + heads.start + head * heads.stride;
        &self.data[start..start + heads.head_dim]
    }
}

/// A resident matrix.
#[derive(Debug)]
pub(super) struct Matrix {
    host: HostMatrix,
}

impl Matrix {
    pub(super) fn new(host: HostMatrix) -> Matrix {
        let matrix = Matrix { host };
        matrix.view().assert_sizes();
        matrix
    }

    pub(super) fn view<'a>(&'a self) -> MatrixView<'a> {
        let HostMatrix { rows, cols, format, .. } = self.host;
        let weight_bytes = rows * format.row_bytes(cols);
        let param_bytes = rows * format.param_bytes(cols);
        let params = |buf: &'a Option<HostBuf>| -> &'a [u8] {
            buf.as_ref().map_or(&[], |it| &it[..param_bytes])
        };
        MatrixView {
            rows,
            cols,
            format,
            weight: &self.host.weight[..weight_bytes],
            scales: params(&self.host.scales),
            biases: params(&self.host.biases),
        }
    }

    /// The groups that inputs are rounded in; `None` where they stay as they are.
    pub(super) fn rounding(&self) -> Option<Affine> {
        rounding(self.host.format, self.host.inputs)
    }
}

/// The groups that a product rounds its inputs in, if any.
pub(super) fn rounding(format: MatrixFormat, inputs: Inputs) -> Option<Affine> {
    match (format, inputs) {
        (MatrixFormat::Affine(affine), Inputs::Rounded) => Some(affine),
        (MatrixFormat::Affine(_), Inputs::Full) | (MatrixFormat::Dense(_), _) => None,
    }
}

/// One cache of one sequence.
#[derive(Debug)]
pub(super) enum CacheState {
    Kv(KvCache),
    Conv(ConvCache),
    /// `(n_heads, v_dim, k_dim)`.
    Delta(Vec<f32>),
}

impl CacheState {
    pub(super) fn new(spec: CacheSpec) -> CacheState {
        match spec {
            CacheSpec::Kv { n_heads, k_dim, v_dim } => {
                CacheState::Kv(KvCache::new(n_heads, k_dim, v_dim))
            }
            CacheSpec::Conv { channels, kernel } => {
                CacheState::Conv(ConvCache::new(channels, kernel))
            }
            CacheSpec::Delta { n_heads, k_dim, v_dim } => {
                CacheState::Delta(vec![0.0; n_heads * k_dim * v_dim])
            }
        }
    }

    pub(super) fn clear(&mut self) {
        match self {
            CacheState::Kv(kv) => kv.clear(),
            CacheState::Conv(conv) => conv.clear(),
            CacheState::Delta(state) => state.fill(0.0),
        }
    }
}
