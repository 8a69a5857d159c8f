//! What sequences keep between steps: keys and values, and recurrent states.

mod kv;
mod rooms;

use std::ops::Range;

use moeflux_backend::{CacheSpec, DeviceError};

pub(crate) use self::kv::{Kv, Plane};
pub(crate) use self::rooms::{Room, Rooms, State};
use crate::encoder::Encoder;

/// One cache of one sequence.
#[derive(Debug)]
pub(crate) enum CacheState {
    Kv(Kv),
    /// A convolution's history, `(kernel - 1, channels)` with the oldest input first,
    /// or the state of a delta rule, `(n_heads, v_dim, k_dim)`.
    Recurrent(Room),
}

impl CacheState {
    /// The cache of that number, empty.
    pub(crate) fn new(
        encoder: &mut Encoder,
        rooms: &mut Rooms,
        (nth, spec): (usize, CacheSpec),
    ) -> CacheState {
        match spec {
            CacheSpec::Kv { n_heads, k_dim, v_dim, dtype } => {
                CacheState::Kv(Kv::new(n_heads, k_dim, v_dim, dtype))
            }
            CacheSpec::Conv { .. } | CacheSpec::Delta { .. } => {
                CacheState::Recurrent(rooms.take(encoder, (nth, spec)))
            }
        }
    }

    pub(crate) fn clear(&mut self, encoder: &mut Encoder, rooms: &Rooms) {
        match self {
            CacheState::Kv(kv) => kv.truncate(encoder, 0),
            CacheState::Recurrent(room) => rooms.clear(encoder, room),
        }
    }

    /// Frees what it holds.
    pub(crate) fn release(self, encoder: &mut Encoder, rooms: &mut Rooms) {
        match self {
            CacheState::Kv(mut kv) => kv.truncate(encoder, 0),
            CacheState::Recurrent(room) => rooms.give_back(encoder, room),
        }
    }

    /// Forgets all but the first `len` positions; recurrent states stay.
    pub(crate) fn truncate(&mut self, encoder: &mut Encoder, len: usize) {
        if let CacheState::Kv(kv) = self {
            kv.truncate(encoder, len);
        }
    }

    /// As [`CacheSpec::saved_bytes`] describes.
    pub(crate) fn save(
        &self,
        encoder: &mut Encoder,
        rooms: &Rooms,
        positions: Range<usize>,
    ) -> Result<Vec<u8>, DeviceError> {
        match self {
            CacheState::Kv(kv) => kv.save(encoder, positions),
            CacheState::Recurrent(room) => {
                let (slab, Range { start, end }) = rooms.state(room).bytes();
                encoder.read(&[(&slab, start, end - start)])
            }
        }
    }

    /// Overwrites what [`save`](CacheState::save) reads.
    pub(crate) fn load(
        &mut self,
        encoder: &mut Encoder,
        rooms: &Rooms,
        positions: Range<usize>,
        bytes: &[u8],
    ) {
        match self {
            CacheState::Kv(kv) => kv.load(encoder, positions, bytes),
            CacheState::Recurrent(room) => {
                let (slab, Range { start, end }) = rooms.state(room).bytes();
                assert!(bytes.len() as u64 <= end - start, "bytes of a saved state");
                encoder.write(&slab, start, bytes);
            }
        }
    }
}
