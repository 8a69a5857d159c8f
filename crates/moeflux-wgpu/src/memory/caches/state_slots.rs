//! Recurrent states of several sequences in one buffer, so that one kernel reaches all of them.

use std::ops::Range;

use moeflux_backend::{CacheSpec, StateShape};

use crate::commands::encoder::Encoder;
use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::basic::CopyState;

/// Bytes that a slab does not exceed, unless a slot does; few in tests, so that there are several.
const SLAB_BYTES: u64 = if cfg!(test) { 256 << 10 } else { 64 << 20 };

/// Words that a workgroup of `caches/copy_state.wgsl` brings.
const COPIED_WORDS: usize = 1024;

/// The slots of all recurrent caches.
#[derive(Debug, Default)]
pub(crate) struct StateSlots {
    pools: Vec<Pool>,
}

/// A cache that every sequence has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NumberedCache {
    /// Its number among the caches of a sequence.
    pub(crate) nth: usize,
    pub(crate) spec: CacheSpec,
}

/// Slots for one cache of all sequences; only the last slab may have fewer slots than fit.
#[derive(Debug)]
struct Pool {
    cache: NumberedCache,
    slabs: Vec<Slab>,
}

/// A buffer of slots.
#[derive(Debug)]
struct Slab {
    mem: Mem,
    /// Whether each slot is taken.
    taken: Vec<bool>,
}

/// The slot of a cache, which the owner releases.
#[derive(Debug)]
pub(crate) struct StateSlot {
    pool: usize,
    /// The slab, and which of its slots; `None` before it is needed: the state is all zero then.
    at: Option<(usize, usize)>,
    /// Which of its states is that of the sequence.
    current: usize,
}

/// A state in its slab.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) spec: CacheSpec,
    pub(crate) slab: Mem,
    /// Its number among the states of the slab.
    pub(crate) nth: usize,
}

/// States of a slot. Rows of an input have two: those of now, and the next ones, which a kernel writes
/// while others read the first.
fn n_states(spec: CacheSpec) -> usize {
    if matches!(spec, CacheSpec::State(StateShape::Rows { .. })) { 2 } else { 1 }
}

impl Pool {
    fn slot_bytes(&self) -> u64 {
        let spec = self.cache.spec;
        (n_states(spec) * spec.fixed_bytes()) as u64
    }

    /// A free slot, or one more of the last slab, or the first of a new slab, filled with zeros;
    /// `None` where there is no memory, which is a fault where it `must` be there.
    fn acquire(&mut self, encoder: &mut Encoder, must: bool) -> Option<(usize, usize)> {
        let free = |slab: &Slab| slab.taken.iter().position(|is_taken| !is_taken);
        let found = self.slabs.iter().enumerate().find_map(|(i, slab)| Some((i, free(slab)?)));
        if let Some((slab, nth)) = found {
            self.slabs[slab].taken[nth] = true;
            encoder.clear(&self.slabs[slab].mem, self.place(nth));
            return Some((slab, nth));
        }
        if !self.grow(encoder) {
            let bytes = self.slot_bytes();
            let mem = if must {
                encoder.buffers.storage(bytes, "states")
            } else {
                Mem::new(encoder.context().try_storage(bytes, "states")?)
            };
            if encoder.buffers.is_stand_in(&mem) {
                return None;
            }
            self.slabs.push(Slab { mem, taken: Vec::new() });
        }
        let slab = self.slabs.len() - 1;
        self.slabs[slab].taken.push(true);
        Some((slab, self.slabs[slab].taken.len() - 1))
    }

    /// Makes the last slab longer by a slot; false where it may not be, or there is no
    /// memory.
    fn grow(&mut self, encoder: &mut Encoder) -> bool {
        let bytes = self.slot_bytes();
        let most = SLAB_BYTES.min(encoder.context().max_binding_bytes());
        let Some(Slab { mem, taken }) = self.slabs.last_mut() else { return false };
        let has = taken.len() as u64 * bytes;
        if has + bytes > most {
            return false;
        }
        let Some(larger) = encoder.context().try_storage(has + bytes, "states") else {
            return false;
        };
        let larger = Mem::new(larger);
        encoder.copy(mem.at(0), larger.at(0), has);
        encoder.forget(mem);
        *mem = larger;
        // The old buffer is freed as soon as the device has copied it.
        encoder.flush();
        true
    }

    /// The bytes of a slot in its slab.
    fn place(&self, nth: usize) -> Range<u64> {
        let bytes = self.slot_bytes();
        nth as u64 * bytes..(nth as u64 + 1) * bytes
    }
}

impl StateSlots {
    /// A slot for a cache, without memory until it is needed.
    pub(super) fn plan(&mut self, cache: NumberedCache) -> StateSlot {
        let pool = self.pools.iter().position(|pool| pool.cache == cache).unwrap_or_else(|| {
            self.pools.push(Pool { cache, slabs: Vec::new() });
            self.pools.len() - 1
        });
        StateSlot { pool, at: None, current: 0 }
    }

    /// Allocates a slot; false where there is no memory, which is a fault.
    pub(crate) fn take(&mut self, encoder: &mut Encoder, slot: &mut StateSlot) -> bool {
        self.take_if_possible(encoder, slot, true)
    }

    fn take_if_possible(
        &mut self,
        encoder: &mut Encoder,
        slot: &mut StateSlot,
        must: bool,
    ) -> bool {
        if slot.at.is_none() {
            slot.at = self.pools[slot.pool].acquire(encoder, must);
        }
        slot.at.is_some()
    }

    /// Allocates a slot; false where there is no memory, which is no fault.
    pub(super) fn reserve(&mut self, encoder: &mut Encoder, slot: &mut StateSlot) -> bool {
        self.take_if_possible(encoder, slot, false)
    }

    /// Frees a slot, and the last slabs while they have no taken slot.
    pub(super) fn release(&mut self, encoder: &mut Encoder, slot: StateSlot) {
        let Some((slab, nth)) = slot.at else { return };
        let slabs = &mut self.pools[slot.pool].slabs;
        slabs[slab].taken[nth] = false;
        while let Some(slab) = slabs.pop_if(|slab| !slab.taken.contains(&true)) {
            encoder.forget(&slab.mem);
        }
    }

    /// Fills a slot with zeros.
    pub(super) fn clear(&self, encoder: &mut Encoder, slot: &StateSlot) {
        if let Some((slab, nth)) = slot.at {
            let pool = &self.pools[slot.pool];
            encoder.clear(&pool.slabs[slab].mem, pool.place(nth));
        }
    }

    #[cfg(test)]
    pub(crate) fn n_slabs(&self) -> usize {
        self.pools.iter().map(|pool| pool.slabs.len()).sum()
    }

    /// What a cache is of.
    pub(super) fn spec(&self, slot: &StateSlot) -> CacheSpec {
        self.pools[slot.pool].cache.spec
    }

    /// The current state of an allocated slot.
    pub(crate) fn state(&self, slot: &StateSlot) -> State {
        let pool = &self.pools[slot.pool];
        let (slab, nth) = slot.at.expect("state_slots are taken before states are asked for");
        let (spec, slab) = (pool.cache.spec, pool.slabs[slab].mem.clone());
        State { spec, slab, nth: n_states(spec) * nth + slot.current }
    }
}

impl StateSlot {
    /// Whether it has memory.
    pub(crate) fn is_taken(&self) -> bool {
        self.at.is_some()
    }

    /// Exchanges rows of an input and where the next ones were put.
    pub(crate) fn swap_buffers(&mut self) {
        self.current ^= 1;
    }
}

impl State {
    /// Puts it in the place of another of its kind.
    pub(crate) fn copy_to(&self, encoder: &mut Encoder, to: &State) {
        let ((from, at), (to, to_at)) = (self.bytes(), to.bytes());
        let bytes = at.end - at.start;
        if from.id != to.id {
            return encoder.copy(from.at(at.start), to.at(to_at.start), bytes);
        }
        // An interface does not copy within a buffer.
        let [n, from_at, to_at] = [bytes, at.start, to_at.start]
            .map(|bytes| u32::try_from(bytes / 4).expect("slabs are small"));
        encoder.begin();
        encoder.dispatch(
            CopyState {},
            &[n, from_at, to_at],
            &[&from],
            Grid::Linear((n as usize).div_ceil(COPIED_WORDS)),
        );
    }

    /// Its slab, and its bytes there.
    pub(super) fn bytes(&self) -> (Mem, Range<u64>) {
        let bytes = self.spec.fixed_bytes() as u64;
        (self.slab.clone(), self.nth as u64 * bytes..(self.nth as u64 + 1) * bytes)
    }
}
