//! The buffers of the cache, made when first needed.

use std::fmt;

use moeflux_core::HostBuf;

use crate::SlotAlloc;
use crate::policy::Policy;

/// Invariant: a buffer that was made is free, inside a resident expert, or
/// away with a job, never two of these.
pub(crate) struct Slots {
    alloc: SlotAlloc,
    slot_bytes: usize,
    n_slots: usize,
    n_made: usize,
    free: Vec<HostBuf>,
    pub(crate) policy: Box<dyn Policy>,
}

impl Slots {
    pub(crate) fn new(
        alloc: SlotAlloc,
        slot_bytes: usize,
        n_slots: usize,
        policy: Box<dyn Policy>,
    ) -> Slots {
        Slots { alloc, slot_bytes, n_slots, n_made: 0, free: Vec::new(), policy }
    }

    pub(crate) fn n_slots(&self) -> usize {
        self.n_slots
    }

    /// A buffer that nobody uses, as long as there are any.
    pub(crate) fn take(&mut self) -> Option<HostBuf> {
        if let Some(buf) = self.free.pop() {
            return Some(buf);
        }
        if self.n_made == self.n_slots {
            return None;
        }
        let buf = (self.alloc)(self.slot_bytes);
        assert!(buf.len() >= self.slot_bytes, "slot of {} bytes", buf.len());
        self.n_made += 1;
        Some(buf)
    }

    pub(crate) fn give_back(&mut self, buf: HostBuf) {
        self.free.push(buf);
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("slot_bytes", &self.slot_bytes)
            .field("n_slots", &self.n_slots)
            .field("n_made", &self.n_made)
            .field("n_free", &self.free.len())
            .finish_non_exhaustive()
    }
}
