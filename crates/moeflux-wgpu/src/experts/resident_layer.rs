//! Layers whose experts are resident, all of them or some.

use std::sync::Arc;

use moeflux_core::{Expert, ExpertLayout};

use crate::device::buffer::Mem;
use crate::weights::format::Place;

/// A slot: the places of an expert's matrices, gate and up (or both in one matrix), then down.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) mem: Mem,
    /// First byte.
    pub(crate) at: usize,
    pub(crate) places: [Place; 3],
}

impl Slot {
    /// First byte in its buffer.
    pub(crate) fn first(&self) -> usize {
        self.at
    }
}

/// The experts of a layer that stay.
#[derive(Debug)]
pub(crate) struct ResidentLayer {
    pub(crate) layout: Arc<ExpertLayout>,
    /// By expert; `None` for those that are not resident.
    pub(crate) slots: Vec<Option<Slot>>,
    /// Set where only some experts are resident.
    pub(crate) cache: Option<LayerCache>,
    /// A copy of the shared expert, where there is one.
    pub(crate) shared: Option<Slot>,
    /// The buffers of the slots.
    pub(crate) buffers: Vec<Mem>,
    /// The table by which kernels find experts, once all slots are filled.
    pub(crate) table: Option<Mem>,
    /// Free slots, the first one last.
    pub(crate) free: Vec<(Mem, usize)>,
}

/// A layer of which only some experts are resident.
#[derive(Debug)]
pub(crate) struct LayerCache {
    /// All experts of the layer, in the host's memory.
    pub(crate) experts: Vec<Option<Arc<Expert>>>,
    pub(crate) top_k: usize,
    pub(crate) tables: Option<SlotTables>,
}

/// Tables of a partly resident layer, see `moe/expert_admit.wgsl` and `moe/expert_gather.wgsl`.
#[derive(Debug)]
pub(crate) struct SlotTables {
    pub(crate) slots: Vec<Slot>,
    pub(crate) places: Mem,
    pub(crate) state: Mem,
    pub(crate) sources: Mem,
    pub(crate) slabs: Vec<Mem>,
    /// Of each part of an expert: its first 16 bytes in a slot, and the thread after its last.
    pub(crate) parts: Vec<[u32; 2]>,
    /// Of an expert, in bytes.
    pub(crate) bytes: usize,
}

impl LayerCache {
    pub(crate) fn new(n_experts: usize, top_k: usize) -> LayerCache {
        LayerCache { experts: vec![None; n_experts], top_k, tables: None }
    }

    /// References an expert of the layer in the host's memory; whether all are known now.
    pub(crate) fn note(&mut self, expert: &Arc<Expert>) -> bool {
        self.experts[expert.key.expert.idx()] = Some(Arc::clone(expert));
        self.experts.iter().all(Option::is_some)
    }

    /// The experts that are referenced in the host's memory.
    pub(crate) fn experts(&self) -> impl Iterator<Item = &Arc<Expert>> {
        self.experts.iter().flatten()
    }

    /// Whether the device can choose this many experts in one step.
    pub(crate) fn holds(&self, n_choices: usize) -> bool {
        let n_slots = self.tables.as_ref().map_or(0, |it| it.slots.len());
        n_choices <= n_slots.min(MOST_CHOICES)
    }
}

/// Choices of a step that `moe/expert_admit.wgsl` has room for.
const MOST_CHOICES: usize = 256;

/// Most rows whose experts are admitted together: `moe/expert_admit.wgsl` handles one choice after
/// the other.
pub(crate) const ADMITTED_ROWS: usize = 8;
