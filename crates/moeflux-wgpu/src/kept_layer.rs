//! The experts of a layer that stay on the device.

use std::sync::Arc;

use moeflux_core::{Expert, ExpertLayout};

use crate::buffer::Mem;
use crate::weights::Place;

/// Where the matrices of an expert lie: gate and up, or both in one, then down.
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
pub(crate) struct KeptLayer {
    pub(crate) layout: Arc<ExpertLayout>,
    /// By expert; one that is not there has none.
    pub(crate) slots: Vec<Option<Slot>>,
    /// Set where there is room for some of them only.
    pub(crate) cache: Option<LayerCache>,
    /// Of the expert that every row gets, where a copy of it lies here too.
    pub(crate) shared: Option<Slot>,
    /// What the slots lie in.
    pub(crate) buffers: Vec<Mem>,
    /// What kernels look up of experts that the device chose, once all slots are filled.
    pub(crate) table: Option<Mem>,
    /// The free ones, the first last.
    pub(crate) free: Vec<(Mem, usize)>,
}

/// The part of a layer that is there, and where the rest is.
#[derive(Debug)]
pub(crate) struct LayerCache {
    /// All of the layer, in the host's memory.
    pub(crate) experts: Vec<Option<Arc<Expert>>>,
    pub(crate) top_k: usize,
    pub(crate) on_device: Option<OnDevice>,
}

/// What kernels know of it, see `admit.wgsl` and `fetch.wgsl`.
#[derive(Debug)]
pub(crate) struct OnDevice {
    pub(crate) rooms: Vec<Slot>,
    pub(crate) places: Mem,
    pub(crate) state: Mem,
    pub(crate) sources: Mem,
    pub(crate) slabs: Vec<Mem>,
    /// Of each part of an expert, where it begins in a room, and the thread behind
    /// its last, both in 16 bytes.
    pub(crate) parts: Vec<[u32; 2]>,
    /// Of an expert, in bytes.
    pub(crate) bytes: usize,
}

impl LayerCache {
    pub(crate) fn new(n_experts: usize, top_k: usize) -> LayerCache {
        LayerCache { experts: vec![None; n_experts], top_k, on_device: None }
    }

    /// Keeps an expert of the layer where it lies; whether all are known now.
    pub(crate) fn note(&mut self, expert: &Arc<Expert>) -> bool {
        self.experts[expert.key.expert.idx()] = Some(Arc::clone(expert));
        self.experts.iter().all(Option::is_some)
    }

    /// What is kept where it lies.
    pub(crate) fn experts(&self) -> impl Iterator<Item = &Arc<Expert>> {
        self.experts.iter().flatten()
    }

    /// Whether the device can choose so many experts in one step.
    pub(crate) fn holds(&self, n_choices: usize) -> bool {
        let n_rooms = self.on_device.as_ref().map_or(0, |it| it.rooms.len());
        n_choices <= n_rooms.min(MOST_CHOICES)
    }
}

/// Choices of a step that `admit.wgsl` has room for.
const MOST_CHOICES: usize = 256;

/// Most rows whose experts come together: `admit.wgsl` looks at one choice after the other.
pub(crate) const ADMITTED_ROWS: usize = 8;
