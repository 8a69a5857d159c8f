//! Slots of one size: which experts are in them, and which was used least recently.
//!
//! Invariant: a slot is free, or it has exactly one expert, or a caller took it and returns it with
//! `insert` or `put_back`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use moeflux_core::ExpertKey;

use crate::budget::Budget;
use crate::device::SlotMemory;
use crate::packing::Packing;
use crate::slot::{LocatedExpert, Slot, StepStart};

/// Bytes of slabs. Each slab is much larger than the one before, so that most experts are in few
/// slabs: a kernel sees one at a time.
const FIRST_SLAB: usize = 1 << 20;
const SLAB_GROWTH: usize = 16;
pub(crate) const LAST_SLAB: usize = 4 << 30;

/// The smallest slab to allocate where there is no memory for a larger one.
const LEAST_SLAB: usize = 64 << 20;

#[derive(Debug)]
struct Entry<B> {
    located: LocatedExpert<B>,
    /// When it was used, counted in uses.
    used: u64,
}

/// Slots of one size.
#[derive(Debug)]
pub(crate) struct SlotPool<B> {
    slot_bytes: usize,
    free: Vec<Slot<B>>,
    by_key: HashMap<ExpertKey, Entry<B>>,
    /// Experts by the time of their last use.
    by_use: BTreeMap<u64, ExpertKey>,
    next_slab_bytes: usize,
    n_slots: usize,
}

/// A slot that was taken for an expert.
pub(crate) struct Taken<B> {
    pub(crate) slot: Slot<B>,
    /// The expert that left it.
    pub(crate) evicted: Option<ExpertKey>,
}

/// A slab that was allocated.
#[derive(Debug)]
pub(crate) struct Slab<B> {
    pub(crate) buffer: B,
    pub(crate) n_slots: usize,
}

impl<B: Clone> SlotPool<B> {
    /// Slots of `slot_bytes` bytes each.
    pub(crate) fn new(slot_bytes: usize) -> SlotPool<B> {
        SlotPool {
            slot_bytes,
            free: Vec::new(),
            by_key: HashMap::new(),
            by_use: BTreeMap::new(),
            next_slab_bytes: 0,
            n_slots: 0,
        }
    }

    pub(crate) fn holds(&self, key: ExpertKey) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Where an expert is, marked as used.
    pub(crate) fn touch(&mut self, key: ExpertKey, now: u64) -> Option<LocatedExpert<B>> {
        let entry = self.by_key.get_mut(&key)?;
        self.by_use.remove(&entry.used);
        self.by_use.insert(now, key);
        entry.used = now;
        Some(entry.located.clone())
    }

    /// A slot for another expert: a free one, or that of the least recently used expert; `None` where
    /// all experts were used since `since`.
    pub(crate) fn take(&mut self, since: StepStart) -> Option<Taken<B>> {
        if let Some(slot) = self.free.pop() {
            return Some(Taken { slot, evicted: None });
        }
        let (used, key) = self.by_use.first_key_value().map(|(used, key)| (*used, *key))?;
        if used >= since.0 {
            return None;
        }
        self.by_use.remove(&used);
        let slot = self.by_key.remove(&key)?.located.slot;
        Some(Taken { slot, evicted: Some(key) })
    }

    /// Assigns a slot that was taken to an expert.
    pub(crate) fn insert(
        &mut self,
        key: ExpertKey,
        slot: Slot<B>,
        packing: Arc<Packing>,
        now: u64,
    ) -> LocatedExpert<B> {
        let located = LocatedExpert { slot, packing };
        self.by_use.insert(now, key);
        self.by_key.insert(key, Entry { located: located.clone(), used: now });
        located
    }

    /// Returns a slot that was taken and has no expert.
    pub(crate) fn put_back(&mut self, slot: Slot<B>) {
        self.free.push(slot);
    }

    /// Allocates a slab where no slot is free and the budget and the device have the memory.
    pub(crate) fn grow<D: SlotMemory<Buffer = B>>(&mut self, device: &mut D, budget: &mut Budget) {
        if !self.free.is_empty() {
            return;
        }
        let bytes = self.slot_bytes;
        let most = usize::try_from(device.max_buffer_bytes()).unwrap_or(usize::MAX);
        let left = usize::try_from(budget.left()).unwrap_or(usize::MAX);
        let slab_bytes = self.next_slab_bytes.clamp(FIRST_SLAB, LAST_SLAB).min(most).min(left);
        let is_first = self.n_slots == 0;
        let n_slots = (slab_bytes / bytes).max(usize::from(is_first || left >= bytes));
        if n_slots == 0 || (budget.is_exhausted && !is_first) {
            return;
        }
        let slab = if is_first {
            // An op cannot run without a slot.
            let buffer = device.allocate_or_report((n_slots * bytes) as u64);
            buffer.map(|buffer| Slab { buffer, n_slots })
        } else {
            let slab = allocate_slab(device, n_slots, bytes);
            budget.is_exhausted = slab.is_none();
            slab
        };
        let Some(Slab { buffer, n_slots }) = slab else { return };
        budget.take((n_slots * bytes) as u64);
        self.next_slab_bytes = SLAB_GROWTH * slab_bytes.max(FIRST_SLAB);
        self.n_slots += n_slots;
        let slots = (0..n_slots).map(|i| Slot { buffer: buffer.clone(), at: i * bytes });
        self.free.extend(slots.rev());
    }

    /// Where an expert is, not marked as used.
    #[cfg(test)]
    pub(crate) fn peek(&self, key: ExpertKey) -> Option<LocatedExpert<B>> {
        self.by_key.get(&key).map(|entry| entry.located.clone())
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> PoolCounts {
        PoolCounts {
            n_slots: self.n_slots,
            n_free: self.free.len(),
            n_experts: self.by_key.len(),
            n_uses: self.by_use.len(),
        }
    }
}

/// The numbers of a pool that tests compare.
#[cfg(test)]
pub(crate) struct PoolCounts {
    pub(crate) n_slots: usize,
    pub(crate) n_free: usize,
    pub(crate) n_experts: usize,
    pub(crate) n_uses: usize,
}

/// A slab of at most `n_slots` slots of `bytes` bytes each: the number is halved until there is memory
/// or the slab would be small.
pub(crate) fn allocate_slab<D: SlotMemory>(
    device: &D,
    mut n_slots: usize,
    bytes: usize,
) -> Option<Slab<D::Buffer>> {
    loop {
        let len = n_slots * bytes;
        if let Some(buffer) = device.try_allocate(len as u64) {
            return Some(Slab { buffer, n_slots });
        }
        if len / 2 < LEAST_SLAB.max(bytes) {
            return None;
        }
        n_slots /= 2;
    }
}
