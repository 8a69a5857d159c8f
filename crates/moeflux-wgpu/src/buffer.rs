//! Buffers of the device.

use std::sync::atomic::{AtomicU32, Ordering};

/// A device buffer.
#[derive(Clone, Debug)]
pub(crate) struct Mem {
    /// Tells it from all others.
    pub(crate) id: u32,
    pub(crate) buffer: wgpu::Buffer,
}

impl Mem {
    pub(crate) fn new(buffer: wgpu::Buffer) -> Mem {
        static N_MADE: AtomicU32 = AtomicU32::new(1);
        Mem { id: N_MADE.fetch_add(1, Ordering::Relaxed), buffer }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.buffer.size()
    }
}
