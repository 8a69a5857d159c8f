//! What kernels read to find the experts of a resident layer, and to admit those that are missing.
//!
//! Of a layer that is resident in part, the device fetches missing experts from the host's memory
//! without asking the host. A slot can hold any of the layer's experts. The device decides which one
//! it holds (`moe/expert_admit.wgsl`); the host reads that back when it needs it.

use moeflux_core::Expert;
use moeflux_residency::{Admission, HostExperts, Packing};

use crate::commands::encoder::Encoder;
use crate::commands::gather::{places_of, source_words};
use crate::device::buffer::{Mem, MemRange};
use crate::layouts::packing::places;
use crate::words::word;

/// A resident layer of this device.
pub(crate) type ResidentLayer = moeflux_residency::ResidentLayer<Mem, LayerTables>;

/// Words of a slot, see `moe/expert_admit.wgsl`.
const SLOT_WORDS: usize = 8;

/// What kernels read of a resident layer.
#[derive(Debug)]
pub(crate) struct LayerTables {
    /// The places of the matrices of all experts, then of the shared expert (of the first expert where
    /// there is none); then the buffers of these.
    pub(crate) places: Mem,
    /// Set where the layer is resident in part.
    pub(crate) admission: Option<AdmissionTables>,
}

/// Tables of a partly resident layer, see `moe/expert_admit.wgsl` and `moe/expert_gather.wgsl`.
#[derive(Debug)]
pub(crate) struct AdmissionTables {
    pub(crate) n_slots: usize,
    /// Of each slot, the places of the matrices.
    pub(crate) slots: Mem,
    /// As [`Admission::words`] describes it.
    pub(crate) state: Mem,
    /// Where the parts of each expert are in the host's memory.
    pub(crate) sources: Mem,
    /// The host's memory.
    pub(crate) slabs: Vec<Mem>,
    /// Of each part of an expert: its first 16 bytes in a slot, and the thread after its last.
    pub(crate) parts: Vec<[u32; 2]>,
    /// Of an expert, in bytes.
    pub(crate) bytes: usize,
}

/// Experts in the host's memory, as kernels find them.
#[derive(Default)]
struct Sources {
    slabs: Vec<Mem>,
    words: Vec<u32>,
    parts: Vec<[u32; 2]>,
}

impl LayerTables {
    /// The tables of a layer whose slots are all filled; `None` where kernels cannot fetch its experts,
    /// or there is no memory.
    pub(crate) fn new(encoder: &mut Encoder, layer: &ResidentLayer) -> Option<LayerTables> {
        let admission = match layer.host() {
            Some(host) => Some(AdmissionTables::new(encoder, layer, host)?),
            None => None,
        };
        let places = put(encoder, &layer_places(layer), "table")?;
        Some(LayerTables { places, admission })
    }

    /// All buffers.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Mem> {
        let admission = self.admission.iter();
        admission
            .flat_map(|tables| [&tables.slots, &tables.state, &tables.sources])
            .chain([&self.places])
    }
}

impl AdmissionTables {
    fn new(
        encoder: &mut Encoder,
        layer: &ResidentLayer,
        host: &HostExperts<Mem>,
    ) -> Option<AdmissionTables> {
        let packing = layer.packing();
        let mut sources = Sources::default();
        for expert in host.experts() {
            sources.push(encoder, expert, packing)?;
        }
        let slots = host.slots().iter().flat_map(|slot| {
            let of_matrices = places(packing, slot.at).map(|place| [place.elements, place.scales]);
            let [buffer, first] = [layer.buffer_idx(slot), slot.at / 16].map(word);
            of_matrices.into_iter().flatten().chain([buffer, first])
        });
        let slots: Vec<u32> = slots.collect();
        let n_slots = host.slots().len();
        debug_assert_eq!(slots.len(), SLOT_WORDS * n_slots, "words of a slot");
        let admission = Admission::new(layer.n_experts(), layer.filled().map(|(expert, _)| expert));
        let slots = put(encoder, &slots, "slots")?;
        let state = put(encoder, &admission.words(), "state of a layer")?;
        let Sources { slabs, words, parts } = sources;
        let sources = put(encoder, &words, "sources")?;
        let bytes = packing.bytes();
        Some(AdmissionTables { n_slots, slots, state, sources, slabs, parts, bytes })
    }

    /// The bytes of the state that say which slot each expert has.
    pub(crate) fn slot_numbers(&self, n_experts: usize) -> MemRange<'_> {
        self.state.range(4, 4 * n_experts as u64)
    }
}

impl Sources {
    /// Appends an expert.
    fn push(&mut self, encoder: &mut Encoder, expert: &Expert, packing: &Packing) -> Option<()> {
        let (slab, parts) = encoder.uploads.parts(expert, packing)?;
        let known = self.slabs.iter().position(|known| *known == slab);
        let nth = known.unwrap_or_else(|| {
            self.slabs.push(slab);
            self.slabs.len() - 1
        });
        self.words.extend(source_words(word(nth), &parts));
        self.parts = places_of(&parts);
        Some(())
    }
}

/// The words of [`LayerTables::places`].
fn layer_places(layer: &ResidentLayer) -> Vec<u32> {
    // An expert without a slot is admitted before its entry is read.
    let first = || layer.slots().iter().flatten().next();
    let of_experts = || layer.slots().iter().filter_map(|slot| slot.as_ref().or_else(first));
    let slots = || of_experts().chain(layer.shared().or_else(first));
    let places = slots().flat_map(|slot| places(layer.packing(), slot.at));
    let words = places.flat_map(|place| [place.elements, place.scales]);
    words.chain(slots().map(|slot| word(layer.buffer_idx(slot)))).collect()
}

/// A buffer with these words; `None` where there is no memory.
fn put(encoder: &mut Encoder, words: &[u32], label: &'static str) -> Option<Mem> {
    let mem = Mem::new(encoder.context().try_storage(4 * words.len() as u64, label)?);
    encoder.write(&mem, 0, bytemuck::cast_slice(words));
    Some(mem)
}
