//! The slots of the cache, allocated when they are first needed.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use moeflux_core::{HostBuf, OutOfMemory};

use crate::SlotAlloc;
use crate::policy::Policy;

/// Invariant: a buffer that was allocated and not freed is in exactly one place: in `free`, in a
/// resident expert, or with a read.
pub(crate) struct Slots {
    alloc: SlotAlloc,
    slot_bytes: usize,
    /// Number of slots that the budget allows.
    n_slots: usize,
    n_made: usize,
    /// Number of buffers allocated from each slab, by slab id.
    slabs: HashMap<usize, usize>,
    /// The slab of the last allocated buffer; the allocator may have memory left in it.
    newest: Option<usize>,
    free: Vec<HostBuf>,
    /// The failed allocation that made the budget smaller.
    refusal: Option<OutOfMemory>,
    pub(crate) policy: Box<dyn Policy>,
}

impl Slots {
    pub(crate) fn new(
        alloc: SlotAlloc,
        slot_bytes: usize,
        n_slots: usize,
        policy: Box<dyn Policy>,
    ) -> Slots {
        let (slabs, newest, free, refusal) = (HashMap::new(), None, Vec::new(), None);
        Slots { alloc, slot_bytes, n_slots, n_made: 0, slabs, newest, free, refusal, policy }
    }

    pub(crate) fn n_slots(&self) -> usize {
        self.n_slots
    }

    /// Sets the number of slots that the budget allows. More may stay in use for a while.
    pub(crate) fn set_n_slots(&mut self, n_slots: usize) {
        self.n_slots = n_slots;
    }

    /// Bytes of all buffers that exist.
    pub(crate) fn made_bytes(&self) -> u64 {
        self.n_made as u64 * self.slot_bytes as u64
    }

    /// Whether more buffers are in use than the budget allows.
    pub(crate) fn is_over(&self) -> bool {
        self.n_used() > self.n_slots
    }

    /// Whether more buffers exist than the budget allows.
    pub(crate) fn has_surplus(&self) -> bool {
        self.n_made > self.n_slots
    }

    fn n_used(&self) -> usize {
        self.n_made - self.free.len()
    }

    /// The failed allocation that made the budget smaller, if the system gave no memory.
    pub(crate) fn refusal(&self) -> Option<OutOfMemory> {
        self.refusal
    }

    /// A free buffer, or a new one if the budget allows it. If the system gives no memory, the
    /// budget shrinks to the buffers that exist.
    pub(crate) fn take(&mut self) -> Option<HostBuf> {
        if self.n_used() >= self.n_slots {
            return None;
        }
        if let Some(buf) = self.free.pop() {
            return Some(buf);
        }
        let buf = match (self.alloc)(self.slot_bytes) {
            Ok(buf) => buf,
            Err(err) => {
                self.refusal = Some(err);
                self.n_slots = self.n_made;
                return None;
            }
        };
        assert!(buf.len() >= self.slot_bytes, "slot of {} bytes", buf.len());
        self.n_made += 1;
        self.newest = Some(buf.slab_id());
        *self.slabs.entry(buf.slab_id()).or_default() += 1;
        Some(buf)
    }

    pub(crate) fn give_back(&mut self, buf: HostBuf) {
        self.free.push(buf);
    }

    /// Slabs that the budget does not need, each with the number of its buffers in use; the easiest
    /// to empty come first. The newest slab is left out, because the allocator may still hold a
    /// part of it.
    pub(crate) fn surplus_slabs(&self) -> Vec<(usize, usize)> {
        let mut used = self.slabs.clone();
        for buf in &self.free {
            *used.entry(buf.slab_id()).or_default() -= 1;
        }
        let mut slabs: Vec<(usize, usize)> = used.into_iter().collect();
        slabs.retain(|slab| Some(slab.0) != self.newest);
        // With small slabs first, a surplus could be left that no other slab fits.
        slabs.sort_by_key(|&(slab, n_used)| (n_used, Reverse(self.slabs[&slab]), slab));
        let mut n_surplus = self.n_made.saturating_sub(self.n_slots);
        slabs.retain(|slab| {
            let n_bufs = self.slabs[&slab.0];
            let fits = n_bufs <= n_surplus;
            n_surplus -= if fits { n_bufs } else { 0 };
            fits
        });
        slabs
    }

    /// A free buffer that belongs to none of `slabs`.
    pub(crate) fn take_outside(&mut self, slabs: &[(usize, usize)]) -> Option<HostBuf> {
        let is_outside = |buf: &HostBuf| slabs.iter().all(|slab| slab.0 != buf.slab_id());
        let found = self.free.iter().position(is_outside)?;
        Some(self.free.swap_remove(found))
    }

    /// Frees a slab if all its buffers are free.
    pub(crate) fn unmake(&mut self, slab: usize) {
        let n_free = self.free.iter().filter(|buf| buf.slab_id() == slab).count();
        if self.slabs.get(&slab) == Some(&n_free) {
            self.free.retain(|buf| buf.slab_id() != slab);
            self.slabs.remove(&slab);
            self.n_made -= n_free;
        }
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
