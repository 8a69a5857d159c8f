//! The slots of a device, and which experts are in them.
//!
//! A slot holds the matrices of an expert as kernels read them. Slots are allocated while memory and
//! the budget allow it; then the one of the least recently used expert is reused. Kernels that still
//! read it are not waited for: its next expert is copied there by a command after them.

use std::collections::HashMap;
use std::sync::Arc;

use moeflux_backend::{ExpertCall, ResidencyChange, ResidencyRequest, ResidentCall};
use moeflux_core::{Expert, ExpertKey, ExpertLayout, LayerIdx};

use crate::budget::Budget;
use crate::device::LayerMemory;
use crate::layer::ResidentLayer;
use crate::layers::ResidentLayers;
use crate::packing::Packing;
use crate::pool::{SlotPool, Taken};
use crate::slot::{LocatedExpert, PackedExpert, StepStart};

/// All slots of a device.
#[derive(Debug)]
pub struct ExpertSlots<D: LayerMemory> {
    packings: Vec<Arc<Packing>>,
    /// By the bytes of a slot.
    pools: HashMap<usize, SlotPool<D::Buffer>>,
    layers: ResidentLayers<D>,
    budget: Budget,
    /// Counts uses and steps.
    clock: u64,
    /// Experts that were loaded or evicted. Layers that are resident in part report nothing: the host
    /// needs all of their experts.
    changes: Vec<ResidencyChange>,
}

impl<D: LayerMemory> ExpertSlots<D> {
    /// Slots of at most `budget` bytes in total; the first of each size is allocated in any case.
    pub fn new(budget: u64) -> ExpertSlots<D> {
        ExpertSlots {
            packings: Vec::new(),
            pools: HashMap::new(),
            layers: ResidentLayers::new(),
            budget: Budget::new(budget),
            clock: 0,
            changes: Vec::new(),
        }
    }

    /// Whether an expert has a slot.
    pub fn holds(&self, key: ExpertKey) -> bool {
        self.layers.locate(key).is_some() || self.pools.values().any(|pool| pool.holds(key))
    }

    /// Where an expert is, if it has a slot; marks it as used.
    pub fn locate(&mut self, key: ExpertKey) -> Option<LocatedExpert<D::Buffer>> {
        if let Some(located) = self.layers.locate(key) {
            return Some(located);
        }
        let now = self.tick();
        self.pools.values_mut().find_map(|pool| pool.touch(key, now))
    }

    /// Returns the residency changes since the last call, in their order.
    pub fn drain_residency_changes(&mut self) -> Vec<ResidencyChange> {
        std::mem::take(&mut self.changes)
    }

    /// Begins a step: experts that are used from now on are not evicted until the next call.
    pub fn begin_step(&mut self) -> StepStart {
        StepStart(self.tick())
    }

    /// Where an expert is, uploaded if it is not resident; marks it as used. Returns `None` where all
    /// slots were used since `since`, or the upload failed.
    pub fn locate_or_upload(
        &mut self,
        device: &mut D,
        expert: &Arc<Expert>,
        since: StepStart,
    ) -> Option<LocatedExpert<D::Buffer>> {
        if let Some(located) = self.locate(expert.key) {
            return Some(located);
        }
        let packing = self.packing(device, &expert.layout);
        if self.layers.takes(expert) {
            let loaded = self.layers.load_one(device, expert, &packing);
            self.changes.extend(loaded.change);
            return self.layers.locate(expert.key);
        }
        let now = self.tick();
        let bytes = packing.bytes();
        let pool = self.pools.entry(bytes).or_insert_with(|| SlotPool::new(bytes));
        pool.grow(device, &mut self.budget);
        let Taken { slot, evicted } = pool.take(since)?;
        // A layer that was loaded later has a copy of its own.
        let evicted = evicted.filter(|key| !self.layers.keeps(*key));
        self.changes.extend(evicted.map(|key| ResidencyChange { key, is_resident: false }));
        if !device.upload(expert, &packing, &slot) {
            pool.put_back(slot);
            return None;
        }
        self.changes.push(ResidencyChange { key: expert.key, is_resident: true });
        Some(pool.insert(expert.key, slot, packing, now))
    }

    /// Begins a step, and returns where the experts of the first calls are, uploaded if they are not
    /// resident. Stops before the call with which there are more than `max_rows` rows, but not before
    /// the first, and at the first expert that gets no slot.
    pub fn upload_calls(
        &mut self,
        device: &mut D,
        calls: &[ExpertCall],
        max_rows: usize,
    ) -> Vec<LocatedExpert<D::Buffer>> {
        let since = self.begin_step();
        let mut located = Vec::new();
        for call in &calls[..n_fitting(calls, |call| call.rows.len(), max_rows)] {
            match self.locate_or_upload(device, &call.expert, since) {
                Some(expert) => located.push(expert),
                None => break,
            }
        }
        located
    }

    /// Where the experts of the first calls are, which are all resident; marks them as used. Stops
    /// before the call with which there are more than `max_rows` rows, but not before the first.
    ///
    /// # Panics
    /// If one of them is not resident.
    pub fn resident_calls(
        &mut self,
        layer: LayerIdx,
        calls: &[ResidentCall],
        max_rows: usize,
    ) -> Vec<LocatedExpert<D::Buffer>> {
        let calls = &calls[..n_fitting(calls, |call| call.rows.len(), max_rows)];
        let keys = calls.iter().map(|call| ExpertKey { layer, expert: call.expert });
        keys.map(|key| self.locate(key).expect("the device holds the expert")).collect()
    }

    /// Begins a step and uploads experts that it will use, as far as there are slots for them. The
    /// `resident` ones are not evicted for that.
    pub fn upload_ahead(
        &mut self,
        device: &mut D,
        resident: impl Iterator<Item = ExpertKey>,
        experts: &mut dyn Iterator<Item = &Arc<Expert>>,
    ) {
        let since = self.begin_step();
        for key in resident {
            self.locate(key);
        }
        for expert in experts {
            if self.locate_or_upload(device, expert, since).is_none() {
                return;
            }
        }
    }

    /// The experts that have no slot, as slots will store them.
    pub fn missing(
        &mut self,
        device: &D,
        experts: &mut dyn Iterator<Item = &Arc<Expert>>,
    ) -> Vec<PackedExpert> {
        let mut missing = Vec::new();
        for expert in experts {
            if !self.holds(expert.key) {
                let packing = self.packing(device, &expert.layout);
                missing.push(PackedExpert { expert: Arc::clone(expert), packing });
            }
        }
        missing
    }

    /// Registers the shared expert of a layer, before experts of the layer are loaded.
    pub fn register_shared(&mut self, layer: LayerIdx, shared: D::SharedExpert) {
        self.layers.register_shared(layer, shared);
    }

    /// Plans to [load](ExpertSlots::load) all experts, or a share of each layer's experts where the
    /// device fetches the others by itself; false where neither is possible.
    pub fn plan(&mut self, device: &D, request: ResidencyRequest) -> bool {
        self.layers.plan(device, &self.budget, request)
    }

    /// Whether the budget admits this many more bytes.
    pub fn may_take(&self, bytes: u64) -> bool {
        bytes <= self.budget.left()
    }

    /// Takes memory for all experts of a layer, or its share; false where there is none. What is uploaded
    /// of the layer stays there from then on.
    pub fn reserve(
        &mut self,
        device: &mut D,
        layer: LayerIdx,
        layout: &Arc<ExpertLayout>,
        n_experts: usize,
    ) -> bool {
        let packing = self.packing(device, layout);
        self.layers.reserve(device, &mut self.budget, layer, &packing, n_experts)
    }

    /// Loads an expert of a layer of `n_experts`, which stays until all are unloaded; false where there
    /// is no memory.
    pub fn load(&mut self, device: &mut D, expert: &Arc<Expert>, n_experts: usize) -> bool {
        let packing = self.packing(device, &expert.layout);
        let loaded = self.layers.load(device, &mut self.budget, expert, &packing, n_experts);
        self.changes.extend(loaded.change);
        loaded.is_loaded
    }

    /// Frees all experts that were loaded.
    pub fn unload_all(&mut self, device: &mut D) {
        let mut left = self.layers.unload_all(device, &mut self.budget);
        left.retain(|key| !self.pools.values().any(|pool| pool.holds(*key)));
        let changes = left.into_iter().map(|key| ResidencyChange { key, is_resident: false });
        self.changes.extend(changes);
    }

    /// A layer that the device can route: all experts are resident, or it fetches the missing ones.
    pub fn routable_layer(
        &self,
        layer: LayerIdx,
    ) -> Option<&Arc<ResidentLayer<D::Buffer, D::Tables>>> {
        self.layers.routable(layer)
    }

    /// Whether the device can choose the experts of this many rows of a layer.
    pub fn can_route(&self, layer: LayerIdx, n_rows: usize) -> bool {
        self.layers.can_route(layer, n_rows)
    }

    /// Notes that the device may have admitted experts to partly resident layers: their experts count
    /// as not resident until the next [`refresh`](ExpertSlots::refresh).
    pub fn mark_stale(&mut self) {
        self.layers.mark_stale();
    }

    /// The layers of which the host has to read which slot each expert has, always in the same order;
    /// none where it knows.
    pub fn stale_layers(&self) -> impl Iterator<Item = &ResidentLayer<D::Buffer, D::Tables>> {
        self.layers.stale()
    }

    /// Takes what was read of the [stale layers](ExpertSlots::stale_layers): for each layer in turn the
    /// number of each expert's slot, or any other number for an expert without one.
    pub fn refresh(&mut self, slot_numbers: &[u32]) {
        self.layers.refresh(slot_numbers);
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// How slots store experts of a layout.
    fn packing(&mut self, device: &D, layout: &Arc<ExpertLayout>) -> Arc<Packing> {
        let is_same =
            |known: &&Arc<Packing>| Arc::ptr_eq(known.layout(), layout) || known.layout() == layout;
        if let Some(known) = self.packings.iter().find(is_same) {
            return Arc::clone(known);
        }
        let packing = Arc::new(device.pack(layout));
        self.packings.push(Arc::clone(&packing));
        packing
    }
}

/// The number of first calls with at most `max_rows` rows together; one where the first has more.
fn n_fitting<C>(calls: &[C], n_rows_of: impl Fn(&C) -> usize, max_rows: usize) -> usize {
    let mut n_rows = 0;
    let fits = |call: &&C| {
        n_rows += n_rows_of(call);
        n_rows <= max_rows
    };
    calls.iter().take_while(fits).count().max(1).min(calls.len())
}

#[cfg(test)]
impl<D: LayerMemory> ExpertSlots<D> {
    /// The slots of all sizes, for tests of their numbers.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &SlotPool<D::Buffer>> {
        self.pools.values()
    }

    /// Where an expert is, not marked as used.
    pub(crate) fn peek(&self, key: ExpertKey) -> Option<LocatedExpert<D::Buffer>> {
        let in_layer = self.layers.locate(key);
        in_layer.or_else(|| self.pools.values().find_map(|pool| pool.peek(key)))
    }

    /// Bytes taken of the budget.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.budget.taken()
    }
}
