//! No way to memory of the host.

use moeflux_core::SlabGuard;
use wgpu::{Adapter, Buffer, Device, DeviceDescriptor, Queue, RequestDeviceError};

use crate::device::imports::pinned_slab::PinnedSlab;

pub(crate) fn alignment(_: &Adapter) -> Option<u64> {
    None
}

pub(crate) fn own_memory(_: &Adapter) -> Option<u64> {
    None
}

pub(crate) fn free_memory(_: &Adapter) -> Option<u64> {
    None
}

/// Whether a device can take more bytes; wgpu finds that out where there is an interface for it.
pub(crate) fn has_room(_: &Device, _: u64) -> bool {
    true
}

pub(crate) fn is_apple7(_: &Adapter) -> bool {
    false
}

pub(crate) fn open(
    adapter: &Adapter,
    descriptor: &DeviceDescriptor<'_>,
) -> Result<(Device, Queue, Option<u64>), RequestDeviceError> {
    let (device, queue) = pollster::block_on(adapter.request_device(descriptor))?;
    Ok((device, queue, None))
}

pub(crate) fn import(_: &Device, _: SlabGuard, _: u64) -> Option<(Buffer, PinnedSlab)> {
    None
}
