//! Where each expert is: absent, on its way, or resident, in a slot unless files are mapped.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::thread::ThreadId;

use moeflux_core::{Expert, ExpertMemory, HostBuf, LayerIdx};

use super::device_copies::DeviceCopies;
use super::plan::{Ordinal, Target};
use super::policy::Policy;
use super::queue::Priority;
use super::slots::Slots;

/// Identifies an unfinished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestId(pub(super) u64);

/// A place in a request that waits for an expert.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) request: RequestId,
    /// Index of the expert in the request.
    pub(super) index: usize,
}

#[derive(Debug)]
enum Entry {
    Absent,
    Coming(Coming),
    Resident(Resident),
}

/// An expert whose read is queued or in progress.
#[derive(Debug, Default)]
pub(super) struct Coming {
    pub(super) waiters: Vec<Waiter>,
    /// The request that the read was started for; `None` if it was predicted.
    pub(super) starter: Option<RequestId>,
    /// Whether a prediction started the read and no request has asked for the expert since.
    pub(super) is_predicted: bool,
    /// Whether the expert was predicted for a layer that has not been requested yet.
    pub(super) is_expected: bool,
}

#[derive(Debug)]
struct Resident {
    expert: Arc<Expert>,
    /// The only thread that may hold the expert; `None` if no thread got it yet, or if several
    /// threads may hold it.
    holder: Option<ThreadId>,
    /// Whether a prediction started the read and no request has asked for the expert since.
    is_predicted: bool,
    /// Whether the expert is one of those that its slots expect a request for.
    is_expected: bool,
    /// Requests that have still to collect the expert. Until then only a shrinking budget
    /// evicts it.
    n_awaiting: u32,
}

impl Resident {
    fn give_to(&mut self, taker: ThreadId) -> Arc<Expert> {
        let is_held = Arc::strong_count(&self.expert) > 1;
        let is_shared = is_held && self.holder != Some(taker);
        self.holder = (!is_shared).then_some(taker);
        Arc::clone(&self.expert)
    }

    fn may_leave(&self, awaited: Awaited) -> bool {
        Arc::strong_count(&self.expert) == 1
            && (self.n_awaiting == 0 || awaited == Awaited::MayLeave)
    }
}

/// Whether experts that a request has still to collect may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Stay,
    /// Only for a budget that shrinks: the request has to read them again.
    MayLeave,
}

/// How a request gets an expert that is not absent.
#[derive(Debug)]
pub(super) enum Joined {
    /// Its read is queued or in progress.
    Coming {
        /// Whether no request waited for it before.
        is_first: bool,
    },
    Pinned(Arc<Expert>),
    /// It is resident and stays until it is [collected](Residents::collect).
    Awaited,
}

/// All experts.
#[derive(Debug)]
pub(super) struct Residents {
    /// Indexed by ordinal.
    entries: Vec<Entry>,
    /// `None` when files are mapped: then no expert is ever evicted.
    pub(super) slots: Option<Slots>,
    device_copies: DeviceCopies,
    n_resident: usize,
    /// Experts that were evicted since the last reset.
    n_evicted: u64,
}

impl Residents {
    pub(super) fn new(n_experts: usize, slots: Option<Slots>) -> Residents {
        let entries = (0..n_experts).map(|_| Entry::Absent).collect();
        let device_copies = DeviceCopies::default();
        Residents { entries, slots, device_copies, n_resident: 0, n_evicted: 0 }
    }

    pub(super) fn n_resident(&self) -> usize {
        self.n_resident
    }

    pub(super) fn n_evicted(&self) -> u64 {
        self.n_evicted
    }

    pub(super) fn are_all_resident(&self) -> bool {
        self.n_resident == self.entries.len()
    }

    pub(super) fn is_absent(&self, target: Target) -> bool {
        matches!(self.entries[target.ordinal.idx()], Entry::Absent)
    }

    pub(super) fn is_resident(&self, target: Target) -> bool {
        matches!(self.entries[target.ordinal.idx()], Entry::Resident(_))
    }

    pub(super) fn policy(&mut self) -> Option<&mut dyn Policy> {
        Some(&mut *self.slots.as_mut()?.policy)
    }

    /// Starts counting evictions and used predictions anew. Predictions are counted only of reads
    /// since then, so that those used never exceed those read.
    pub(super) fn reset_counts(&mut self) {
        self.n_evicted = 0;
        for entry in &mut self.entries {
            match entry {
                Entry::Coming(Coming { is_predicted, .. })
                | Entry::Resident(Resident { is_predicted, .. }) => *is_predicted = false,
                Entry::Absent => {}
            }
        }
    }

    /// Has a request wait for an expert that is on its way, or gives it an expert that is resident, at
    /// once if it `may_pin`. Also returns whether a prediction brought the expert and this is the first
    /// request for it. `None` if the expert is absent.
    pub(super) fn join(
        &mut self,
        target: Target,
        waiter: Waiter,
        owner: ThreadId,
        may_pin: bool,
    ) -> Option<(Joined, bool)> {
        match &mut self.entries[target.ordinal.idx()] {
            Entry::Absent => None,
            Entry::Coming(coming) => {
                let is_first = coming.waiters.is_empty();
                coming.is_expected = false;
                coming.waiters.push(waiter);
                Some((Joined::Coming { is_first }, mem::take(&mut coming.is_predicted)))
            }
            Entry::Resident(resident) => {
                if mem::take(&mut resident.is_expected)
                    && let Some(slots) = &mut self.slots
                {
                    slots.policy.inserted(target.ordinal);
                }
                let was_predicted = mem::take(&mut resident.is_predicted);
                if may_pin {
                    return Some((Joined::Pinned(resident.give_to(owner)), was_predicted));
                }
                resident.n_awaiting += 1;
                Some((Joined::Awaited, was_predicted))
            }
        }
    }

    /// Gives an expert to a request that awaits it; `None` if it was evicted.
    pub(super) fn collect(&mut self, target: Target, owner: ThreadId) -> Option<Arc<Expert>> {
        let Entry::Resident(resident) = &mut self.entries[target.ordinal.idx()] else {
            return None;
        };
        resident.n_awaiting = resident.n_awaiting.saturating_sub(1);
        Some(resident.give_to(owner))
    }

    /// A request does not collect an expert that it awaits.
    pub(super) fn give_up(&mut self, target: Target) {
        if let Entry::Resident(resident) = &mut self.entries[target.ordinal.idx()] {
            resident.n_awaiting = resident.n_awaiting.saturating_sub(1);
        }
    }

    /// Notes that the read of an absent expert is queued.
    pub(super) fn start(&mut self, target: Target, coming: Coming) {
        self.entries[target.ordinal.idx()] = Entry::Coming(coming);
    }

    /// Those who wait for an expert that is on its way.
    pub(super) fn waiters(&self, target: Target) -> &[Waiter] {
        match &self.entries[target.ordinal.idx()] {
            Entry::Coming(coming) => &coming.waiters,
            Entry::Absent | Entry::Resident(_) => &[],
        }
    }

    /// Makes an expert that was on its way absent, because its read ended or does not begin.
    ///
    /// # Panics
    /// If it was not on its way.
    pub(super) fn stop(&mut self, target: Target) -> Coming {
        match mem::replace(&mut self.entries[target.ordinal.idx()], Entry::Absent) {
            Entry::Coming(coming) => coming,
            Entry::Absent | Entry::Resident(_) => {
                unreachable!("{} was read without being on its way", target.key)
            }
        }
    }

    /// Makes an expert resident that was read, for `n_awaiting` requests.
    pub(super) fn admit(
        &mut self,
        target: Target,
        expert: Arc<Expert>,
        coming: &Coming,
        n_awaiting: u32,
    ) {
        let is_predicted = coming.is_predicted;
        let is_expected = coming.is_expected && self.slots.is_some();
        if let Some(slots) = &mut self.slots {
            slots.admit(target, is_expected);
        }
        self.n_resident += 1;
        self.device_copies.admit(target.ordinal);
        let resident = Resident { expert, holder: None, is_predicted, is_expected, n_awaiting };
        self.entries[target.ordinal.idx()] = Entry::Resident(resident);
    }

    /// Protects an expert from eviction, if it is resident, until its layer is requested. A request
    /// that finds no other slot may still evict it.
    pub(super) fn expect(&mut self, target: Target) {
        if let Entry::Resident(resident) = &mut self.entries[target.ordinal.idx()]
            && let Some(slots) = &mut self.slots
            && !mem::replace(&mut resident.is_expected, true)
        {
            slots.expect(target);
        }
    }

    /// Ends the protection of a layer's expected experts, or of all: from now on the policy may
    /// choose them for eviction.
    pub(super) fn settle(&mut self, layer: Option<LayerIdx>) {
        let Some(slots) = &mut self.slots else { return };
        for target in slots.settle(layer) {
            if let Entry::Resident(resident) = &mut self.entries[target.ordinal.idx()]
                && mem::take(&mut resident.is_expected)
            {
                slots.policy.inserted(target.ordinal);
            }
        }
    }

    /// Does not protect an expert that is on its way once it is resident.
    pub(super) fn settle_coming(&mut self, target: Target) {
        if let Entry::Coming(coming) = &mut self.entries[target.ordinal.idx()] {
            coming.is_expected = false;
        }
    }

    /// Records that a device got a copy of an expert, or dropped it.
    pub(super) fn set_on_device(&mut self, target: Target, is_there: bool) {
        let is_resident = self.is_resident(target);
        self.device_copies.set(target.ordinal, is_there, is_resident);
    }

    /// Whether a device has a copy of the expert.
    pub(super) fn is_on_device(&self, target: Target) -> bool {
        self.device_copies.has(target.ordinal)
    }

    /// Whether no other thread holds an expert, as far as the recorded holders show.
    pub(super) fn are_all_held_by(&self, thread: ThreadId) -> bool {
        self.entries.iter().all(|entry| match entry {
            Entry::Resident(resident) => {
                resident.holder == Some(thread) || resident.may_leave(Awaited::Stay)
            }
            Entry::Absent | Entry::Coming(_) => true,
        })
    }

    /// Memory for one record: a free slot, or that of an evicted expert that no consumer holds.
    /// Only a request may evict expected experts. `None` if there is no such slot, `Some(None)`
    /// when files are mapped.
    pub(super) fn acquire(&mut self, priority: Priority) -> Option<Option<HostBuf>> {
        let Some(slots) = &mut self.slots else { return Some(None) };
        let free = slots.take();
        free.or_else(|| self.evict(priority, Awaited::Stay)).map(Some)
    }

    pub(super) fn release(&mut self, buf: Option<HostBuf>) {
        if let (Some(slots), Some(buf)) = (&mut self.slots, buf) {
            slots.give_back(buf);
        }
    }

    /// Evicts an expert: first one that a device has a copy of, then what its slots choose.
    fn evict(&mut self, priority: Priority, awaited: Awaited) -> Option<HostBuf> {
        let slots = self.slots.as_mut()?;
        let entries = &self.entries;
        let resident = |ordinal: Ordinal| match &entries[ordinal.idx()] {
            Entry::Resident(resident) => Some(resident),
            Entry::Absent | Entry::Coming(_) => None,
        };
        let may_leave = |ordinal: Ordinal| {
            resident(ordinal).is_some_and(|resident| resident.may_leave(awaited))
        };
        let is_spare = |ordinal: &Ordinal| {
            let is_expected = resident(*ordinal).is_some_and(|resident| resident.is_expected);
            may_leave(*ordinal) && !is_expected
        };
        let spare = self.device_copies.spare().find(is_spare);
        let victim = spare.or_else(|| slots.victim(priority, &may_leave))?;
        let entry = mem::replace(&mut self.entries[victim.idx()], Entry::Absent);
        let Entry::Resident(resident) = entry else { unreachable!("a victim is resident") };
        match Arc::try_unwrap(resident.expert) {
            Ok(Expert { memory: ExpertMemory::Owned { buf, .. }, .. }) => {
                slots.policy.removed(victim);
                self.device_copies.evict(victim);
                self.n_evicted += 1;
                self.n_resident -= 1;
                Some(buf)
            }
            Ok(_) => unreachable!("slots hold no mapped experts"),
            // Another thread upgraded a weak reference after `may_leave` was evaluated.
            Err(expert) => {
                slots.policy.inserted(victim);
                let resident = Resident { expert, is_expected: false, ..resident };
                self.entries[victim.idx()] = Entry::Resident(resident);
                None
            }
        }
    }

    /// Evicts every expert that no consumer holds. Of mapped files, forgets all.
    pub(super) fn clear(&mut self) {
        while let Some(buf) = self.evict(Priority::Demand, Awaited::Stay) {
            self.release(Some(buf));
        }
        if self.slots.is_none() {
            let all = self.entries.iter_mut();
            let resident = all.filter(|entry| matches!(entry, Entry::Resident(_)));
            resident.for_each(|entry| *entry = Entry::Absent);
            self.n_resident = 0;
        }
    }

    /// Whether more slots are in use than the budget allows.
    pub(super) fn is_over(&self) -> bool {
        self.slots.as_ref().is_some_and(Slots::is_over)
    }

    /// Whether more slots exist than the budget allows.
    pub(super) fn has_surplus(&self) -> bool {
        self.slots.as_ref().is_some_and(Slots::has_surplus)
    }

    /// Evicts experts that no consumer holds as long as too many slots are in use.
    pub(super) fn shed(&mut self) {
        for awaited in [Awaited::Stay, Awaited::MayLeave] {
            while self.is_over() {
                let Some(buf) = self.evict(Priority::Demand, awaited) else { break };
                self.release(Some(buf));
            }
        }
    }

    /// Frees surplus slabs. Experts in them move to slots of other slabs: a copy costs a small part
    /// of the time to read them again.
    pub(super) fn empty_slabs(&mut self) {
        let Some(slots) = self.slots.as_mut().filter(|slots| slots.has_surplus()) else { return };
        let mut movable: HashMap<usize, usize> = HashMap::new();
        for entry in &mut self.entries {
            if let Some(buf) = movable_buf(entry) {
                *movable.entry(buf.slab_id()).or_default() += 1;
            }
        }
        let surplus = slots.surplus_slabs(&movable);
        if surplus.is_empty() {
            return;
        }
        for entry in &mut self.entries {
            let Some(buf) = movable_buf(entry) else { continue };
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

/// The slot of a resident expert that no consumer holds.
fn movable_buf(entry: &mut Entry) -> Option<&mut HostBuf> {
    let Entry::Resident(Resident { expert, .. }) = entry else { return None };
    match Arc::get_mut(expert)? {
        Expert { memory: ExpertMemory::Owned { buf, .. }, .. } => Some(buf),
        _ => None,
    }
}
