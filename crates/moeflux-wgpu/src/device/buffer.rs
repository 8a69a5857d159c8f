//! Buffers of the device.

use std::sync::atomic::{AtomicU32, Ordering};
use wgpu::BufferUsages;

/// A device buffer.
#[derive(Clone, Debug)]
pub(crate) struct Mem {
    /// Unique in the process.
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

/// A buffer that is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferDesc {
    pub(crate) bytes: u64,
    pub(crate) usage: BufferUsages,
    pub(crate) label: &'static str,
    /// Whether the host writes it first.
    pub(crate) is_mapped: bool,
}
