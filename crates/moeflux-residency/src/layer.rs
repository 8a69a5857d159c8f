//! A layer whose experts are resident, all of them or some.

use std::sync::Arc;

use moeflux_core::{Expert, ExpertId, ExpertLayout};

use crate::admission::MAX_CHOICES;
use crate::packing::Packing;
use crate::slot::Slot;

/// The experts of a layer that stay on the device until all are unloaded.
#[derive(Debug)]
pub struct ResidentLayer<B, T> {
    pub(crate) packing: Arc<Packing>,
    /// By expert; `None` for those that are not resident.
    pub(crate) slots: Vec<Option<Slot<B>>>,
    /// Free slots, the first one last.
    pub(crate) free: Vec<Slot<B>>,
    pub(crate) buffers: Vec<B>,
    /// Bytes of the buffers.
    pub(crate) bytes: u64,
    pub(crate) shared: Option<Slot<B>>,
    pub(crate) host: Option<HostExperts<B>>,
    pub(crate) tables: Option<T>,
}

/// The experts of a layer that is resident in part: all are in the host's memory, and the device
/// fetches the missing ones by itself.
#[derive(Debug)]
pub struct HostExperts<B> {
    pub(crate) experts: Vec<Option<Arc<Expert>>>,
    pub(crate) top_k: usize,
    /// The slots as the device numbers them, once all are filled.
    pub(crate) slots: Vec<Slot<B>>,
}

impl<B: Clone + PartialEq, T> ResidentLayer<B, T> {
    /// The layout of the experts' records.
    pub fn layout(&self) -> &Arc<ExpertLayout> {
        self.packing.layout()
    }

    /// How slots store the experts.
    pub fn packing(&self) -> &Arc<Packing> {
        &self.packing
    }

    /// Experts of the layer.
    pub fn n_experts(&self) -> usize {
        self.slots.len()
    }

    /// The slot of each expert; `None` for those that were not resident when the host last knew.
    pub fn slots(&self) -> &[Option<Slot<B>>] {
        &self.slots
    }

    /// The experts that have slots, in the order of the slots' numbers on the device.
    pub fn filled(&self) -> impl Iterator<Item = (ExpertId, &Slot<B>)> {
        let with_ids = (0..).map(ExpertId).zip(&self.slots);
        with_ids.filter_map(|(expert, slot)| Some((expert, slot.as_ref()?)))
    }

    /// The copy of the shared expert, where there is one.
    pub fn shared(&self) -> Option<&Slot<B>> {
        self.shared.as_ref()
    }

    /// The buffers of the slots.
    pub fn buffers(&self) -> &[B] {
        &self.buffers
    }

    /// The index of a slot's buffer in [`buffers`](ResidentLayer::buffers).
    ///
    /// # Panics
    /// If the slot is not one of this layer.
    pub fn buffer_idx(&self, slot: &Slot<B>) -> usize {
        let idx = self.buffers.iter().position(|buffer| *buffer == slot.buffer);
        idx.expect("slots are in the layer's buffers")
    }

    /// All experts in the host's memory, where only a part of them is resident.
    pub fn host(&self) -> Option<&HostExperts<B>> {
        self.host.as_ref()
    }

    /// What kernels read to find the experts, once the slots are filled.
    pub fn tables(&self) -> Option<&T> {
        self.tables.as_ref()
    }

    /// Whether only a part of the experts is resident and the device changes which.
    pub(crate) fn is_partly_resident(&self) -> bool {
        self.host.is_some() && self.tables.is_some()
    }

    /// Assigns slots by what the device reports: the number of each expert's slot, or any other
    /// number for an expert that has none.
    pub(crate) fn assign(&mut self, slot_numbers: &mut impl Iterator<Item = u32>) {
        let Some(host) = &self.host else { return };
        for slot in &mut self.slots {
            let number = slot_numbers.next();
            *slot = number.and_then(|number| host.slots.get(number as usize).cloned());
        }
    }
}

impl<B> HostExperts<B> {
    pub(crate) fn new(n_experts: usize, top_k: usize) -> HostExperts<B> {
        HostExperts { experts: vec![None; n_experts], top_k, slots: Vec::new() }
    }

    /// The experts that were given so far.
    pub fn experts(&self) -> impl Iterator<Item = &Arc<Expert>> {
        self.experts.iter().flatten()
    }

    /// The slots as the device numbers them.
    pub fn slots(&self) -> &[Slot<B>] {
        &self.slots
    }

    /// References an expert in the host's memory; whether all are known now.
    pub(crate) fn note(&mut self, expert: &Arc<Expert>) -> bool {
        self.experts[expert.key.expert.idx()] = Some(Arc::clone(expert));
        self.experts.iter().all(Option::is_some)
    }

    /// Whether the device can choose the experts of this many rows in one step.
    pub(crate) fn can_admit(&self, n_rows: usize) -> bool {
        n_rows * self.top_k <= self.slots.len().min(MAX_CHOICES)
    }
}
