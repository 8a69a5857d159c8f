//! What sequences keep between steps: keys and values, and recurrent states.

use std::ops::Range;

use moeflux_backend::{CacheSpec, DeviceError};

use crate::commands::encoder::Encoder;
use crate::commands::read::read;
use crate::memory::caches::kv::Kv;
use crate::memory::caches::pages::Pages;
use crate::memory::caches::state_slots::{NumberedCache, StateSlot, StateSlots};

/// One cache of one sequence.
#[derive(Debug)]
pub(crate) enum CacheState {
    Kv(Kv),
    Recurrent(StateSlot),
}

/// What the caches of all sequences share.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    pub(crate) state_slots: StateSlots,
    /// Pages of each cache.
    pages: Vec<(NumberedCache, Pages)>,
}

impl Pools {
    /// The pages of a sequence's keys and values.
    pub(crate) fn pages(&self, kv: &Kv) -> &Pages {
        &self.pages[kv.pool].1
    }

    /// The pages of a sequence's keys and values, to take or free some.
    pub(crate) fn pages_mut(&mut self, kv: &Kv) -> &mut Pages {
        &mut self.pages[kv.pool].1
    }

    /// Buffers of all pages.
    #[cfg(test)]
    pub(crate) fn n_slabs(&self) -> usize {
        self.pages.iter().map(|(_, pages)| pages.n_slabs()).sum()
    }

    /// The index of the pages of a cache.
    fn pages_of(&mut self, cache: NumberedCache) -> usize {
        let new = || match cache.spec {
            CacheSpec::Pages { n_heads, k_dim, v_dim, dtype, .. } => {
                Pages::new(n_heads, k_dim, v_dim, dtype)
            }
            CacheSpec::Entries { dim, dtype, .. } => Pages::new(1, dim, 0, dtype),
            CacheSpec::State(_) => panic!("pages are of keys and values"),
        };
        let known = self.pages.iter().position(|(known, _)| *known == cache);
        known.unwrap_or_else(|| {
            self.pages.push((cache, new()));
            self.pages.len() - 1
        })
    }
}

impl CacheState {
    /// A cache of a new sequence, empty.
    pub(crate) fn new(pools: &mut Pools, cache: NumberedCache) -> CacheState {
        match cache.spec {
            CacheSpec::Pages { window, .. } => {
                CacheState::Kv(Kv::new(pools.pages_of(cache), window, 1))
            }
            CacheSpec::Entries { pool, .. } => {
                CacheState::Kv(Kv::new(pools.pages_of(cache), None, pool))
            }
            CacheSpec::State(_) => CacheState::Recurrent(pools.state_slots.plan(cache)),
        }
    }

    pub(crate) fn clear(&mut self, encoder: &mut Encoder, pools: &mut Pools) {
        match self {
            CacheState::Kv(kv) => kv.truncate(pools.pages_mut(kv), encoder, 0),
            CacheState::Recurrent(slot) => pools.state_slots.clear(encoder, slot),
        }
    }

    /// Frees what it holds.
    pub(crate) fn release(self, encoder: &mut Encoder, pools: &mut Pools) {
        match self {
            CacheState::Kv(mut kv) => kv.truncate(pools.pages_mut(&kv), encoder, 0),
            CacheState::Recurrent(slot) => pools.state_slots.release(encoder, slot),
        }
    }

    /// Forgets all but the first `len` positions; recurrent states stay.
    pub(crate) fn truncate(&mut self, encoder: &mut Encoder, pools: &mut Pools, len: usize) {
        if let CacheState::Kv(kv) = self {
            kv.truncate(pools.pages_mut(kv), encoder, len);
        }
    }

    /// Frees positions that a window has passed.
    pub(crate) fn forget_passed(
        &mut self,
        encoder: &mut Encoder,
        pools: &mut Pools,
        ends: &[usize],
    ) {
        if let CacheState::Kv(kv) = self {
            kv.forget_passed(pools.pages_mut(kv), encoder, ends);
        }
    }

    /// Has memory for a recurrent state; false where there is none.
    pub(crate) fn reserve(&mut self, encoder: &mut Encoder, pools: &mut Pools) -> bool {
        match self {
            CacheState::Recurrent(slot) => pools.state_slots.reserve(encoder, slot),
            CacheState::Kv(_) => true,
        }
    }

    /// As [`CacheSpec::saved_bytes`] describes.
    pub(crate) fn save(
        &self,
        encoder: &mut Encoder,
        pools: &Pools,
        positions: Range<usize>,
    ) -> Result<Vec<u8>, DeviceError> {
        match self {
            CacheState::Kv(kv) => kv.save(pools.pages(kv), encoder, positions),
            CacheState::Recurrent(slot) if !slot.is_taken() => {
                encoder.buffers.check()?;
                Ok(vec![0; pools.state_slots.spec(slot).fixed_bytes()])
            }
            CacheState::Recurrent(slot) => {
                let (slab, Range { start, end }) = pools.state_slots.state(slot).bytes();
                read(encoder, &[slab.range(start, end - start)])
            }
        }
    }

    /// Overwrites what [`save`](CacheState::save) reads.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back, this included.
    pub(crate) fn load(
        &mut self,
        encoder: &mut Encoder,
        pools: &mut Pools,
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        match self {
            CacheState::Kv(kv) => kv.load(pools.pages_mut(kv), encoder, positions, bytes),
            CacheState::Recurrent(slot) => {
                if pools.state_slots.take(encoder, slot) {
                    let (slab, Range { start, end }) = pools.state_slots.state(slot).bytes();
                    assert!(bytes.len() as u64 <= end - start, "bytes of a saved state");
                    encoder.write(&slab, start, bytes);
                }
            }
        }
        encoder.buffers.check()
    }
}
