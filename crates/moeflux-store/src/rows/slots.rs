//! The rows in memory: slots of one size within a budget, and which row leaves.

use std::collections::HashMap;

use moeflux_core::{HostBuf, OutOfMemory, RowBank, RowTable};

use super::hash::BuildNumberHasher;
use super::layout::RowKey;

/// Bytes that the cache takes for each slot besides the row itself.
const SLOT_OVERHEAD: u64 = 72;

/// Bytes of a cache that has room for all rows.
pub fn whole_row_cache_bytes(bank: &RowBank) -> u64 {
    let row_bytes = bank.tables.iter().map(RowTable::row_bytes).max().unwrap_or(0) as u64;
    let n_rows = bank.tables.iter().map(RowTable::rows).fold(0, u64::saturating_add);
    n_rows.saturating_mul(row_bytes + SLOT_OVERHEAD)
}

/// Rows in slots. A slot is reused when its row was neither gathered since the last look at it nor
/// requested for a gather to come (the clock algorithm).
#[derive(Debug)]
pub(super) struct RowSlots {
    bytes: HostBuf,
    slot_bytes: usize,
    n_slots: usize,
    slots: Vec<Slot>,
    by_key: HashMap<RowKey, u32, BuildNumberHasher>,
    /// The slot that is looked at next.
    hand: usize,
    /// Slots whose row was requested and not gathered yet.
    n_expected: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: RowKey,
    len: u32,
    was_used: bool,
    is_expected: bool,
}

impl RowSlots {
    /// A cache of at most `budget` bytes, for rows of at most `row_bytes` bytes.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub(super) fn new(budget: u64, row_bytes: usize) -> Result<RowSlots, OutOfMemory> {
        let n_slots = budget / (row_bytes as u64 + SLOT_OVERHEAD);
        let n_slots = u32::try_from(n_slots).unwrap_or(u32::MAX) as usize;
        Ok(RowSlots {
            bytes: HostBuf::try_zeroed((n_slots * row_bytes).max(1))?,
            slot_bytes: row_bytes,
            n_slots,
            slots: Vec::new(),
            by_key: HashMap::default(),
            hand: 0,
            n_expected: 0,
        })
    }

    pub(super) fn n_slots(&self) -> usize {
        self.n_slots
    }

    pub(super) fn n_resident(&self) -> usize {
        self.slots.len()
    }

    /// Rows that were requested and not gathered yet.
    pub(super) fn n_expected(&self) -> usize {
        self.n_expected
    }

    /// The bytes of a row that a gather takes.
    pub(super) fn take(&mut self, key: RowKey) -> Option<&[u8]> {
        let idx = *self.by_key.get(&key)? as usize;
        let slot = &mut self.slots[idx];
        slot.was_used = true;
        self.n_expected -= usize::from(slot.is_expected);
        slot.is_expected = false;
        let (start, len) = (idx * self.slot_bytes, slot.len as usize);
        Some(&self.bytes[start..start + len])
    }

    /// Whether the row is in the cache; if so, it stays until it is gathered.
    pub(super) fn expect(&mut self, key: RowKey) -> bool {
        let Some(idx) = self.by_key.get(&key) else { return false };
        let slot = &mut self.slots[*idx as usize];
        self.n_expected += usize::from(!slot.is_expected);
        slot.is_expected = true;
        true
    }

    /// The row may leave although it was not gathered.
    pub(super) fn give_up(&mut self, key: RowKey) {
        let Some(idx) = self.by_key.get(&key) else { return };
        let slot = &mut self.slots[*idx as usize];
        self.n_expected -= usize::from(slot.is_expected);
        slot.is_expected = false;
    }

    /// Keeps a row that was read, if a slot is free or can be reused.
    pub(super) fn insert(&mut self, key: RowKey, row: &[u8], is_expected: bool) {
        debug_assert!(!self.by_key.contains_key(&key), "a row is read once");
        let Some(idx) = self.free_slot() else { return };
        let slot = Slot { key, len: row.len() as u32, was_used: !is_expected, is_expected };
        match self.slots.get_mut(idx) {
            Some(old) => *old = slot,
            None => self.slots.push(slot),
        }
        self.n_expected += usize::from(is_expected);
        self.by_key.insert(key, idx as u32);
        self.bytes[idx * self.slot_bytes..][..row.len()].copy_from_slice(row);
    }

    /// The index of a slot that has no row, or whose row leaves; `None` if all rows are expected.
    fn free_slot(&mut self) -> Option<usize> {
        if self.slots.len() < self.n_slots {
            return Some(self.slots.len());
        }
        if self.n_expected >= self.n_slots {
            return None;
        }
        // One round clears the marks of all slots, a second one ends at the first of them.
        loop {
            let idx = self.hand;
            self.hand = (self.hand + 1) % self.n_slots;
            let slot = &mut self.slots[idx];
            if slot.is_expected {
                continue;
            }
            if slot.was_used {
                slot.was_used = false;
                continue;
            }
            let key = slot.key;
            self.by_key.remove(&key);
            return Some(idx);
        }
    }
}
