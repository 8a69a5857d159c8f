//! Memory of the host that weights are read into on their way to the device: used again, because fresh
//! pages take longer to come by than to fill.

use std::sync::{Mutex, PoisonError};

use moeflux_backend::HostMatrix;
use moeflux_core::HostBuf;

/// Buffers that are kept, and the bytes of the largest.
const MOST: usize = 4;
const MOST_BYTES: usize = 32 << 20;

/// Buffers of weights that are loaded.
#[derive(Debug, Default)]
pub(crate) struct HostBuffers(Mutex<Vec<HostBuf>>);

impl HostBuffers {
    /// A buffer of at least `len` bytes, whatever is in it.
    pub(crate) fn take(&self, len: usize) -> HostBuf {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = (0..spare.len()).filter(|i| spare[*i].len() >= len);
        match fitting.min_by_key(|i| spare[*i].len()) {
            Some(i) => spare.swap_remove(i),
            None => HostBuf::zeroed(len),
        }
    }

    /// Keeps the buffers of a matrix that the device has, the largest ones.
    pub(crate) fn give(&self, matrix: HostMatrix) {
        let HostMatrix { weight, scales, biases, .. } = matrix;
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let buffers = [Some(weight), scales, biases].into_iter().flatten();
        spare.extend(buffers.filter(|buffer| buffer.len() <= MOST_BYTES));
        spare.sort_by_key(|buffer| std::cmp::Reverse(buffer.len()));
        spare.truncate(MOST);
    }
}
