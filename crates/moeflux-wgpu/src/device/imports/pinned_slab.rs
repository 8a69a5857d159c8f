//! What an imported slab is made into, and what keeps it.

use std::any::Any;

/// What keeps a slab where the device sees it, if anything has to.
pub(crate) type PinnedSlab = Option<Box<dyn Any + Send>>;

/// What an imported slab of this many bytes is made into.
#[cfg(any(
    windows,
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_vendor = "apple"
))]
pub(super) fn described(size: u64) -> wgpu::BufferDescriptor<'static> {
    wgpu::BufferDescriptor {
        label: Some("experts of the host"),
        size,
        usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    }
}
