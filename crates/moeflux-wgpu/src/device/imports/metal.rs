//! Metal's way to memory of the host, on devices that share it:
//! `newBufferWithBytesNoCopy`.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;

use block2::RcBlock;
use moeflux_core::SlabGuard;
use objc2::available;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBuffer, MTLDevice, MTLGPUFamily, MTLResidencySet, MTLResidencySetDescriptor,
    MTLResourceOptions,
};
use wgpu::hal::api::Metal;
use wgpu::{Adapter, Buffer, Device, DeviceDescriptor, Queue, RequestDeviceError};

use crate::device::imports::pinned_slab::{PinnedSlab, described};

/// Pages of Apple's own processors; of Intel's this is four.
const PAGE_BYTES: u64 = 16 << 10;

/// Where memory has to begin, and of what its length has to be a multiple, in
/// bytes, for the adapter's devices to read it; `None` where these have their own.
pub(crate) fn alignment(adapter: &Adapter) -> Option<u64> {
    // SAFETY: the handle is only queried, and not released here.
    let hal = unsafe { adapter.as_hal::<Metal>() }?;
    hal.raw_device().hasUnifiedMemory().then_some(PAGE_BYTES)
}

/// Whether it is of Metal's family Apple7 or a later one; each of Apple's own has all before it.
pub(crate) fn is_apple7(adapter: &Adapter) -> bool {
    if !available!(macos = 10.15, ios = 13.0, tvos = 13.0, visionos = 1.0) {
        return false;
    }
    // SAFETY: the handle is only queried, and not released here.
    let hal = unsafe { adapter.as_hal::<Metal>() };
    hal.is_some_and(|hal| hal.raw_device().supportsFamily(MTLGPUFamily::Apple7))
}

/// Bytes that a device can use without being short of memory: on those that share the
/// processor's about three quarters of it.
pub(crate) fn own_memory(adapter: &Adapter) -> Option<u64> {
    // SAFETY: the handle is only queried, and not released here.
    let hal = unsafe { adapter.as_hal::<Metal>() }?;
    Some(hal.raw_device().recommendedMaxWorkingSetSize())
}

/// Whether a device can take this many bytes more without being short of memory: Metal itself gives
/// out more than there is, and the system then writes memory to the drive or ends the process.
pub(crate) fn has_room(device: &Device, bytes: u64) -> bool {
    // SAFETY: the handle is only queried, and not released here.
    let Some(hal) = (unsafe { device.as_hal::<Metal>() }) else { return true };
    let raw = hal.raw_device();
    // 0 where the system does not say.
    let most = raw.recommendedMaxWorkingSetSize();
    most == 0 || (raw.currentAllocatedSize() as u64).saturating_add(bytes) <= most
}

/// Bytes of that memory which this process may use now; Metal does not tell.
pub(crate) fn free_memory(_: &Adapter) -> Option<u64> {
    None
}

/// Opens a device; where slabs have to begin for it to read them, if it can.
///
/// # Errors
/// Where the driver refuses.
pub(crate) fn open(
    adapter: &Adapter,
    descriptor: &DeviceDescriptor<'_>,
) -> Result<(Device, Queue, Option<u64>), RequestDeviceError> {
    let (device, queue) = pollster::block_on(adapter.request_device(descriptor))?;
    Ok((device, queue, alignment(adapter)))
}

/// This many bytes of a slab, the first, as a buffer that kernels read, and what keeps its pages
/// where these find them; `None` where the driver refuses. The slab stays mapped until the buffer
/// is gone. It begins, and the bytes end, where [`alignment`] wants it.
pub(crate) fn import(device: &Device, slab: SlabGuard, size: u64) -> Option<(Buffer, PinnedSlab)> {
    assert!(0 < size && size <= slab.bytes() as u64, "{size} bytes of a slab");
    // SAFETY: the handle is not released here.
    let hal = unsafe { device.as_hal::<Metal>() }?;
    let raw_device = hal.raw_device();
    let (first, len) = (slab.first().cast::<c_void>(), usize::try_from(size).ok()?);
    // The buffer has this block until it is gone, and with it the slab.
    let give_back = RcBlock::new(move |_: NonNull<c_void>, _: usize| {
        let _ = &slab;
    });
    let options = MTLResourceOptions::StorageModeShared;
    // SAFETY: from `first` on this many bytes are mapped as long as the slab's guard is there,
    // which the block has, and the guard may be dropped by any thread.
    let raw = unsafe {
        raw_device.newBufferWithBytesNoCopy_length_options_deallocator(
            first,
            len,
            options,
            Some(&give_back),
        )
    }?;
    let pinned = Resident::new(raw_device, &raw).map(|resident| Box::new(resident) as _);
    // SAFETY: the buffer is of this device and has this many bytes.
    let buffer = unsafe { wgpu::hal::metal::Device::buffer_from_raw(raw, size) };
    // SAFETY: the buffer is of this device, of that size, which is not zero, and Metal's buffers have
    // all uses; the slab's pages are zero or what the host has written.
    let buffer = unsafe { device.create_buffer_from_hal::<Metal>(buffer, &described(size)) };
    Some((buffer, pinned))
}

/// Keeps a buffer's pages where the device finds them until this is dropped; without
/// it they are looked up anew whenever the device was idle for a while.
struct Resident(Retained<ProtocolObject<dyn MTLResidencySet>>);

// SAFETY: Metal allows its objects to be used and released by any thread, residency sets by one at
// a time, and only their owner has this one.
unsafe impl Send for Resident {}

impl Resident {
    /// `None` before macOS 15, where systems do not know how, and where one refuses.
    fn new(
        device: &ProtocolObject<dyn MTLDevice>,
        buffer: &ProtocolObject<dyn MTLBuffer>,
    ) -> Option<Resident> {
        if !available!(macos = 15.0, ios = 18.0, tvos = 18.0, visionos = 2.0) {
            return None;
        }
        let descriptor = MTLResidencySetDescriptor::new();
        let set = device.newResidencySetWithDescriptor_error(&descriptor).ok()?;
        set.addAllocation(ProtocolObject::from_ref(buffer));
        set.commit();
        set.requestResidency();
        Some(Resident(set))
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resident")
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.0.endResidency();
        // The set would keep the buffer.
        self.0.removeAllAllocations();
        self.0.commit();
    }
}
