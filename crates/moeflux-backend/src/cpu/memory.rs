//! The objects that handles stand for: activations, weights, sequences.

use std::ops::Range;

use moeflux_core::HostBuf;
use moeflux_core::quant::{MatrixFormat, MatrixView};

use super::floats::Floats;
use super::kv_cache::KvCache;
use super::matmul::integer_group_size_of;
use crate::{ActivationPrecision, CacheSpec, Cols, Heads, HostMatrix, KvType, StateShape};

/// Rows of `f32`.
#[derive(Debug, Default)]
pub(super) struct Activations {
    pub(super) data: Floats,
    pub(super) width: usize,
    /// Grows with every write, so that values derived from the data can check
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
        let part = |buf: &'a Option<HostBuf>, len: usize| -> &'a [u8] {
            buf.as_ref().map_or(&[], |buf| &buf[..len])
        };
        MatrixView {
            rows,
            cols,
            format,
            weight: &self.host.weight[..rows * format.row_bytes(cols)],
            scales: part(&self.host.scales, format.scale_bytes(rows, cols)),
            biases: part(&self.host.biases, format.bias_bytes(rows, cols)),
        }
    }

    /// How inputs are rounded; `None` where they stay as they are.
    pub(super) fn rounding(&self) -> Option<Limbs> {
        rounding(self.host.format, self.host.cols, self.host.inputs)
    }
}

/// How a product rounds its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limbs {
    pub(super) group_size: usize,
    pub(super) n_limbs: usize,
}

/// How a product rounds its inputs of `cols` columns, if at all.
pub(super) fn rounding(
    format: MatrixFormat,
    cols: usize,
    inputs: ActivationPrecision,
) -> Option<Limbs> {
    let group_size = integer_group_size_of(format, cols)?;
    match inputs {
        ActivationPrecision::F32 => None,
        ActivationPrecision::Int16 => Some(Limbs { group_size, n_limbs: 2 }),
        ActivationPrecision::Int8 => Some(Limbs { group_size, n_limbs: 1 }),
    }
}

/// One cache of one sequence.
#[derive(Debug)]
pub(super) enum CacheState {
    Kv(KvCache),
    State(RecurrentState),
}

/// A recurrent state.
#[derive(Debug)]
pub(super) struct RecurrentState {
    pub(super) shape: StateShape,
    pub(super) floats: Floats,
}

impl CacheState {
    pub(super) fn new(spec: CacheSpec) -> CacheState {
        match spec {
            CacheSpec::Pages { .. } | CacheSpec::Entries { .. } => {
                CacheState::Kv(KvCache::new(spec))
            }
            CacheSpec::State(shape) => {
                CacheState::State(RecurrentState { shape, floats: Floats::zeroed(shape.len()) })
            }
        }
    }

    pub(super) fn clear(&mut self) {
        match self {
            CacheState::Kv(kv) => kv.truncate(0),
            CacheState::State(state) => state.floats.fill(0.0),
        }
    }

    /// Forgets all but the first `len` positions; recurrent states stay.
    pub(super) fn truncate(&mut self, len: usize) {
        if let CacheState::Kv(kv) = self {
            kv.truncate(len);
        }
    }

    /// As [`Sequences::forget_passed`](crate::Sequences::forget_passed) describes.
    pub(super) fn forget_passed(&mut self, ends: &[usize]) {
        if let CacheState::Kv(kv) = self {
            kv.forget_passed(ends);
        }
    }

    /// Takes the recurrent state of another cache of the same kind over.
    pub(super) fn copy_state(&mut self, from: &CacheState) {
        if let (CacheState::State(to), CacheState::State(from)) = (self, from) {
            to.floats.copy_from_slice(&from.floats);
        }
    }

    /// Exchanges recurrent states with another cache of the same kind.
    pub(super) fn swap_state(&mut self, other: &mut CacheState) {
        if !matches!(self, CacheState::Kv(_)) {
            std::mem::swap(self, other);
        }
    }

    /// As [`CacheSpec::saved_bytes`] describes.
    pub(super) fn save(&self, positions: Range<usize>) -> Vec<u8> {
        let floats: &[f32] = match self {
            CacheState::Kv(kv) => return kv.save(positions),
            CacheState::State(state) => &state.floats,
        };
        let mut bytes = vec![0; size_of_val(floats)];
        KvType::F32.encode_row(floats, &mut bytes);
        bytes
    }

    /// Overwrites what [`save`](CacheState::save) reads.
    pub(super) fn load(&mut self, positions: Range<usize>, bytes: &[u8]) {
        let floats: &mut [f32] = match self {
            CacheState::Kv(kv) => return kv.load(positions, bytes),
            CacheState::State(state) => &mut state.floats,
        };
        assert_eq!(bytes.len(), size_of_val(floats), "bytes of a saved state");
        KvType::F32.decode_row(bytes, floats);
    }
}
