//! States of equal size of several sequences beside each other, so that one kernel
//! reaches all of them.

use std::ops::Range;

use moeflux_backend::CacheSpec;

use crate::encoder::{Encoder, Mem};

/// Bytes that a slab does not exceed, unless a room does; few in tests, so that
/// there are several.
const SLAB_BYTES: u64 = if cfg!(test) { 256 << 10 } else { 64 << 20 };

/// The rooms of all recurrent caches.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    pools: Vec<Pool>,
}

/// Rooms for the caches of one number and kind; none but the last slab has fewer than
/// fit.
#[derive(Debug)]
struct Pool {
    of: (usize, CacheSpec),
    slabs: Vec<Slab>,
}

/// One buffer with one room behind the other.
#[derive(Debug)]
struct Slab {
    mem: Mem,
    /// Whether somebody has the room.
    taken: Vec<bool>,
}

/// A room; who has it gives it back.
#[derive(Debug)]
pub(crate) struct Room {
    pool: usize,
    slab: usize,
    nth: usize,
    /// Which of its states is that of the sequence.
    current: usize,
}

/// Where a state lies.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) spec: CacheSpec,
    pub(crate) slab: Mem,
    /// Its number among the states of the slab.
    pub(crate) nth: usize,
}

/// States of a room: a convolution's history, and where a kernel puts the next one
/// while others read this.
fn n_states(spec: CacheSpec) -> usize {
    if matches!(spec, CacheSpec::Conv { .. }) { 2 } else { 1 }
}

impl Pool {
    fn room_bytes(&self) -> u64 {
        (n_states(self.of.1) * self.of.1.fixed_bytes()) as u64
    }

    /// A room that somebody left, or one more of the last slab, or the first of another.
    fn room(&mut self, encoder: &mut Encoder) -> (usize, usize) {
        let free = |slab: &Slab| slab.taken.iter().position(|it| !it);
        let found = self.slabs.iter().enumerate().find_map(|(i, it)| Some((i, free(it)?)));
        if let Some((slab, nth)) = found {
            self.slabs[slab].taken[nth] = true;
            encoder.clear(&self.slabs[slab].mem, self.place(nth));
            return (slab, nth);
        }
        let bytes = self.room_bytes();
        let most = SLAB_BYTES.min(encoder.context().max_binding_bytes());
        let is_full = |slab: &Slab| (slab.taken.len() as u64 + 1) * bytes > most;
        if self.slabs.last().is_none_or(is_full) {
            let mem = encoder.lasting_storage(bytes, "states");
            self.slabs.push(Slab { mem, taken: Vec::new() });
        } else if let Some(Slab { mem, taken }) = self.slabs.last_mut() {
            let has = taken.len() as u64 * bytes;
            let larger = encoder.lasting_storage(has + bytes, "states");
            encoder.copy((mem, 0), (&larger, 0), has);
            encoder.forget(mem);
            *mem = larger;
            // The device lets go of the old one as soon as it has copied that.
            encoder.flush();
        }
        let slab = self.slabs.len() - 1;
        self.slabs[slab].taken.push(true);
        (slab, self.slabs[slab].taken.len() - 1)
    }

    /// The bytes of a room in its slab.
    fn place(&self, nth: usize) -> Range<u64> {
        let bytes = self.room_bytes();
        nth as u64 * bytes..(nth as u64 + 1) * bytes
    }
}

impl Rooms {
    /// A room for the cache of that number, all zero.
    pub(super) fn take(&mut self, encoder: &mut Encoder, of: (usize, CacheSpec)) -> Room {
        let pool = self.pools.iter().position(|it| it.of == of).unwrap_or_else(|| {
            self.pools.push(Pool { of, slabs: Vec::new() });
            self.pools.len() - 1
        });
        let (slab, nth) = self.pools[pool].room(encoder);
        Room { pool, slab, nth, current: 0 }
    }

    /// Takes a room back, and frees the last slabs where nobody has any in them.
    pub(super) fn give_back(&mut self, encoder: &mut Encoder, room: Room) {
        let slabs = &mut self.pools[room.pool].slabs;
        slabs[room.slab].taken[room.nth] = false;
        while let Some(slab) = slabs.pop_if(|it| !it.taken.contains(&true)) {
            encoder.forget(&slab.mem);
        }
    }

    /// Fills a room with zeros.
    pub(super) fn clear(&self, encoder: &mut Encoder, room: &Room) {
        let pool = &self.pools[room.pool];
        encoder.clear(&pool.slabs[room.slab].mem, pool.place(room.nth));
    }

    #[cfg(test)]
    pub(crate) fn n_slabs(&self) -> usize {
        self.pools.iter().map(|it| it.slabs.len()).sum()
    }

    /// The state that is current.
    pub(crate) fn state(&self, room: &Room) -> State {
        let pool = &self.pools[room.pool];
        let spec = pool.of.1;
        let slab = pool.slabs[room.slab].mem.clone();
        State { spec, slab, nth: n_states(spec) * room.nth + room.current }
    }
}

impl Room {
    /// Exchanges a convolution's history and where its next one was put.
    pub(crate) fn turn(&mut self) {
        self.current ^= 1;
    }
}

impl State {
    /// Its slab, and its bytes there.
    pub(super) fn bytes(&self) -> (Mem, Range<u64>) {
        let bytes = self.spec.fixed_bytes() as u64;
        (self.slab.clone(), self.nth as u64 * bytes..(self.nth as u64 + 1) * bytes)
    }
}
