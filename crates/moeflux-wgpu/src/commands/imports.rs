//! Slabs in which the store has experts, which the device reads in the memory of the host. One is
//! imported when one of its experts is first needed, and released when the store has freed it.
//!
//! Invariant: an expert that a recorded kernel reads is referenced until the device has run the
//! kernel; its bytes are not written meanwhile.

use std::collections::HashMap;

use moeflux_core::{Expert, ExpertMemory, PartSpan, SlabGuard};

use crate::device::buffer::Mem;
use crate::device::context::Context;
use crate::device::imports::{self, PinnedSlab};

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
    _pinned: PinnedSlab,
}

/// An expert in an imported slab.
#[derive(Clone, Debug)]
pub(crate) struct ImportedRange {
    pub(crate) mem: Mem,
    /// First byte of each of its extents.
    starts: Vec<usize>,
}

impl Imports {
    /// Where the device reads an expert; `None` where it cannot.
    pub(crate) fn find(&mut self, context: &Context, expert: &Expert) -> Option<ImportedRange> {
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
                let imported = imports::import(&context.device, guard.clone(), bytes);
                let Some((buffer, pinned)) = imported else {
                    self.is_off = true;
                    return None;
                };
                let mem = Mem::new(buffer);
                let slab = Slab { mem: mem.clone(), guard, _pinned: pinned };
                self.slabs.insert(buf.slab_id(), slab);
                mem
            }
        };
        let first = buf.offset_in_slab();
        if (first + buf.len()) as u64 > mem.bytes() {
            return None;
        }
        Some(ImportedRange { mem, starts: starts.iter().map(|start| first + start).collect() })
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.slabs.values().map(|slab| slab.mem.bytes()).sum()
    }

    /// Takes out the slabs that the store has given up.
    pub(crate) fn take_unused(&mut self) -> Vec<Mem> {
        self.slabs.extract_if(|_, slab| slab.guard.is_unused()).map(|(_, slab)| slab.mem).collect()
    }
}

impl ImportedRange {
    /// First word of some of the expert's bytes, where they begin with one.
    pub(crate) fn word(&self, span: PartSpan) -> Option<u32> {
        let at = self.starts.get(span.extent)? + span.offset;
        let word = u32::try_from(at / 4).ok();
        word.filter(|_| at.is_multiple_of(4))
    }
}
