//! Buffers of the device.

use std::sync::atomic::{AtomicU32, Ordering};
use wgpu::BufferUsages;

/// A device buffer. Clones are the same buffer, and equal.
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

    /// A place in the buffer, by its byte.
    pub(crate) fn at(&self, at: u64) -> MemAt<'_> {
        MemAt { mem: self, at }
    }

    /// A list in the buffer, by its first word.
    pub(crate) fn list(&self, first: u32) -> ListAt<'_> {
        ListAt { mem: self, first }
    }

    /// Some of the buffer's bytes, from byte `at` on.
    pub(crate) fn range(&self, at: u64, bytes: u64) -> MemRange<'_> {
        MemRange { mem: self, at, bytes }
    }
}

impl PartialEq for Mem {
    fn eq(&self, other: &Mem) -> bool {
        self.id == other.id
    }
}

/// A place in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemAt<'a> {
    pub(crate) mem: &'a Mem,
    /// The byte.
    pub(crate) at: u64,
}

/// A list in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListAt<'a> {
    pub(crate) mem: &'a Mem,
    /// Its first word.
    pub(crate) first: u32,
}

/// Bytes of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemRange<'a> {
    pub(crate) mem: &'a Mem,
    /// The first byte.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
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
