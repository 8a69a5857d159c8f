//! What sequences keep between steps: keys and values, and recurrent states.

mod kv;

use std::ops::Range;

use moeflux_backend::{CacheSpec, DeviceError};

pub(crate) use self::kv::{Kv, Plane};
use crate::encoder::{Encoder, Mem};

/// One cache of one sequence.
#[derive(Debug)]
pub(crate) enum CacheState {
    Kv(Kv),
    /// `(kernel - 1, channels)`, the oldest input first.
    Conv {
        history: Mem,
        /// Where a kernel puts the next one while others read this.
        spare: Mem,
        channels: usize,
        kernel: usize,
    },
    /// `(n_heads, v_dim, k_dim)`.
    Delta(Mem),
}

impl CacheState {
    pub(crate) fn new(encoder: &mut Encoder, spec: CacheSpec) -> CacheState {
        let mut zeros = |floats: usize, label| encoder.lasting_storage(4 * floats as u64, label);
        match spec {
            CacheSpec::Kv { n_heads, k_dim, v_dim, dtype } => {
                CacheState::Kv(Kv::new(n_heads, k_dim, v_dim, dtype))
            }
            CacheSpec::Conv { channels, kernel } => {
                let mut history = || zeros(channels * (kernel - 1), "history");
                CacheState::Conv { history: history(), spare: history(), channels, kernel }
            }
            CacheSpec::Delta { n_heads, k_dim, v_dim } => {
                CacheState::Delta(zeros(n_heads * k_dim * v_dim, "state"))
            }
        }
    }

    pub(crate) fn clear(&mut self, encoder: &mut Encoder) {
        match self {
            CacheState::Kv(kv) => kv.truncate(encoder, 0),
            CacheState::Conv { history: mem, .. } | CacheState::Delta(mem) => encoder.clear(mem),
        }
    }

    /// Frees what it holds.
    pub(crate) fn release(mut self, encoder: &mut Encoder) {
        match &mut self {
            CacheState::Kv(kv) => kv.truncate(encoder, 0),
            CacheState::Conv { history, spare, .. } => {
                encoder.forget(history);
                encoder.forget(spare);
            }
            CacheState::Delta(mem) => encoder.forget(mem),
        }
    }

    /// Forgets all but the first `len` positions; recurrent states stay.
    pub(crate) fn truncate(&mut self, encoder: &mut Encoder, len: usize) {
        if let CacheState::Kv(kv) = self {
            kv.truncate(encoder, len);
        }
    }

    /// As [`CacheSpec::saved_bytes`] describes.
    pub(crate) fn save(
        &self,
        encoder: &mut Encoder,
        positions: Range<usize>,
    ) -> Result<Vec<u8>, DeviceError> {
        match self {
            CacheState::Kv(kv) => kv.save(encoder, positions),
            CacheState::Conv { history, channels, kernel, .. } => {
                encoder.read(&[(history, 0, 4 * (channels * (kernel - 1)) as u64)])
            }
            CacheState::Delta(mem) => encoder.read(&[(mem, 0, mem.bytes())]),
        }
    }

    /// Overwrites what [`save`](CacheState::save) reads.
    pub(crate) fn load(&mut self, encoder: &mut Encoder, positions: Range<usize>, bytes: &[u8]) {
        match self {
            CacheState::Kv(kv) => kv.load(encoder, positions, bytes),
            CacheState::Conv { history: mem, .. } | CacheState::Delta(mem) => {
                assert!(bytes.len() as u64 <= mem.bytes(), "bytes of a saved state");
                encoder.write(mem, 0, bytes);
            }
        }
    }
}
