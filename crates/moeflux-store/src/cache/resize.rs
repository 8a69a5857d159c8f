//! A budget that changes while requests run.

use std::mem;
use std::sync::Arc;

use moeflux_core::{Expert, ExpertMemory};

use super::entry::Awaited;
use super::{CacheState, Entry};
use crate::queue::Priority;

impl CacheState {
    /// Sets the number of slots. Experts that no consumer holds are evicted at once, the others as
    /// soon as they are dropped and a read ends.
    pub(crate) fn resize(&mut self, n_slots: usize) {
        let Some(slots) = &mut self.slots else { return };
        slots.set_n_slots(n_slots);
        self.shrink();
    }

    /// Brings the number of slots nearer to the budget: evicts experts and frees slabs.
    pub(crate) fn shrink(&mut self) {
        if self.is_over() {
            self.queue.cancel_prefetches();
        }
        for awaited in [Awaited::Stay, Awaited::MayLeave] {
            while self.is_over() {
                let Some(buf) = self.evict(Priority::Demand, awaited) else { break };
                self.release(Some(buf));
            }
        }
        if self.is_over() {
            self.take_back_queued();
        }
        if self.has_surplus() {
            self.empty_slabs();
        }
    }

    /// Whether more slots exist than the budget allows.
    pub(crate) fn has_surplus(&self) -> bool {
        self.slots.as_ref().is_some_and(|slot| slot.has_surplus())
    }

    /// Whether more slots are in use than the budget allows.
    pub(crate) fn is_over(&self) -> bool {
        self.slots.as_ref().is_some_and(|slot| slot.is_over())
    }

    /// Bytes of all slots that exist.
    pub(crate) fn made_bytes(&self) -> u64 {
        self.slots.as_ref().map_or(0, |slot| slot.made_bytes())
    }

    /// Takes slots back from reads that have not begun. Their requests start the reads again as
    /// soon as they find a slot.
    fn take_back_queued(&mut self) {
        for job in self.queue.cancel_demands(|_| true) {
            let entry = mem::replace(&mut self.entries[job.target.ordinal.idx()], Entry::Absent);
            if let Entry::Coming { waiters, .. } = entry {
                for waiter in waiters {
                    let Some(pending) = self.requests.get_mut(&waiter.ticket) else { continue };
                    pending.n_coming -= 1;
                    pending.unissued.push_back((waiter.index, job.target));
                }
            }
            self.predictor.clear_prediction(job.target.key);
            self.release(job.buf);
        }
    }

    /// Frees surplus slabs. Experts in them move to slots of other slabs: a copy costs a small part
    /// of the time to read them again.
    fn empty_slabs(&mut self) {
        let Some(slots) = &mut self.slots else { return };
        let surplus = slots.surplus_slabs();
        if surplus.is_empty() {
            return;
        }
        for entry in &mut self.entries {
            let Entry::Resident { expert, .. } = entry else { continue };
            let Some(moved) = Arc::get_mut(expert) else { continue };
            let Expert { memory: ExpertMemory::Owned { buf, .. }, .. } = moved else { continue };
            if surplus.iter().all(|slab| slab.0 != buf.slab_id()) {
                continue;
            }
            let Some(mut target) = slots.take_outside(&surplus) else { break };
            let n_bytes = target.len().min(buf.len());
            target[..n_bytes].copy_from_slice(&buf[..n_bytes]);
            slots.give_back(mem::replace(buf, target));
        }
        for (slab, _) in surplus {
            slots.unmake(slab);
        }
    }
}
