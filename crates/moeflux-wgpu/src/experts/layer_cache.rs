//! Layers of which only some experts are resident. The device fetches the others from the host's
//! memory, where all of them stay, without asking the host.
//!
//! A slot can hold any of the layer's experts. The device decides which one it holds
//! (`moe/expert_admit.wgsl`); the host reads that back when it needs it.

use moeflux_backend::ResidencyRequest;
use moeflux_core::Expert;

use crate::commands::encoder::Encoder;
use crate::device::buffer::Mem;
use crate::device::imports::host_access::HostAccess;
use crate::experts::gather::{places_of, source_words};
use crate::experts::packing::Packing;
use crate::experts::resident_layer::{LayerCache, ResidentLayer, Slot, SlotTables};

/// Slots that are left for experts of steps with many rows, which the host uploads: at most a
/// quarter of the budget.
const POOL_EXPERTS: u64 = 64;

/// Marks a slot without an expert, or an expert without a slot.
const ABSENT: u32 = u32::MAX;

/// Words of a slot, see `moe/expert_admit.wgsl`.
const SLOT_WORDS: usize = 8;

/// Which share of all experts fits on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResidentShare {
    room: u64,
    of: u64,
    pub(crate) top_k: usize,
}

impl ResidentShare {
    /// The share of experts that stay in the host's memory; `room` returns the bytes that the device
    /// has for them. `None` where kernels cannot fetch experts from the host.
    pub(crate) fn of(
        encoder: &Encoder,
        all: ResidencyRequest,
        room: impl FnOnce() -> u64,
    ) -> Option<ResidentShare> {
        if encoder.host_access() != HostAccess::Fetched || !all.stays_in_host || all.bytes == 0 {
            return None;
        }
        let room = room();
        let pool = (POOL_EXPERTS * all.record_bytes).min(room / 4);
        Some(ResidentShare { room: room - pool, of: all.bytes, top_k: all.top_k })
    }

    /// The number of slots of a layer of `n` experts; `stored` and `taken` are the bytes of an expert
    /// in the checkpoint and on the device.
    pub(crate) fn slots(&self, n: usize, (stored, taken): (usize, usize)) -> usize {
        let of_all = u128::from(self.room) * (n * stored) as u128 / u128::from(self.of);
        usize::try_from(of_all / taken.max(1) as u128).unwrap_or(usize::MAX).min(n)
    }
}

impl SlotTables {
    /// The tables of a layer whose slots are all filled; `None` where kernels cannot fetch its experts,
    /// or there is no memory.
    pub(crate) fn of(
        encoder: &mut Encoder,
        layer: &ResidentLayer,
        cache: &LayerCache,
        packing: &Packing,
    ) -> Option<SlotTables> {
        let (mut slabs, mut sources, mut parts): (Vec<Mem>, _, _) = Default::default();
        for expert in cache.experts() {
            parts = source(encoder, (expert, packing), (&mut slabs, &mut sources))?;
        }
        let slots: Vec<Slot> = layer.slots.iter().flatten().cloned().collect();
        let places = slots.iter().flat_map(|it| {
            let of_matrices = it.places.map(|it| [it.elements, it.scales]);
            let [buffer, first] = [layer.buffer_of(it), it.first() / 16].map(word);
            of_matrices.as_flattened().iter().copied().chain([buffer, first]).collect::<Vec<_>>()
        });
        let places: Vec<u32> = places.collect();
        debug_assert_eq!(places.len(), SLOT_WORDS * slots.len(), "words of a room");
        let n = layer.slots.len();
        let mut state = vec![0; 1 + 3 * n + slots.len()];
        let mut room = 0;
        for (expert, slot) in layer.slots.iter().enumerate() {
            state[1 + expert] = ABSENT;
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
        let (places, state) = (put(&places, "slots")?, put(&state, "state of a layer")?);
        let sources = put(&sources, "sources")?;
        Some(SlotTables { slots, places, state, sources, slabs, parts, bytes: packing.bytes() })
    }

    /// The bytes of the state that say which slot each expert has.
    pub(crate) fn known(&self, n_experts: usize) -> (&Mem, u64, u64) {
        (&self.state, 4, 4 * n_experts as u64)
    }

    /// The slot of an index that was read from the state.
    pub(crate) fn slot(&self, room: u32) -> Option<Slot> {
        self.slots.get(room as usize).cloned()
    }

    /// The buffers that kernels bind.
    pub(crate) fn tables(&self) -> [&Mem; 3] {
        [&self.places, &self.state, &self.sources]
    }
}

/// Appends the source of an expert; returns where its parts go.
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
