//! Room for a record: free slots, and experts that leave theirs.

use std::mem;
use std::sync::Arc;

use moeflux_core::{Expert, ExpertMemory, HostBuf};

use super::{Desk, Entry};
use crate::queue::{Job, Urgency};

impl Desk {
    /// Memory for one record, at the expense of predictions and of experts
    /// that nobody holds. `Some(None)` when files are mapped.
    pub(super) fn vacate(&mut self, urgency: Urgency) -> Option<Option<HostBuf>> {
        let Some(slots) = &mut self.slots else { return Some(None) };
        if let Some(buf) = slots.take() {
            return Some(Some(buf));
        }
        if urgency == Urgency::Demand
            && let Some(job) = self.queue.cancel_prefetch()
        {
            self.withdraw(job);
            return self.slots.as_mut()?.take().map(Some);
        }
        self.evict().map(Some)
    }

    pub(super) fn evict(&mut self) -> Option<HostBuf> {
        let slots = self.slots.as_mut()?;
        let entries = &mut self.entries;
        let victim = slots.policy.victim(&|it| match &entries[it.idx()] {
            Entry::Resident { expert, .. } => Arc::strong_count(expert) == 1,
            _ => false,
        })?;
        let entry = mem::replace(&mut entries[victim.idx()], Entry::Absent);
        let Entry::Resident { expert, holder, is_predicted } = entry else {
            unreachable!("a victim is resident");
        };
        match Arc::try_unwrap(expert) {
            Ok(Expert { memory: ExpertMemory::Owned { buf, .. }, .. }) => {
                slots.policy.removed(victim);
                self.counts.evictions += 1;
                self.counts.resident -= 1;
                Some(buf)
            }
            Ok(_) => unreachable!("slots hold no mapped experts"),
            // Somebody upgraded a weak reference a moment ago.
            Err(expert) => {
                entries[victim.idx()] = Entry::Resident { expert, holder, is_predicted };
                None
            }
        }
    }

    /// Undoes the start of a job that no reader has taken.
    pub(super) fn withdraw(&mut self, job: Job) {
        self.entries[job.target.ordinal.idx()] = Entry::Absent;
        self.predictor.uncover(job.target.key);
        self.release(job.buf);
    }

    pub(super) fn release(&mut self, buf: Option<HostBuf>) {
        if let (Some(slots), Some(buf)) = (&mut self.slots, buf) {
            slots.give_back(buf);
        }
    }
}
