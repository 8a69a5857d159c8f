//! The host's memory as the device sees it: slabs in which the store keeps
//! experts, each as a buffer that kernels read, where the interface allows that.
//! Nothing is copied for it. A slab is imported when an expert of it is first
//! wanted, and given back when the store has given it up.
//!
//! Invariant: who records a kernel that reads an expert there keeps the expert
//! until the device has done so; nobody else writes to its bytes meanwhile.

use std::collections::HashMap;

use moeflux_core::{Expert, ExpertMemory, PartSpan, SlabGuard};
use wgpu::{Adapter, Device, DeviceDescriptor, Queue};

use crate::context::Context;
use crate::encoder::Mem;

#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
#[expect(unsafe_code, reason = "memory of the host is shared by raw handles alone")]
mod vulkan;

/// How experts come from the host's memory to kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Threads write them into mapped buffers, from which they are copied into slots.
    Written,
    /// A kernel brings them from the store's slots into those of the device.
    Fetched,
    /// Products read them in the store's slots.
    InPlace,
}

/// Where slabs have to begin for devices of an adapter to read them, if they can.
pub(crate) fn alignment(adapter: &Adapter) -> Option<u64> {
    #[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
    return vulkan::alignment(adapter);
    #[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
    None
}

/// Bytes of an adapter's own memory, where the interface tells.
pub(crate) fn own_memory(adapter: &Adapter) -> Option<u64> {
    #[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
    return vulkan::own_memory(adapter);
    #[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
    None
}

/// Opens a device; where slabs have to begin for it to read them, if it can.
///
/// # Errors
/// Where the driver refuses.
pub(crate) fn open(
    adapter: &Adapter,
    descriptor: &DeviceDescriptor<'_>,
) -> Result<(Device, Queue, Option<u64>), wgpu::RequestDeviceError> {
    #[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
    if let Some(alignment) = vulkan::alignment(adapter)
        && let Some((device, queue)) = vulkan::open(adapter, descriptor)
    {
        return Ok((device, queue, Some(alignment)));
    }
    let (device, queue) = pollster::block_on(adapter.request_device(descriptor))?;
    Ok((device, queue, None))
}

#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
use vulkan::import;

#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn import(_: &Device, _: SlabGuard, _: u64) -> Option<wgpu::Buffer> {
    None
}

/// Slabs that a backend has imported.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    slabs: HashMap<usize, (SlabGuard, Mem)>,
    /// The driver refused one.
    is_off: bool,
}

/// An expert in an imported slab.
#[derive(Clone, Debug)]
pub(crate) struct Lying {
    pub(crate) mem: Mem,
    /// First byte of each of its extents.
    starts: Vec<usize>,
}

impl Imports {
    /// Where the device reads an expert; `None` where it cannot.
    pub(crate) fn find(&mut self, context: &Context, expert: &Expert) -> Option<Lying> {
        let ExpertMemory::Owned { buf, starts } = &expert.memory else { return None };
        let alignment = context.slab_alignment.filter(|_| !self.is_off)?;
        let mem = match self.slabs.get(&buf.slab_id()) {
            Some((_, mem)) => mem.clone(),
            None => {
                let guard = buf.guard();
                // Drivers may take what they import as used, and a slab's end is not: it
                // is shorter than the buffers, which are alike.
                let used = guard.bytes() / buf.len() * buf.len();
                let bytes = (used as u64).next_multiple_of(alignment);
                let first = guard.first().addr().get() as u64;
                let is_suited = first.is_multiple_of(alignment)
                    && bytes <= guard.bytes() as u64
                    && bytes <= context.max_binding_bytes();
                if !is_suited {
                    return None;
                }
                let Some(buffer) = import(&context.device, guard.clone(), bytes) else {
                    self.is_off = true;
                    return None;
                };
                let mem = Mem::new(buffer);
                self.slabs.insert(buf.slab_id(), (guard, mem.clone()));
                mem
            }
        };
        let first = buf.offset_in_slab();
        if (first + buf.len()) as u64 > mem.bytes() {
            return None;
        }
        Some(Lying { mem, starts: starts.iter().map(|it| first + it).collect() })
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.slabs.values().map(|it| it.1.bytes()).sum()
    }

    /// Takes out the slabs that the store has given up.
    pub(crate) fn take_unused(&mut self) -> Vec<Mem> {
        self.slabs.extract_if(|_, it| it.0.is_unused()).map(|(_, (_, mem))| mem).collect()
    }
}

impl Lying {
    /// First word of some of the expert's bytes, where they begin with one.
    pub(crate) fn word(&self, span: PartSpan) -> Option<u32> {
        let at = self.starts.get(span.extent)? + span.offset;
        let word = u32::try_from(at / 4).ok();
        word.filter(|_| at.is_multiple_of(4))
    }
}
