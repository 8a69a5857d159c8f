//! Floats of a buffer.

use std::ops::{Deref, DerefMut};

use moeflux_core::HostBuf;

/// Floats that begin where a page does, so that vectors are in one line of the
/// cache, and in huge pages where they are many: rows of a chunk are pages apart,
/// more than a processor keeps addresses of.
#[derive(Debug, Default)]
pub(super) struct Floats {
    /// `None` while empty.
    bytes: Option<HostBuf>,
    len: usize,
}

impl Floats {
    /// Zeros.
    pub(super) fn zeroed(len: usize) -> Floats {
        Floats { bytes: (len > 0).then(|| HostBuf::zeroed(len * size_of::<f32>())), len }
    }

    /// The first `len` of memory that only ever grows; what they are is open.
    pub(super) fn first(&mut self, len: usize) -> &mut [f32] {
        if self.len < len {
            *self = Floats::zeroed(len.next_power_of_two());
        }
        &mut self[..len]
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.bytes.as_ref().map_or(&[], |bytes| &bytemuck::cast_slice(bytes)[..self.len])
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.bytes
            .as_mut()
            .map_or(&mut [], |bytes| &mut bytemuck::cast_slice_mut(bytes)[..self.len])
    }
}
