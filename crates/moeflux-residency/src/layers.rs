//! Layers whose experts stay on the device: whether all of them fit, and how they are loaded.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use moeflux_backend::{ResidencyChange, ResidencyRequest};
use moeflux_core::{Expert, ExpertKey, LayerIdx};

use crate::admission::MAX_ADMITTED_ROWS;
use crate::budget::Budget;
use crate::device::{LayerMemory, SlotMemory};
use crate::layer::{HostExperts, ResidentLayer};
use crate::packing::Packing;
use crate::pool::LAST_SLAB;
use crate::share::ResidentShare;
use crate::slot::{LocatedExpert, Slot};

/// Steps in which the largest share that fits is searched.
const SHARE_STEPS: u64 = 32;

type Layer<D> = ResidentLayer<<D as SlotMemory>::Buffer, <D as LayerMemory>::Tables>;

/// The resident layers of a device.
#[derive(Debug)]
pub(crate) struct ResidentLayers<D: LayerMemory> {
    by_idx: BTreeMap<LayerIdx, Arc<Layer<D>>>,
    /// Set where layers are resident in part.
    share: Option<ResidentShare>,
    /// Whether the device may have changed which experts of partly resident layers have slots.
    is_stale: bool,
    /// Shared experts, by layer.
    shared: HashMap<LayerIdx, D::SharedExpert>,
}

impl<D: LayerMemory> ResidentLayers<D> {
    pub(crate) fn new() -> ResidentLayers<D> {
        ResidentLayers {
            by_idx: BTreeMap::new(),
            share: None,
            is_stale: false,
            shared: HashMap::new(),
        }
    }

    /// A layer that the device can route: all experts are resident, or it fetches the missing ones.
    pub(crate) fn routable(&self, layer: LayerIdx) -> Option<&Arc<Layer<D>>> {
        self.by_idx.get(&layer).filter(|layer| layer.tables.is_some())
    }

    /// Whether the device can choose the experts of this many rows of a layer.
    pub(crate) fn can_route(&self, layer: LayerIdx, n_rows: usize) -> bool {
        let Some(layer) = self.routable(layer) else { return false };
        let Some(host) = &layer.host else { return true };
        n_rows <= MAX_ADMITTED_ROWS && host.can_admit(n_rows)
    }

    /// Where an expert of a resident layer is, as far as the host knows.
    pub(crate) fn locate(&self, key: ExpertKey) -> Option<LocatedExpert<D::Buffer>> {
        let layer = self.by_idx.get(&key.layer)?;
        if self.is_stale && layer.host.is_some() {
            return None;
        }
        let slot = layer.slots.get(key.expert.idx())?.clone()?;
        Some(LocatedExpert { slot, packing: Arc::clone(&layer.packing) })
    }

    /// Whether an expert stays until its layer is unloaded.
    pub(crate) fn keeps(&self, key: ExpertKey) -> bool {
        let layer = self.by_idx.get(&key.layer).filter(|layer| layer.host.is_none());
        let slot = layer.and_then(|layer| layer.slots.get(key.expert.idx()));
        slot.is_some_and(Option::is_some)
    }

    pub(crate) fn register_shared(&mut self, layer: LayerIdx, shared: D::SharedExpert) {
        self.shared.insert(layer, shared);
    }

    /// Decides whether all experts fit, or which share of each layer; false where neither is possible.
    pub(crate) fn plan(&mut self, device: &D, budget: &Budget, request: ResidencyRequest) -> bool {
        self.share = None;
        // An eighth for padding.
        if fits(device, budget, request.bytes.saturating_add(request.bytes / 8)) {
            return true;
        }
        if !device.fetches_missing() || !request.stays_in_host || request.bytes == 0 {
            return false;
        }
        let most = request.bytes.min(budget.left());
        let part = |steps: u64| most / SHARE_STEPS * steps;
        let found = (1..=SHARE_STEPS).rev().find(|steps| fits(device, budget, part(*steps)));
        let room = match found {
            Some(SHARE_STEPS) => most,
            // Drivers need some of the last memory for themselves.
            found => part(found.unwrap_or(0).saturating_sub(1)),
        };
        self.share = Some(ResidentShare::new(request, room));
        true
    }

    /// Loads an expert of a layer with `n_experts`.
    pub(crate) fn load(
        &mut self,
        device: &mut D,
        budget: &mut Budget,
        expert: &Arc<Expert>,
        packing: &Arc<Packing>,
        n_experts: usize,
    ) -> Loaded {
        if !self.reserve(device, budget, expert.key.layer, packing, n_experts) {
            return Loaded::FAILED;
        }
        self.load_one(device, expert, packing)
    }

    /// Allocates a layer of `n_experts`, or the share of it that fits, unless it is there already; false
    /// where there is no memory.
    pub(crate) fn reserve(
        &mut self,
        device: &mut D,
        budget: &mut Budget,
        layer: LayerIdx,
        packing: &Arc<Packing>,
        n_experts: usize,
    ) -> bool {
        if !self.by_idx.contains_key(&layer) {
            let begun = self.begin_layer(device, budget, layer, packing, n_experts);
            let Some(begun) = begun else { return false };
            self.by_idx.insert(layer, Arc::new(begun));
        }
        true
    }

    /// Whether an expert that is not there has a slot in its layer.
    pub(crate) fn takes(&self, expert: &Expert) -> bool {
        let layer = self.by_idx.get(&expert.key.layer);
        layer.is_some_and(|layer| layer.host.is_none() && *layer.packing.layout() == expert.layout)
    }

    /// Loads an expert of a layer that is [reserved](ResidentLayers::reserve).
    pub(crate) fn load_one(
        &mut self,
        device: &mut D,
        expert: &Arc<Expert>,
        packing: &Arc<Packing>,
    ) -> Loaded {
        let layer = self.by_idx.get_mut(&expert.key.layer).expect("the layer is reserved");
        let layer = Arc::get_mut(layer).expect("no op is running");
        layer.load(device, expert, packing)
    }

    fn begin_layer(
        &self,
        device: &mut D,
        budget: &mut Budget,
        layer: LayerIdx,
        packing: &Arc<Packing>,
        n_experts: usize,
    ) -> Option<Layer<D>> {
        let shared = self.shared.get(&layer);
        let shared = shared.filter(|shared| device.is_stored_alike(shared, packing));
        let n_shared = usize::from(shared.is_some());
        let (mut n_slots, mut host) = (n_experts, None);
        if let Some(share) = &self.share {
            let all = share.n_slots(n_experts, packing.layout(), packing);
            n_slots = all.checked_sub(n_shared).filter(|n_slots| *n_slots >= share.top_k.max(1))?;
            host = (n_slots < n_experts).then(|| HostExperts::new(n_experts, share.top_k));
        }
        let Reserved { buffers, mut free, bytes } =
            reserve(device, budget, packing.bytes(), n_slots + n_shared)?;
        let shared = shared.map(|shared| {
            // The last one: the device numbers the others in the order of experts.
            let slot = free.remove(0);
            device.copy_shared(shared, packing, &slot);
            slot
        });
        let (packing, slots) = (Arc::clone(packing), vec![None; n_experts]);
        Some(ResidentLayer { packing, slots, free, buffers, bytes, shared, host, tables: None })
    }

    /// Frees all resident layers; returns the experts that left of those that were reported as
    /// resident.
    pub(crate) fn unload_all(&mut self, device: &mut D, budget: &mut Budget) -> Vec<ExpertKey> {
        let mut left = Vec::new();
        for (idx, layer) in std::mem::take(&mut self.by_idx) {
            if layer.host.is_none() {
                left.extend(layer.filled().map(|(expert, _)| ExpertKey { layer: idx, expert }));
            }
            budget.give_back(layer.bytes);
            layer.buffers.iter().for_each(|buffer| device.free_after_use(buffer));
            layer.tables.iter().for_each(|tables| device.free_tables(tables));
            // Kernels may not have fetched them yet.
            let fetched = layer.host.iter().flat_map(HostExperts::experts);
            fetched.for_each(|expert| device.retain(expert));
        }
        left
    }

    /// Marks the host's knowledge of partly resident layers as stale: the device may have admitted
    /// experts.
    pub(crate) fn mark_stale(&mut self) {
        self.is_stale = true;
    }

    /// The layers whose slots the host has to read back to know what is in them, always in the same
    /// order; none where it knows.
    pub(crate) fn stale(&self) -> impl Iterator<Item = &Layer<D>> {
        let layers = self.by_idx.values().map(|layer| &**layer);
        layers.filter(|layer| self.is_stale && layer.is_partly_resident())
    }

    /// Updates the stale layers by the number of each expert's slot.
    pub(crate) fn refresh(&mut self, slot_numbers: &[u32]) {
        let mut slot_numbers = slot_numbers.iter().copied();
        for layer in self.by_idx.values_mut().filter(|layer| layer.is_partly_resident()) {
            let layer = Arc::get_mut(layer).expect("no op is running");
            layer.assign(&mut slot_numbers);
        }
        self.is_stale = false;
    }
}

/// What became of an expert that was to be loaded.
pub(crate) struct Loaded {
    /// False where memory is short, or the expert is not like the others of its layer.
    pub(crate) is_loaded: bool,
    /// Set where the host chooses which experts of the layer are resident, and this one is now.
    pub(crate) change: Option<ResidencyChange>,
}

impl Loaded {
    const FAILED: Loaded = Loaded { is_loaded: false, change: None };
    const UNCHANGED: Loaded = Loaded { is_loaded: true, change: None };
}

impl<B: Clone + PartialEq, T> ResidentLayer<B, T> {
    /// Copies an expert into a free slot, or only notes where the host has it.
    fn load<D: LayerMemory<Buffer = B, Tables = T>>(
        &mut self,
        device: &mut D,
        expert: &Arc<Expert>,
        packing: &Arc<Packing>,
    ) -> Loaded {
        let key = expert.key;
        let Some(known) = self.slots.get(key.expert.idx()) else { return Loaded::FAILED };
        if known.is_some() || self.tables.is_some() {
            return Loaded::UNCHANGED;
        }
        // Layers whose experts differ in shape have no tables.
        if *self.packing.layout() != expert.layout {
            return Loaded::FAILED;
        }
        let mut change = None;
        if let Some(slot) = self.free.pop() {
            if !device.upload(expert, packing, &slot) {
                self.free.push(slot);
                return Loaded::FAILED;
            }
            self.slots[key.expert.idx()] = Some(slot);
            // The host needs all experts of a layer that is resident in part.
            change = self.host.is_none().then_some(ResidencyChange { key, is_resident: true });
        } else if self.host.is_none() {
            return Loaded::FAILED;
        }
        let is_whole = match &mut self.host {
            Some(host) => host.note(expert),
            None => self.slots.iter().all(Option::is_some),
        };
        Loaded { is_loaded: !is_whole || self.finish(device), change }
    }

    /// Makes the tables by which kernels find experts; whether there are any.
    fn finish<D: LayerMemory<Buffer = B, Tables = T>>(&mut self, device: &mut D) -> bool {
        let filled = self.slots.iter().flatten().cloned().collect();
        if let Some(host) = &mut self.host {
            host.slots = filled;
        }
        self.tables = device.build_tables(self);
        self.tables.is_some()
    }
}

/// Memory for the experts of a layer.
struct Reserved<B> {
    buffers: Vec<B>,
    /// The slots, the first one last.
    free: Vec<Slot<B>>,
    bytes: u64,
}

/// Allocates `n_slots` slots of `slot_bytes` each, in as few buffers as possible.
fn reserve<D: SlotMemory>(
    device: &D,
    budget: &mut Budget,
    slot_bytes: usize,
    n_slots: usize,
) -> Option<Reserved<D::Buffer>> {
    let most = usize::try_from(device.max_buffer_bytes()).unwrap_or(usize::MAX);
    let per_buffer = (most / slot_bytes).clamp(1, n_slots.max(1));
    let mut reserved = Reserved { buffers: Vec::new(), free: Vec::new(), bytes: 0 };
    for first in (0..n_slots).step_by(per_buffer) {
        let n_here = per_buffer.min(n_slots - first);
        let bytes = (n_here * slot_bytes) as u64;
        let has_room = bytes <= budget.left().saturating_sub(reserved.bytes);
        let buffer = has_room.then(|| device.try_allocate(bytes)).flatten();
        let Some(buffer) = buffer else {
            reserved.buffers.into_iter().for_each(|buffer| device.free_unused(buffer));
            return None;
        };
        reserved.bytes += bytes;
        let slots = (0..n_here).map(|i| Slot { buffer: buffer.clone(), at: i * slot_bytes });
        reserved.free.extend(slots);
        reserved.buffers.push(buffer);
    }
    reserved.free.reverse();
    budget.take(reserved.bytes);
    Some(reserved)
}

/// Whether `bytes` fit into the budget and into the memory of the device; allocates and frees them.
fn fits<D: SlotMemory>(device: &D, budget: &Budget, bytes: u64) -> bool {
    if bytes > budget.left() {
        return false;
    }
    let most = device.max_buffer_bytes().min(LAST_SLAB as u64);
    let mut left = bytes;
    let mut buffers = Vec::new();
    while left > 0 {
        let now = left.min(most);
        match device.try_allocate(now) {
            Some(buffer) => buffers.push(buffer),
            None => break,
        }
        left -= now;
    }
    buffers.into_iter().for_each(|buffer| device.free_unused(buffer));
    left == 0
}
