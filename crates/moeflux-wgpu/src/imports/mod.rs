//! The host's memory as the device sees it: slabs in which the store keeps
//! experts, each as a buffer that kernels read, where the interface allows that.
//! Nothing is copied for it. A slab is imported when an expert of it is first
//! wanted, and given back when the store has given it up.
//!
//! Invariant: who records a kernel that reads an expert there keeps the expert
//! until the device has done so; nobody else writes to its bytes meanwhile.

use std::any::Any;
use std::collections::HashMap;

use moeflux_core::{Expert, ExpertMemory, PartSpan, SlabGuard};

use crate::buffer::Mem;
use crate::context::Context;

#[cfg(target_vendor = "apple")]
#[expect(unsafe_code, reason = "memory of the host is shared by raw handles alone")]
mod metal;
#[cfg(not(any(
    windows,
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_vendor = "apple"
)))]
mod none;
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
#[expect(unsafe_code, reason = "memory of the host is shared by raw handles alone")]
mod vulkan;

#[cfg(target_vendor = "apple")]
use metal as interface;
#[cfg(not(any(
    windows,
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_vendor = "apple"
)))]
use none as interface;
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
use vulkan as interface;

pub(crate) use interface::{alignment, open, own_memory};

/// What keeps a slab where the device sees it, if anything has to.
type Pin = Option<Box<dyn Any + Send>>;

/// What an imported slab of so many bytes is made into.
#[cfg(any(
    windows,
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_vendor = "apple"
))]
fn described(size: u64) -> wgpu::BufferDescriptor<'static> {
    wgpu::BufferDescriptor {
        label: Some("experts of the host"),
        size,
        usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    }
}

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

/// Slabs that a backend has imported.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    slabs: HashMap<usize, Slab>,
    /// The driver refused one.
    is_off: bool,
}

#[derive(Debug)]
struct Slab {
    mem: Mem,
    guard: SlabGuard,
    _pin: Pin,
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
            Some(slab) => slab.mem.clone(),
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
                let imported = interface::import(&context.device, guard.clone(), bytes);
                let Some((buffer, pin)) = imported else {
                    self.is_off = true;
                    return None;
                };
                let mem = Mem::new(buffer);
                let slab = Slab { mem: mem.clone(), guard, _pin: pin };
                self.slabs.insert(buf.slab_id(), slab);
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
        self.slabs.values().map(|it| it.mem.bytes()).sum()
    }

    /// Takes out the slabs that the store has given up.
    pub(crate) fn take_unused(&mut self) -> Vec<Mem> {
        self.slabs.extract_if(|_, it| it.guard.is_unused()).map(|(_, it)| it.mem).collect()
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
