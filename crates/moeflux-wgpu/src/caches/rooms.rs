//! States of equal size of several sequences beside each other, so that one kernel
//! reaches all of them.

use std::ops::Range;

use moeflux_backend::CacheSpec;

use crate::buffer::Mem;
use crate::encoder::Encoder;
use crate::grid::Grid;
use crate::shader::{Shader, Variant};

/// Bytes that a slab does not exceed, unless a room does; few in tests, so that
/// there are several.
const SLAB_BYTES: u64 = if cfg!(test) { 256 << 10 } else { 64 << 20 };

/// Words that a workgroup of `copy_state.wgsl` brings.
const COPIED_WORDS: usize = 1024;

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

/// The room of a cache; who has it gives it back.
#[derive(Debug)]
pub(crate) struct Room {
    pool: usize,
    /// The slab, and which of its rooms; `None` before it is needed: then the states
    /// are all zero.
    at: Option<(usize, usize)>,
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

    /// A room that somebody left, or one more of the last slab, or the first of another,
    /// all zero; `None` where there is no memory, which is a fault where it `must` be.
    fn room(&mut self, encoder: &mut Encoder, must: bool) -> Option<(usize, usize)> {
        let free = |slab: &Slab| slab.taken.iter().position(|it| !it);
        let found = self.slabs.iter().enumerate().find_map(|(i, it)| Some((i, free(it)?)));
        if let Some((slab, nth)) = found {
            self.slabs[slab].taken[nth] = true;
            encoder.clear(&self.slabs[slab].mem, self.place(nth));
            return Some((slab, nth));
        }
        if !self.grow(encoder) {
            let bytes = self.room_bytes();
            let mem = match must {
                true => encoder.storage(bytes, "states"),
                false => Mem::new(encoder.context().try_storage(bytes, "states")?),
            };
            if encoder.is_stand_in(&mem) {
                return None;
            }
            self.slabs.push(Slab { mem, taken: Vec::new() });
        }
        let slab = self.slabs.len() - 1;
        self.slabs[slab].taken.push(true);
        Some((slab, self.slabs[slab].taken.len() - 1))
    }

    /// Makes the last slab longer by a room; false where it may not be, or there is no
    /// memory.
    fn grow(&mut self, encoder: &mut Encoder) -> bool {
        let bytes = self.room_bytes();
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
        encoder.copy((mem, 0), (&larger, 0), has);
        encoder.forget(mem);
        *mem = larger;
        // The device lets go of the old one as soon as it has copied that.
        encoder.flush();
        true
    }

    /// The bytes of a room in its slab.
    fn place(&self, nth: usize) -> Range<u64> {
        let bytes = self.room_bytes();
        nth as u64 * bytes..(nth as u64 + 1) * bytes
    }
}

impl Rooms {
    /// The room of a cache of that number, which takes no memory before it is needed.
    pub(super) fn plan(&mut self, of: (usize, CacheSpec)) -> Room {
        let pool = self.pools.iter().position(|it| it.of == of).unwrap_or_else(|| {
            self.pools.push(Pool { of, slabs: Vec::new() });
            self.pools.len() - 1
        });
        Room { pool, at: None, current: 0 }
    }

    /// Has memory for a room; false where there is none, which is a fault.
    pub(crate) fn take(&mut self, encoder: &mut Encoder, room: &mut Room) -> bool {
        self.take_or_leave(encoder, room, true)
    }

    fn take_or_leave(&mut self, encoder: &mut Encoder, room: &mut Room, must: bool) -> bool {
        if room.at.is_none() {
            room.at = self.pools[room.pool].room(encoder, must);
        }
        room.at.is_some()
    }

    /// The same; false where there is none.
    pub(super) fn reserve(&mut self, encoder: &mut Encoder, room: &mut Room) -> bool {
        self.take_or_leave(encoder, room, false)
    }

    /// Takes a room back, and frees the last slabs where nobody has any in them.
    pub(super) fn give_back(&mut self, encoder: &mut Encoder, room: Room) {
        let Some((slab, nth)) = room.at else { return };
        let slabs = &mut self.pools[room.pool].slabs;
        slabs[slab].taken[nth] = false;
        while let Some(slab) = slabs.pop_if(|it| !it.taken.contains(&true)) {
            encoder.forget(&slab.mem);
        }
    }

    /// Fills a room with zeros.
    pub(super) fn clear(&self, encoder: &mut Encoder, room: &Room) {
        if let Some((slab, nth)) = room.at {
            let pool = &self.pools[room.pool];
            encoder.clear(&pool.slabs[slab].mem, pool.place(nth));
        }
    }

    #[cfg(test)]
    pub(crate) fn n_slabs(&self) -> usize {
        self.pools.iter().map(|it| it.slabs.len()).sum()
    }

    /// What a cache is of.
    pub(super) fn spec(&self, room: &Room) -> CacheSpec {
        self.pools[room.pool].of.1
    }

    /// The state that is current, of a room that was taken.
    pub(crate) fn state(&self, room: &Room) -> State {
        let pool = &self.pools[room.pool];
        let (slab, nth) = room.at.expect("rooms are taken before states are asked for");
        let (spec, slab) = (pool.of.1, pool.slabs[slab].mem.clone());
        State { spec, slab, nth: n_states(spec) * nth + room.current }
    }
}

impl Room {
    /// Whether it has memory.
    pub(crate) fn is_taken(&self) -> bool {
        self.at.is_some()
    }

    /// Exchanges a convolution's history and where its next one was put.
    pub(crate) fn turn(&mut self) {
        self.current ^= 1;
    }
}

impl State {
    /// Puts it in the place of another of its kind.
    pub(crate) fn copy_to(&self, encoder: &mut Encoder, to: &State) {
        let ((from, at), (to, to_at)) = (self.bytes(), to.bytes());
        let bytes = at.end - at.start;
        if from.id != to.id {
            return encoder.copy((&from, at.start), (&to, to_at.start), bytes);
        }
        // An interface does not copy within a buffer.
        let [n, from_at, to_at] = [bytes, at.start, to_at.start]
            .map(|it| u32::try_from(it / 4).expect("slabs are small"));
        encoder.begin();
        encoder.dispatch(
            Variant::new(Shader::CopyState, &[]),
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
