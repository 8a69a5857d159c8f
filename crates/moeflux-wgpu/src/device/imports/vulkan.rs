//! Vulkan's way to memory of the host: `VK_EXT_external_memory_host`. With
//! `experimental.rs` the only file of this crate that needs `unsafe`.

use std::ffi::CStr;

use ash::{ext, vk};
use moeflux_core::SlabGuard;
use wgpu::hal::api::Vulkan;
use wgpu::hal::vulkan::CreateDeviceCallbackArgs;
use wgpu::{Adapter, Buffer, Device, DeviceDescriptor, Queue, RequestDeviceError};

use crate::device::imports::pinned_slab::{PinnedSlab, described};

/// What memory that the system gave is called.
const KIND: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

/// Where memory has to begin, and of what its length has to be a multiple, in
/// bytes, for the adapter's devices to read it; `None` where they cannot.
pub(crate) fn alignment(adapter: &Adapter) -> Option<u64> {
    // SAFETY: the handle is only queried, and not destroyed here.
    let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
    let instance = hal.shared_instance().raw_instance();
    let physical = hal.raw_physical_device();
    if !lists(instance, physical, ext::external_memory_host::NAME) {
        return None;
    }
    let mut of_memory = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
    let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut of_memory);
    // SAFETY: the physical device belongs to this instance, which `hal` keeps; it lists the extension
    // whose structure is in the chain.
    unsafe { instance.get_physical_device_properties2(physical, &mut all) };
    Some(of_memory.min_imported_host_pointer_alignment.max(1))
}

/// Whether it is of Metal's family Apple7 or a later one.
pub(crate) fn is_apple7(_: &Adapter) -> bool {
    false
}

/// Bytes of the largest memory of the adapter's own.
pub(crate) fn own_memory(adapter: &Adapter) -> Option<u64> {
    // SAFETY: the handle is only queried, and not destroyed here.
    let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
    let instance = hal.shared_instance().raw_instance();
    // SAFETY: the physical device belongs to this instance, which `hal` keeps.
    let all = unsafe { instance.get_physical_device_memory_properties(hal.raw_physical_device()) };
    let heaps = all.memory_heaps_as_slice().iter();
    let own = heaps.filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    own.map(|heap| heap.size).max()
}

/// Bytes of that memory which this process may use now, as the driver estimates them next to what others
/// use; `None` where it does not.
pub(crate) fn free_memory(adapter: &Adapter) -> Option<u64> {
    // SAFETY: the handle is only queried, and not destroyed here.
    let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
    let instance = hal.shared_instance().raw_instance();
    let physical = hal.raw_physical_device();
    if !lists(instance, physical, ext::memory_budget::NAME) {
        return None;
    }
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut all = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    // SAFETY: the physical device belongs to this instance, which `hal` keeps; it lists the extension
    // whose structure is in the chain.
    unsafe { instance.get_physical_device_memory_properties2(physical, &mut all) };
    let heaps = all.memory_properties.memory_heaps_as_slice().to_vec();
    let own = (0..).zip(heaps).filter(|(_, heap): &(usize, vk::MemoryHeap)| {
        heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL)
    });
    let (largest, _) = own.max_by_key(|(_, heap)| heap.size)?;
    let [bytes, used] = [budget.heap_budget[largest], budget.heap_usage[largest]];
    Some(bytes.saturating_sub(used)).filter(|_| bytes > 0)
}

/// Whether a device has an extension of that name.
fn lists(instance: &ash::Instance, physical: vk::PhysicalDevice, name: &CStr) -> bool {
    // SAFETY: the physical device belongs to this instance, which the callers' adapters keep.
    let all = unsafe { instance.enumerate_device_extension_properties(physical) };
    let is_it = |one: &vk::ExtensionProperties| one.extension_name_as_c_str() == Ok(name);
    all.is_ok_and(|all| all.iter().any(is_it))
}

/// Whether a device can take more bytes; wgpu finds that out where there is an interface for it.
pub(crate) fn has_room(_: &Device, _: u64) -> bool {
    true
}

/// Opens a device; where slabs have to begin for it to read them, if it can.
///
/// # Errors
/// Where the driver refuses.
pub(crate) fn open(
    adapter: &Adapter,
    descriptor: &DeviceDescriptor<'_>,
) -> Result<(Device, Queue, Option<u64>), RequestDeviceError> {
    if let Some(alignment) = alignment(adapter)
        && let Some((device, queue)) = open_with_extension(adapter, descriptor)
    {
        return Ok((device, queue, Some(alignment)));
    }
    let (device, queue) = pollster::block_on(adapter.request_device(descriptor))?;
    Ok((device, queue, None))
}

/// As [`Adapter::request_device`], with the extension; `None` where the driver
/// refuses.
fn open_with_extension(
    adapter: &Adapter,
    descriptor: &DeviceDescriptor<'_>,
) -> Option<(Device, Queue)> {
    let DeviceDescriptor { required_features, required_limits, memory_hints, .. } = descriptor;
    let with_extension = |args: CreateDeviceCallbackArgs<'_, '_, '_>| {
        args.extensions.push(ext::external_memory_host::NAME);
    };
    let device = {
        // SAFETY: the handle is not destroyed here.
        let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
        let with_extension = Some(Box::new(with_extension) as _);
        // SAFETY: the features are those that the adapter lists, and the callback removes nothing
        // and adds one extension, which `alignment` has found on this adapter.
        let opened = unsafe {
            hal.open_with_callback(
                *required_features,
                required_limits,
                memory_hints,
                with_extension,
            )
        };
        opened.ok()?
    };
    // SAFETY: the device was made from this adapter, with the features and limits of `descriptor`.
    unsafe { adapter.create_device_from_hal::<Vulkan>(device, descriptor) }.ok()
}

/// What an import consists of, until it is given back.
struct Import {
    device: ash::Device,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    /// Dropped after the two above.
    _guard: SlabGuard,
}

impl Drop for Import {
    fn drop(&mut self) {
        // SAFETY: it was made by this device, which wgpu destroys after its buffers. wgpu runs the
        // callback that drops it once no submission uses it any more.
        unsafe { self.device.destroy_buffer(self.buffer, None) };
        // SAFETY: as above, and the buffer that was bound to it is gone.
        unsafe { self.device.free_memory(self.memory, None) };
    }
}

/// This many bytes of a slab, the first, as a buffer that kernels read; `None` where the driver
/// refuses. The slab stays mapped until the buffer is gone. It begins, and the bytes end, where
/// [`alignment`] wants it.
pub(crate) fn import(device: &Device, slab: SlabGuard, size: u64) -> Option<(Buffer, PinnedSlab)> {
    assert!(0 < size && size <= slab.bytes() as u64, "{size} bytes of a slab");
    let import = {
        // SAFETY: the handle is not destroyed here.
        let hal = unsafe { device.as_hal::<Vulkan>() }?;
        let instance = hal.shared_instance().raw_instance();
        let raw = hal.raw_device();
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(KIND);
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::TRANSFER_SRC;
        let info = vk::BufferCreateInfo::default().size(size).usage(usage);
        // SAFETY: the device was opened with the extension.
        let buffer = unsafe { raw.create_buffer(&info.push_next(&mut external), None) }.ok()?;
        let memory = memory_of(instance, raw, hal.raw_physical_device(), buffer, size, &slab);
        // Freeing no memory is allowed.
        let handle = memory.unwrap_or_default();
        let import = Import { device: raw.clone(), buffer, memory: handle, _guard: slab };
        memory?;
        // SAFETY: both are of this device and new, and the memory is of a type and at least of the
        // size that the buffer asks for.
        unsafe { raw.bind_buffer_memory(buffer, handle, 0) }.ok()?;
        import
    };
    let buffer = import.buffer;
    let give_back = Box::new(move || drop(import));
    // SAFETY: `import` has the handle and its memory until wgpu runs the callback, which it does
    // when it is done with the buffer; it is never mapped.
    let buffer = unsafe { wgpu::hal::vulkan::Buffer::from_raw_externally_owned(buffer, give_back) };
    // SAFETY: the buffer is of this device, of that size, which is not zero, and has those uses; the
    // slab's pages are zero or what the host has written.
    let buffer = unsafe { device.create_buffer_from_hal::<Vulkan>(buffer, &described(size)) };
    Some((buffer, None))
}

/// Memory of the device that is the slab's, for a buffer of this many bytes.
fn memory_of(
    instance: &ash::Instance,
    device: &ash::Device,
    physical: vk::PhysicalDevice,
    buffer: vk::Buffer,
    size: u64,
    slab: &SlabGuard,
) -> Option<vk::DeviceMemory> {
    let pointer = slab.first().as_ptr().cast();
    let functions = ext::external_memory_host::Device::new(instance, device);
    let ask = functions.fp().get_memory_host_pointer_properties_ext;
    let mut of_pointer = vk::MemoryHostPointerPropertiesEXT::default();
    // SAFETY: the device has the extension, and the slab is mapped and begins where it wants it.
    let outcome = unsafe { ask(device.handle(), KIND, pointer, &mut of_pointer) };
    outcome.result().ok()?;
    // SAFETY: the physical device belongs to this instance.
    let types = unsafe { instance.get_physical_device_memory_properties(physical) };
    // SAFETY: the buffer is the device's.
    let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
    let fits = needs.memory_type_bits & of_pointer.memory_type_bits;
    let is_usable = |(nth, memory_type): &(u32, &vk::MemoryType)| {
        // What the host wrote before a submission is then seen by it.
        let is_coherent =
            memory_type.property_flags.contains(vk::MemoryPropertyFlags::HOST_COHERENT);
        fits >> nth & 1 == 1 && is_coherent
    };
    let (nth, _) = (0..).zip(types.memory_types_as_slice()).find(is_usable)?;
    if needs.size > size {
        return None;
    }
    let mut import =
        vk::ImportMemoryHostPointerInfoEXT::default().handle_type(KIND).host_pointer(pointer);
    let info = vk::MemoryAllocateInfo::default().allocation_size(size).memory_type_index(nth);
    // SAFETY: the slab is mapped as long as its guard is there, which the caller keeps after the
    // memory, and has this many bytes; its beginning and these are multiples of what the device
    // wants, and the type is one that it named for this pointer.
    unsafe { device.allocate_memory(&info.push_next(&mut import), None) }.ok()
}
