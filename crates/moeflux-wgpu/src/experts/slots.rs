//! The slots of the device, and which experts are in them.
//!
//! A slot holds the three matrices of an expert as kernels read them. Slots are allocated while
//! memory and the budget allow it; then the least recently used one is reused. Kernels that still
//! read it are not waited for: its next expert is copied there by a command after them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use moeflux_backend::{ResidencyChange, ResidencyRequest};
use moeflux_core::{Expert, ExpertId, ExpertKey, ExpertLayout, LayerIdx};

use crate::commands::encoder::Encoder;
use crate::device::buffer::Mem;
use crate::experts::layer_cache::ResidentShare;
use crate::experts::packing::Packing;
use crate::experts::resident_layer::{ADMITTED_ROWS, LayerCache, ResidentLayer, Slot, SlotTables};
use crate::weights::format::place;
use crate::weights::matrix::Matrix;

#[derive(Debug)]
struct Entry {
    slot: Slot,
    layout: Arc<ExpertLayout>,
    /// When it was used, counted in uses.
    used: u64,
}

/// Slots of one size.
#[derive(Debug, Default)]
struct Pool {
    free: Vec<Slot>,
    by_key: HashMap<ExpertKey, Entry>,
    /// Experts by the time of their last use.
    by_use: BTreeMap<u64, ExpertKey>,
    /// Bytes of the next slab.
    next_bytes: usize,
    n_slots: usize,
}

/// All slots of a backend.
#[derive(Debug)]
pub(crate) struct ExpertSlots {
    packings: Vec<Arc<Packing>>,
    pools: HashMap<usize, Pool>,
    budget: u64,
    taken: u64,
    clock: u64,
    is_full: bool,
    resident: HashMap<LayerIdx, Arc<ResidentLayer>>,
    /// Set where layers are resident in part.
    share: Option<ResidentShare>,
    /// Whether the device may have changed which experts are resident.
    is_stale: bool,
    /// The matrices of shared experts.
    shared: HashMap<LayerIdx, [Matrix; 3]>,
    /// Experts that were loaded or evicted, and whether each was resident afterwards. Layers that are
    /// resident in part report nothing: the host needs all of their experts.
    changes: Vec<ResidencyChange>,
}

/// Bytes of slabs. Each slab is much larger than the one before, so that most experts are in few
/// slabs: a kernel sees one at a time.
const FIRST_SLAB: usize = 1 << 20;
const SLAB_GROWTH: usize = 16;
const LAST_SLAB: usize = 4 << 30;

/// The smallest slab to allocate where there is no memory for a larger one.
const LEAST_SLAB: usize = 64 << 20;

/// Steps in which the largest budget that fits is searched.
const BUDGET_STEPS: u64 = 32;

impl ExpertSlots {
    /// Slots of at most `budget` bytes in total; the first of each size is allocated in any case.
    pub(crate) fn new(budget: u64) -> ExpertSlots {
        ExpertSlots {
            packings: Vec::new(),
            pools: HashMap::new(),
            budget,
            taken: 0,
            clock: 0,
            is_full: false,
            resident: HashMap::new(),
            share: None,
            is_stale: false,
            shared: HashMap::new(),
            changes: Vec::new(),
        }
    }

    /// Whether an expert has a slot.
    pub(crate) fn holds(&self, key: ExpertKey) -> bool {
        self.resident_slot(key).is_some()
            || self.pools.values().any(|it| it.by_key.contains_key(&key))
    }

    /// The slot of a resident expert and its layout; marks it as used.
    pub(crate) fn slot_of(&mut self, key: ExpertKey) -> Option<(Slot, Arc<ExpertLayout>)> {
        if let Some(slot) = self.resident_slot(key) {
            return Some((slot.clone(), Arc::clone(&self.resident[&key.layer].layout)));
        }
        self.clock += 1;
        let now = self.clock;
        self.pools.values_mut().find_map(|it| it.touch(key, now))
    }

    fn resident_slot(&self, key: ExpertKey) -> Option<&Slot> {
        let layer = self.resident.get(&key.layer)?;
        if self.is_stale && layer.cache.is_some() {
            return None;
        }
        layer.slots.get(key.expert.idx())?.as_ref()
    }

    /// Returns the residency changes since the last call: experts, and whether they are resident now.
    pub(crate) fn drain_residency_changes(&mut self) -> Vec<ResidencyChange> {
        std::mem::take(&mut self.changes)
    }

    /// Begins a step: slots that are used from now on are not reused until the next call.
    pub(crate) fn begin(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The slot of an expert, uploaded where it is not resident; `None` where all slots were used since
    /// `since`.
    pub(crate) fn get(
        &mut self,
        encoder: &mut Encoder,
        expert: &Arc<Expert>,
        since: u64,
    ) -> Option<Slot> {
        if let Some((slot, _)) = self.slot_of(expert.key) {
            return Some(slot);
        }
        let packing = self.packing(&expert.layout);
        let bytes = packing.bytes();
        self.clock += 1;
        let now = self.clock;
        if self.pools.entry(bytes).or_default().free.is_empty() {
            self.grow(encoder, bytes);
        }
        let pool = self.pools.entry(bytes).or_default();
        let mut slot = match pool.free.pop() {
            Some(slot) => slot,
            None => {
                let (used, key) = pool.by_use.first_key_value().map(|it| (*it.0, *it.1))?;
                if used >= since {
                    return None;
                }
                pool.by_use.remove(&used);
                self.changes.push(ResidencyChange { key, is_resident: false });
                pool.by_key.remove(&key)?.slot
            }
        };
        slot.places = packing.places(slot.at);
        if !encoder.upload(expert, &packing, (&slot.mem, slot.at as u64)) {
            pool.free.push(slot);
            return None;
        }
        self.changes.push(ResidencyChange { key: expert.key, is_resident: true });
        let entry = Entry { slot: slot.clone(), layout: Arc::clone(&packing.of), used: now };
        pool.by_use.insert(now, expert.key);
        pool.by_key.insert(expert.key, entry);
        Some(slot)
    }

    /// Whether `bytes` fit into the budget and into the memory of the device; allocates and frees them.
    pub(crate) fn fits(&self, encoder: &Encoder, bytes: u64) -> bool {
        if bytes > self.budget.saturating_sub(self.taken) {
            return false;
        }
        let most = encoder.context().max_binding_bytes().min(LAST_SLAB as u64);
        let mut left = bytes;
        let mut buffers = Vec::new();
        while left > 0 {
            let now = left.min(most);
            match encoder.context().try_storage(now, "experts") {
                Some(buffer) => buffers.push(buffer),
                None => break,
            }
            left -= now;
        }
        buffers.iter().for_each(wgpu::Buffer::destroy);
        left == 0
    }

    /// Registers the matrices of the shared expert of a layer.
    pub(crate) fn register_shared(&mut self, layer: LayerIdx, matrices: [Matrix; 3]) {
        self.shared.insert(layer, matrices);
    }

    /// Decides whether all experts fit, or which share of each layer; false where neither is possible.
    pub(crate) fn plan(&mut self, encoder: &Encoder, all: ResidencyRequest) -> bool {
        self.share = None;
        // An eighth for padding.
        if self.fits(encoder, all.bytes.saturating_add(all.bytes / 8)) {
            return true;
        }
        self.share = ResidentShare::of(encoder, all, || {
            let most = all.bytes.min(self.budget.saturating_sub(self.taken));
            let part = |steps: u64| most / BUDGET_STEPS * steps;
            let found = (1..=BUDGET_STEPS).rev().find(|it| self.fits(encoder, part(*it)));
            match found {
                Some(BUDGET_STEPS) => most,
                // Drivers need some of the last memory for themselves.
                found => part(found.unwrap_or(0).saturating_sub(1)),
            }
        });
        self.share.is_some()
    }

    /// Loads an expert of a layer with `n` experts; false where there is no memory.
    pub(crate) fn load(&mut self, encoder: &mut Encoder, expert: &Arc<Expert>, n: usize) -> bool {
        let packing = self.packing(&expert.layout);
        let key = expert.key;
        if !self.resident.contains_key(&key.layer) {
            let Some(layer) = self.begin_layer(encoder, (&packing, expert), n) else {
                return false;
            };
            self.resident.insert(key.layer, Arc::new(layer));
        }
        let layer = self.resident.get_mut(&key.layer).expect("it is there now");
        let layer = Arc::get_mut(layer).expect("no op is running");
        let Some(known) = layer.slots.get(key.expert.idx()) else { return false };
        if known.is_some() {
            return true;
        }
        // Layers whose experts differ in shape have no table.
        if layer.layout != expert.layout {
            return false;
        }
        if let Some((mem, at)) = layer.free.pop() {
            let slot = Slot { mem, at, places: packing.places(at) };
            if !encoder.upload(expert, &packing, (&slot.mem, at as u64)) {
                return false;
            }
            if layer.cache.is_none() {
                self.changes.push(ResidencyChange { key, is_resident: true });
            }
            layer.slots[key.expert.idx()] = Some(slot);
        } else if layer.cache.is_none() {
            return false;
        }
        let is_whole = match &mut layer.cache {
            Some(cache) => cache.note(expert),
            None => layer.slots.iter().all(Option::is_some),
        };
        !is_whole || layer.end(encoder, &packing)
    }

    /// Allocates a layer of `n` experts, or the share of it that fits.
    fn begin_layer(
        &mut self,
        encoder: &mut Encoder,
        (packing, expert): (&Packing, &Expert),
        n: usize,
    ) -> Option<ResidentLayer> {
        let layer = expert.key.layer;
        let shared = self.shared.get(&layer).filter(|it| packing.suits(it)).cloned();
        let has_shared = usize::from(shared.is_some());
        let (mut n_slots, mut cache) = (n, None);
        if let Some(share) = &self.share {
            let slots = share.slots(n, (expert.layout.record_bytes(), packing.bytes()));
            n_slots = slots.checked_sub(has_shared).filter(|it| *it >= share.top_k.max(1))?;
            cache = (n_slots < n).then(|| LayerCache::new(n, share.top_k));
        }
        let mut layer = self.reserve(encoder, packing, n_slots + has_shared)?;
        layer.slots = vec![None; n];
        layer.cache = cache;
        if let Some(matrices) = shared {
            layer.take_shared(encoder, packing, &matrices);
        }
        Some(layer)
    }

    /// Allocates memory for `n` experts of a layer.
    fn reserve(&mut self, encoder: &Encoder, packing: &Packing, n: usize) -> Option<ResidentLayer> {
        let (of, bytes) = (&packing.of, packing.bytes());
        let context = encoder.context();
        let most = usize::try_from(context.max_binding_bytes()).unwrap_or(usize::MAX);
        let per_buffer = (most / bytes).clamp(1, n.max(1));
        let (mut buffers, mut free, mut taken) = (Vec::new(), Vec::new(), 0);
        for first in (0..n).step_by(per_buffer) {
            let n_here = per_buffer.min(n - first);
            let len = (n_here * bytes) as u64;
            if len > self.budget.saturating_sub(self.taken + taken) {
                return None;
            }
            let mem = Mem::new(context.try_storage(len, "experts")?);
            taken += len;
            free.extend((0..n_here).map(|i| (mem.clone(), i * bytes)));
            buffers.push(mem);
        }
        free.reverse();
        self.taken += taken;
        let layout = Arc::clone(of);
        let (slots, cache) = (Vec::new(), None);
        Some(ResidentLayer { layout, slots, cache, shared: None, buffers, table: None, free })
    }

    /// Frees all resident layers.
    pub(crate) fn unload_all(&mut self, encoder: &mut Encoder) {
        for (idx, layer) in self.resident.drain() {
            if layer.cache.is_none() {
                let experts = (0..).map(ExpertId).zip(&layer.slots).filter(|it| it.1.is_some());
                let keys = experts.map(|(expert, _)| ExpertKey { layer: idx, expert });
                let left = keys.map(|key| ResidencyChange { key, is_resident: false });
                self.changes.extend(left);
            }
            for mem in &layer.buffers {
                self.taken -= mem.bytes();
                encoder.forget(mem);
            }
            let Some(cache) = &layer.cache else { continue };
            cache.tables.iter().flat_map(SlotTables::tables).for_each(|it| encoder.forget(it));
            // Kernels may not have fetched them yet.
            cache.experts().for_each(|it| encoder.retain(it));
        }
    }

    /// Marks the host's knowledge of partly resident layers as stale: the device may have admitted
    /// experts.
    pub(crate) fn mark_stale(&mut self) {
        self.is_stale = true;
    }

    /// The ranges to read back to know which experts are resident; none where the host knows it.
    pub(crate) fn stale_ranges(&self) -> impl Iterator<Item = (&Mem, u64, u64)> {
        let layers = self.partly_resident().filter(|_| self.is_stale);
        layers.map(|(layer, there)| there.known(self.resident[&layer].slots.len()))
    }

    /// Updates the slots of partly resident layers from what was read back.
    pub(crate) fn refresh(&mut self, bytes: &[u8]) {
        let mut words = bytes.as_chunks::<4>().0.iter().map(|it| u32::from_le_bytes(*it));
        let layers: Vec<LayerIdx> = self.partly_resident().map(|it| it.0).collect();
        for layer in layers {
            let layer =
                self.resident.get_mut(&layer).and_then(Arc::get_mut).expect("no op is running");
            let there = layer.cache.as_ref().and_then(|it| it.tables.as_ref());
            let there = there.expect("it is resident in part");
            for slot in &mut layer.slots {
                *slot = words.next().and_then(|it| there.slot(it));
            }
        }
        self.is_stale = false;
    }

    /// Layers of which only some experts are resident, always in the same order.
    fn partly_resident(&self) -> impl Iterator<Item = (LayerIdx, &SlotTables)> {
        self.resident
            .iter()
            .filter_map(|(layer, it)| it.cache.as_ref()?.tables.as_ref().map(|it| (*layer, it)))
    }

    /// Whether the device can choose the experts of this many rows of a layer.
    pub(crate) fn can_route(&self, layer: LayerIdx, rows: usize) -> bool {
        let Some(layer) = self.resident_layer(layer) else { return false };
        let Some(cache) = &layer.cache else { return true };
        rows <= ADMITTED_ROWS && cache.holds(rows * cache.top_k)
    }

    /// A layer that the device can route: all experts are resident, or it fetches the missing ones.
    pub(crate) fn resident_layer(&self, layer: LayerIdx) -> Option<&Arc<ResidentLayer>> {
        self.resident.get(&layer).filter(|it| it.table.is_some())
    }

    /// How experts of a layout are stored in slots.
    pub(crate) fn packing(&mut self, of: &Arc<ExpertLayout>) -> Arc<Packing> {
        let known = self.packings.iter().find(|it| Arc::ptr_eq(&it.of, of) || it.of == *of);
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let packing = Arc::new(Packing::new(of));
        self.packings.push(Arc::clone(&packing));
        packing
    }

    /// Allocates a slab of slots of `bytes` bytes each.
    fn grow(&mut self, encoder: &mut Encoder, bytes: usize) {
        let pool = self.pools.entry(bytes).or_default();
        let context = encoder.context();
        let most = usize::try_from(context.max_binding_bytes()).unwrap_or(usize::MAX);
        let left = usize::try_from(self.budget.saturating_sub(self.taken)).unwrap_or(usize::MAX);
        let slab = pool.next_bytes.clamp(FIRST_SLAB, LAST_SLAB).min(most).min(left);
        let n = (slab / bytes).max(usize::from(pool.n_slots == 0 || left >= bytes));
        if n == 0 || (self.is_full && pool.n_slots > 0) {
            return;
        }
        let (mem, n) = if pool.n_slots == 0 {
            // One has to be there.
            let mem = encoder.storage((n * bytes) as u64, "experts");
            if encoder.is_stand_in(&mem) {
                return;
            }
            (mem, n)
        } else {
            let Some(fewer) = slab_of_at_most(encoder, n, bytes) else {
                self.is_full = true;
                return;
            };
            fewer
        };
        self.taken += (n * bytes) as u64;
        pool.next_bytes = SLAB_GROWTH * slab.max(FIRST_SLAB);
        pool.n_slots += n;
        let places = [place(0, 0); 3];
        let slots = (0..n).map(|i| Slot { mem: mem.clone(), at: i * bytes, places });
        pool.free.extend(slots.rev());
    }
}

/// A slab of `n` slots of `bytes` bytes each and its number of slots; `n` is halved until there is
/// memory.
pub(crate) fn slab_of_at_most(
    encoder: &Encoder,
    mut n: usize,
    bytes: usize,
) -> Option<(Mem, usize)> {
    loop {
        let len = n * bytes;
        if let Some(buffer) = encoder.context().try_storage(len as u64, "experts") {
            return Some((Mem::new(buffer), n));
        }
        if len / 2 < LEAST_SLAB.max(bytes) {
            return None;
        }
        n /= 2;
    }
}

impl ResidentLayer {
    /// Uploads the tables by which kernels find experts; false where there is no memory, or kernels
    /// cannot fetch the missing experts.
    fn end(&mut self, encoder: &mut Encoder, packing: &Packing) -> bool {
        if let Some(mut cache) = self.cache.take() {
            cache.tables = SlotTables::of(encoder, self, &cache, packing);
            if cache.tables.is_none() {
                return false;
            }
            self.cache = Some(cache);
        }
        self.table = table(encoder, self);
        self.table.is_some()
    }

    /// Which of the layer's buffers a slot is in.
    pub(crate) fn buffer_of(&self, slot: &Slot) -> usize {
        let nth = self.buffers.iter().position(|it| it.id == slot.mem.id);
        nth.expect("slots are in the layer's buffers")
    }

    /// Copies the shared expert into the last free slot.
    fn take_shared(&mut self, encoder: &mut Encoder, packing: &Packing, matrices: &[Matrix; 3]) {
        let (mem, at) = self.free.remove(0);
        for (matrix, nth) in matrices.iter().zip(0..) {
            let to = packing.part(nth).0;
            let piece = &matrix.pieces[0];
            let from = (&piece.mem, 4 * u64::from(piece.place.elements));
            encoder.copy(from, (&mem, (at + to.start) as u64), to.len() as u64);
        }
        self.shared = Some(Slot { mem, at, places: packing.places(at) });
    }
}

impl Pool {
    /// The slot of an expert, marked as used.
    fn touch(&mut self, key: ExpertKey, now: u64) -> Option<(Slot, Arc<ExpertLayout>)> {
        let entry = self.by_key.get_mut(&key)?;
        self.by_use.remove(&entry.used);
        self.by_use.insert(now, key);
        entry.used = now;
        Some((entry.slot.clone(), Arc::clone(&entry.layout)))
    }
}

/// The places of the matrices of a layer's experts, then of the shared expert (of the first expert
/// where there is none).
fn table(encoder: &mut Encoder, layer: &ResidentLayer) -> Option<Mem> {
    // An expert without a slot is admitted before its entry is read.
    let first = || layer.slots.iter().flatten().next();
    let of_experts = || layer.slots.iter().filter_map(|it| it.as_ref().or_else(first));
    let slots = || of_experts().chain(layer.shared.as_ref().or_else(first));
    let places = slots().flat_map(|it| it.places).flat_map(|it| [it.elements, it.scales]);
    let buffers = slots().map(|it| layer.buffer_of(it) as u32);
    let words: Vec<u32> = places.chain(buffers).collect();
    let mem = Mem::new(encoder.context().try_storage(4 * words.len() as u64, "table")?);
    encoder.write(&mem, 0, bytemuck::cast_slice(&words));
    Some(mem)
}
