//! Slots for records: free ones, and those of evicted experts.

use std::mem;
use std::sync::Arc;

use moeflux_core::{Expert, ExpertMemory, HostBuf, OutOfMemory};

use super::{CacheState, Entry};
use crate::cache::Awaited;
use crate::plan::Ordinal;
use crate::queue::{Job, Priority};
use crate::slots::Slots;

impl CacheState {
    /// Memory for one record: a free slot, or that of an evicted expert that no consumer holds.
    /// Only a request may evict expected experts. `None` if there is no such slot, `Some(None)`
    /// when files are mapped.
    pub(super) fn acquire_slot(&mut self, priority: Priority) -> Option<Option<HostBuf>> {
        let Some(slots) = &mut self.slots else { return Some(None) };
        if let Some(buf) = slots.take() {
            return Some(Some(buf));
        }
        self.evict(priority, Awaited::Stay).map(Some)
    }

    /// The slot allocation that failed, if one did.
    pub(crate) fn refusal(&self) -> Option<OutOfMemory> {
        self.slots.as_ref().and_then(Slots::refusal)
    }

    pub(super) fn evict(&mut self, priority: Priority, awaited: Awaited) -> Option<HostBuf> {
        let entries = mem::take(&mut self.entries);
        let may_leave = |ordinal: Ordinal| match &entries[ordinal.idx()] {
            Entry::Resident { expert, n_awaiting, .. } => {
                Arc::strong_count(expert) == 1 && (*n_awaiting == 0 || awaited == Awaited::MayLeave)
            }
            _ => false,
        };
        let is_expected = |ordinal: Ordinal| {
            matches!(&entries[ordinal.idx()], Entry::Resident { is_expected: true, .. })
        };
        let mut victim = self
            .device_copies
            .spare()
            .find(|ordinal| may_leave(*ordinal) && !is_expected(*ordinal));
        if victim.is_none() {
            victim = self.slots.as_ref().and_then(|slot| slot.policy.victim(&may_leave));
        }
        if victim.is_none() && priority == Priority::Demand {
            victim = self.evict_prefetched(may_leave);
        }
        self.entries = entries;
        let victim = victim?;
        let slots = self.slots.as_mut()?;
        let entry = mem::replace(&mut self.entries[victim.idx()], Entry::Absent);
        let Entry::Resident { expert, holder, is_predicted, n_awaiting, .. } = entry else {
            unreachable!("a victim is resident");
        };
        match Arc::try_unwrap(expert) {
            Ok(Expert { memory: ExpertMemory::Owned { buf, .. }, .. }) => {
                slots.policy.removed(victim);
                self.device_copies.evict(victim);
                self.counts.evictions += 1;
                self.counts.resident -= 1;
                Some(buf)
            }
            Ok(_) => unreachable!("slots hold no mapped experts"),
            // Another thread upgraded a weak reference after `may_leave` was evaluated.
            Err(expert) => {
                slots.policy.inserted(victim);
                self.entries[victim.idx()] = Entry::Resident {
                    expert,
                    holder,
                    is_predicted,
                    is_expected: false,
                    n_awaiting,
                };
                None
            }
        }
    }

    /// Undoes the start of a job that no reader has taken.
    pub(super) fn cancel(&mut self, job: Job) {
        self.entries[job.target.ordinal.idx()] = Entry::Absent;
        self.predictor.clear_prediction(job.target.key);
        self.release(job.buf);
    }

    pub(super) fn release(&mut self, buf: Option<HostBuf>) {
        if let (Some(slots), Some(buf)) = (&mut self.slots, buf) {
            slots.give_back(buf);
        }
    }
}
