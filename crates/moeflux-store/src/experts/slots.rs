//! The slots of the cache, allocated when they are first needed, and which expert leaves its slot
//! for another.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use moeflux_core::{HostBuf, LayerIdx, OutOfMemory};

use super::plan::{Ordinal, Target};
use super::policy::Policy;
use super::queue::Priority;
use crate::SlotAlloc;

/// Invariant: a buffer that was allocated and not freed is in exactly one place: in `free`, in a
/// resident expert, or with a read.
pub(super) struct Slots {
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
    pub(super) policy: Box<dyn Policy>,
    /// Resident experts that were predicted for a layer that has not been requested yet, the
    /// likeliest of each layer first. They are not in the policy, so that it cannot choose them for
    /// eviction.
    expected: Vec<Target>,
}

impl Slots {
    pub(super) fn new(
        alloc: SlotAlloc,
        slot_bytes: usize,
        n_slots: usize,
        policy: Box<dyn Policy>,
    ) -> Slots {
        let (slabs, newest, free, refusal) = (HashMap::new(), None, Vec::new(), None);
        let (n_made, expected) = (0, Vec::new());
        Slots { alloc, slot_bytes, n_slots, n_made, slabs, newest, free, refusal, policy, expected }
    }

    pub(super) fn n_slots(&self) -> usize {
        self.n_slots
    }

    /// Sets the number of slots that the budget allows. More may stay in use for a while.
    pub(super) fn set_n_slots(&mut self, n_slots: usize) {
        self.n_slots = n_slots;
    }

    /// Bytes of all buffers that exist.
    pub(super) fn made_bytes(&self) -> u64 {
        self.n_made as u64 * self.slot_bytes as u64
    }

    /// Whether more buffers are in use than the budget allows.
    pub(super) fn is_over(&self) -> bool {
        self.n_used() > self.n_slots
    }

    /// Whether more buffers exist than the budget allows.
    pub(super) fn has_surplus(&self) -> bool {
        self.n_made > self.n_slots
    }

    fn n_used(&self) -> usize {
        self.n_made - self.free.len()
    }

    /// The failed allocation that made the budget smaller, if the system gave no memory.
    pub(super) fn refusal(&self) -> Option<OutOfMemory> {
        self.refusal
    }

    /// A free buffer, or a new one if the budget allows it. If the system gives no memory, the
    /// budget shrinks to the buffers that exist.
    pub(super) fn take(&mut self) -> Option<HostBuf> {
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

    pub(super) fn give_back(&mut self, buf: HostBuf) {
        self.free.push(buf);
    }

    /// Experts that reads ahead brought for layers that have not been requested yet.
    pub(super) fn n_expected(&self) -> usize {
        self.expected.len()
    }

    /// Adds an expert that became resident. If it is expected, the policy cannot choose it until it
    /// is [settled](Slots::settle).
    pub(super) fn admit(&mut self, target: Target, is_expected: bool) {
        if is_expected {
            self.expected.push(target);
        } else {
            self.policy.inserted(target.ordinal);
        }
    }

    /// Protects a resident expert until it is settled.
    pub(super) fn expect(&mut self, target: Target) {
        self.policy.removed(target.ordinal);
        self.expected.push(target);
    }

    /// Removes and returns the expected experts of a layer, or of all.
    pub(super) fn settle(&mut self, layer: Option<LayerIdx>) -> Vec<Target> {
        let is_settled = |target: &mut Target| layer.is_none_or(|layer| target.key.layer == layer);
        self.expected.extract_if(.., is_settled).collect()
    }

    /// The expert that leaves its slot, among those for which `may_leave` is true: first one that the
    /// policy chooses, and for a request also the expected one that is the least likely to be
    /// requested.
    pub(super) fn victim(
        &mut self,
        priority: Priority,
        may_leave: &dyn Fn(Ordinal) -> bool,
    ) -> Option<Ordinal> {
        if let Some(victim) = self.policy.victim(may_leave) {
            return Some(victim);
        }
        if priority != Priority::Demand {
            return None;
        }
        let at = self.expected.iter().rposition(|target| may_leave(target.ordinal))?;
        Some(self.expected.remove(at).ordinal)
    }

    /// Slabs that the budget does not need, each with the number of its buffers in use; the easiest
    /// to empty come first, given the number of experts of each slab that can move. The newest slab is
    /// left out, because the allocator may still hold a part of it.
    pub(super) fn surplus_slabs(&self, movable: &HashMap<usize, usize>) -> Vec<(usize, usize)> {
        let mut used = self.slabs.clone();
        for buf in &self.free {
            *used.entry(buf.slab_id()).or_default() -= 1;
        }
        let mut slabs: Vec<(usize, usize)> = used.into_iter().collect();
        slabs.retain(|slab| Some(slab.0) != self.newest);
        let n_stuck =
            |slab, n_used: usize| n_used.saturating_sub(movable.get(&slab).copied().unwrap_or(0));
        // With small slabs first, a surplus could be left that no other slab fits.
        slabs.sort_by_key(|&(slab, n_used)| {
            (n_stuck(slab, n_used), n_used, Reverse(self.slabs[&slab]), slab)
        });
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
    pub(super) fn take_outside(&mut self, slabs: &[(usize, usize)]) -> Option<HostBuf> {
        let is_outside = |buf: &HostBuf| slabs.iter().all(|slab| slab.0 != buf.slab_id());
        let found = self.free.iter().position(is_outside)?;
        Some(self.free.swap_remove(found))
    }

    /// Frees a slab if all its buffers are free.
    pub(super) fn unmake(&mut self, slab: usize) {
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
