//! Layers of whose experts the device has room for some: it fetches the others by
//! itself from the host's memory, where all of them stay, and nobody is asked.
//!
//! A room is a slot that any of the layer's experts may have. Which of them has
//! it, the device decides (`admit.wgsl`); the host learns it when it has to know.

use moeflux_backend::ResidencyRequest;
use moeflux_core::Expert;

use crate::buffer::Mem;
use crate::encoder::Encoder;
use crate::fetching::{places_of, source_words};
use crate::imports::Reach;
use crate::kept_layer::{KeptLayer, LayerCache, OnDevice, Slot};
use crate::packing::Packing;

/// Experts that other slots are left for: those of many rows, which the host
/// brings. At most a quarter of the room.
const POOL_EXPERTS: u64 = 64;

/// What a room that no expert has, or an expert without one, is told by.
const NOWHERE: u32 = u32::MAX;

/// Words of a room, see `admit.wgsl`.
const ROOM_WORDS: usize = 8;

/// How much of all experts there is room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    room: u64,
    of: u64,
    pub(crate) top_k: usize,
}

impl Share {
    /// Of experts that stay in the host's memory, where `room` gives the bytes that
    /// the device has for them.
    pub(crate) fn of(
        encoder: &Encoder,
        all: ResidencyRequest,
        room: impl FnOnce() -> u64,
    ) -> Option<Share> {
        if encoder.reach() != Reach::Fetched || !all.stays_in_host || all.bytes == 0 {
            return None;
        }
        let room = room();
        let pool = (POOL_EXPERTS * all.record_bytes).min(room / 4);
        Some(Share { room: room - pool, of: all.bytes, top_k: all.top_k })
    }

    /// Rooms of a layer of `n` experts of so many bytes, which take so many there.
    pub(crate) fn rooms(&self, n: usize, (stored, taken): (usize, usize)) -> usize {
        let of_all = u128::from(self.room) * (n * stored) as u128 / u128::from(self.of);
        usize::try_from(of_all / taken.max(1) as u128).unwrap_or(usize::MAX).min(n)
    }
}

impl OnDevice {
    /// Of a layer whose rooms are all filled; `None` where kernels cannot fetch its
    /// experts, or there is no memory.
    pub(crate) fn of(
        encoder: &mut Encoder,
        layer: &KeptLayer,
        cache: &LayerCache,
        packing: &Packing,
    ) -> Option<OnDevice> {
        let (mut slabs, mut sources, mut parts): (Vec<Mem>, _, _) = Default::default();
        for expert in cache.experts() {
            parts = source(encoder, (expert, packing), (&mut slabs, &mut sources))?;
        }
        let rooms: Vec<Slot> = layer.slots.iter().flatten().cloned().collect();
        let places = rooms.iter().flat_map(|it| {
            let of_matrices = it.places.map(|it| [it.elements, it.scales]);
            let [buffer, first] = [layer.buffer_of(it), it.first() / 16].map(word);
            of_matrices.as_flattened().iter().copied().chain([buffer, first]).collect::<Vec<_>>()
        });
        let places: Vec<u32> = places.collect();
        debug_assert_eq!(places.len(), ROOM_WORDS * rooms.len(), "words of a room");
        let n = layer.slots.len();
        let mut state = vec![0; 1 + 3 * n + rooms.len()];
        let mut room = 0;
        for (expert, slot) in layer.slots.iter().enumerate() {
            state[1 + expert] = NOWHERE;
            if slot.is_some() {
                state[1 + expert] = word(room);
                state[1 + 3 * n + room] = word(expert);
                room += 1;
            }
        }
        let mut put = |words: &[u32], label| {
            let mem = Mem::new(encoder.context().try_storage(4 * words.len() as u64, label)?);
            encoder.write(&mem, 0, bytemuck::cast_slice(words));
            Some(mem)
        };
        let (places, state) = (put(&places, "rooms")?, put(&state, "state of a layer")?);
        let sources = put(&sources, "sources")?;
        Some(OnDevice { rooms, places, state, sources, slabs, parts, bytes: packing.bytes() })
    }

    /// Where in the state it stands which expert has which room, in bytes.
    pub(crate) fn known(&self, n_experts: usize) -> (&Mem, u64, u64) {
        (&self.state, 4, 4 * n_experts as u64)
    }

    /// The slot of an expert by what stands there.
    pub(crate) fn slot(&self, room: u32) -> Option<Slot> {
        self.rooms.get(room as usize).cloned()
    }

    /// Everything that kernels bind.
    pub(crate) fn tables(&self) -> [&Mem; 3] {
        [&self.places, &self.state, &self.sources]
    }
}

/// Adds where an expert lies; gives where its parts go.
fn source(
    encoder: &mut Encoder,
    (expert, packing): (&Expert, &Packing),
    (slabs, sources): (&mut Vec<Mem>, &mut Vec<u32>),
) -> Option<Vec<[u32; 2]>> {
    let (slab, parts) = encoder.parts(expert, packing)?;
    let nth = slabs.iter().position(|it| it.id == slab.id);
    let nth = nth.unwrap_or_else(|| {
        slabs.push(slab);
        slabs.len() - 1
    });
    sources.extend(source_words(word(nth), &parts));
    Some(places_of(&parts))
}

fn word(it: usize) -> u32 {
    u32::try_from(it).expect("kernels count in 32 bits")
}
