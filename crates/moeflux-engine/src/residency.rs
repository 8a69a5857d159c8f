//! Experts that are resident on a device, and the memory of those in the host's cache.

use std::sync::Arc;

use moeflux_backend::{ExpertResidency, ResidencyRequest};
use moeflux_core::{
    Expert, ExpertBank, ExpertId, HostBuf, HostSlab, LayerBank, LayerIdx, PAGE_BYTES,
};
use moeflux_model::ModelShape;
use moeflux_store::{Arrivals, ExpertStore, IoMode, SlotAlloc};

use crate::device::{Device, DeviceLimits};
use crate::error::EngineError;
use crate::options::EngineOptions;
use crate::plan::Plan;

/// Bytes of experts that the device may hold. A limit that admits all experts admits their padding,
/// too.
pub(crate) fn device_expert_bytes(plan: &Plan, options: &EngineOptions) -> Option<u64> {
    let bytes = plan.device_expert_bytes.or(options.experts.device_cache);
    bytes.map(|bytes| if bytes >= plan.expert_bytes { u64::MAX } else { bytes })
}

/// Experts that are read together where nothing bounds their number.
const READ_TOGETHER: usize = 64;

/// Slots of a cache from which on experts are loaded while steps run. A part has one of this many, and
/// up to [`PARTS_AHEAD`] and one more are on their way.
const LEAST_SLOTS: usize = 8;

/// Parts that are read while another one is uploaded.
pub(crate) const PARTS_AHEAD: usize = 2;

/// Where the routed experts of a model are while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Residency {
    /// They stream through the host's cache.
    Streamed,
    /// The device has memory for all of them, and gets these while it computes.
    Coming(Vec<ExpertPart>),
    /// All of them are on the device; the host's cache has the least that it can.
    Device,
    /// Some are on the device, and all of them in the host's cache, from which the device fetches.
    DeviceAndHost,
}

/// The routed experts of a model.
pub(crate) struct ModelExperts<'a> {
    /// Layers that have any, those of multi-token prediction included.
    pub(crate) layers: &'a [LayerIdx],
    /// The model's figures.
    pub(crate) shape: &'a ModelShape,
    /// Bytes of all of them.
    pub(crate) n_bytes: u64,
    /// Whether those that fit on the device are loaded while the engine answers.
    pub(crate) load_later: bool,
}

/// Experts of a layer that are read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpertPart {
    /// The layer.
    pub(crate) layer: LayerIdx,
    /// Some of its experts.
    pub(crate) experts: Vec<ExpertId>,
}

/// Loads all experts onto the device where it has room for them; else, where the host's cache holds
/// all, as many as the device has room for. The device then routes by itself. `progress` is called
/// with the bytes loaded so far.
pub(crate) fn load_all_experts(
    device: &mut dyn ExpertResidency,
    experts: &ExpertStore,
    model: &ModelExperts<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<Residency, EngineError> {
    let (n_experts, top_k) = (model.shape.n_experts, model.shape.top_k);
    let n_slots = match experts.stats().n_slots {
        0 => usize::MAX,
        n_slots => n_slots,
    };
    // Steps want slots, too, while others are loaded.
    if model.load_later && n_slots >= LEAST_SLOTS.max(4 * top_k) && reserve(device, experts, model)
    {
        return Ok(Residency::Coming(cut(model, (n_slots / LEAST_SLOTS).min(READ_TOGETHER))));
    }
    let Some(residency) = choose_residency(device, experts, model) else {
        return Ok(Residency::Streamed);
    };
    // While one part is copied the next one is read, where the cache holds four.
    let n_part = (n_slots / 4).clamp(top_k.max(1), READ_TOGETHER.max(top_k));
    let reads_ahead = n_part <= n_slots / 4;
    let parts = cut(model, n_part);
    let mut load = |part: &[Arc<Expert>]| {
        let are_loaded = part.iter().all(|expert| device.load(expert, n_experts));
        device.release_experts(0);
        are_loaded
    };
    let is_done = match residency {
        Residency::DeviceAndHost => {
            read_parts(experts, &parts, reads_ahead, &mut |_| true, progress)?
                && load_from_cache(experts, &parts, &mut load)?
        }
        _ => read_parts(experts, &parts, reads_ahead, &mut load, progress)?,
    };
    if !is_done {
        device.unload_all();
        return Ok(Residency::Streamed);
    }
    if residency == Residency::Device {
        experts.resize((top_k * experts.slot_bytes()) as u64)?;
    }
    experts.reset_stats();
    device.counters().reset();
    Ok(residency)
}

/// All experts of a model, in parts of at most `n_part`.
fn cut(model: &ModelExperts<'_>, n_part: usize) -> Vec<ExpertPart> {
    let ids: Vec<ExpertId> = (0..).map(ExpertId).take(model.shape.n_experts).collect();
    let of_layer = |layer: &LayerIdx| {
        let layer = *layer;
        ids.chunks(n_part).map(move |ids| ExpertPart { layer, experts: ids.to_vec() })
    };
    model.layers.iter().flat_map(of_layer).collect()
}

/// Has the device take memory for all experts; false where it has too little, or does not keep them.
fn reserve(
    device: &mut dyn ExpertResidency,
    experts: &ExpertStore,
    model: &ModelExperts<'_>,
) -> bool {
    let banks = model
        .layers
        .iter()
        .filter_map(|layer| experts.bank().layers[layer.idx()].as_ref().map(|bank| (*layer, bank)));
    let mut reserve =
        banks.map(|(layer, bank)| device.reserve(layer, &bank.layout, bank.n_experts));
    let has_room = reserve.all(|is_reserved| is_reserved);
    drop(reserve);
    // Caches and buffers of steps take memory later.
    let others = ResidencyRequest {
        bytes: model.n_bytes / 16,
        record_bytes: experts.slot_bytes() as u64,
        top_k: model.shape.top_k,
        stays_in_host: false,
    };
    let has_room = has_room && device.plan(others);
    if !has_room {
        device.unload_all();
    }
    has_room
}

/// Plans residency on the device; `None` where it has no room for any.
fn choose_residency(
    device: &mut dyn ExpertResidency,
    experts: &ExpertStore,
    model: &ModelExperts<'_>,
) -> Option<Residency> {
    let request = ResidencyRequest {
        bytes: model.n_bytes,
        record_bytes: experts.slot_bytes() as u64,
        top_k: model.shape.top_k,
        stays_in_host: false,
    };
    if device.plan(request) {
        return Some(Residency::Device);
    }
    let has_room =
        holds_all(experts) && device.plan(ResidencyRequest { stays_in_host: true, ..request });
    has_room.then_some(Residency::DeviceAndHost)
}

/// Reads experts and gives them to `take`, part by part; false as soon as it refuses one.
fn read_parts(
    experts: &ExpertStore,
    parts: &[ExpertPart],
    reads_ahead: bool,
    take: &mut dyn FnMut(&[Arc<Expert>]) -> bool,
    progress: &mut dyn FnMut(u64),
) -> Result<bool, EngineError> {
    let mut parts = parts.iter().map(|part| experts.request(part.layer, &part.experts));
    let (mut next, mut n_read) = (None, 0);
    while let Some(arrivals) = next.take().or_else(|| parts.next()) {
        next = if reads_ahead { parts.next() } else { None };
        let part = arrived(arrivals)?;
        if !take(&part) {
            return Ok(false);
        }
        n_read += part.iter().map(|expert| expert.layout.record_bytes() as u64).sum::<u64>();
        progress(n_read);
    }
    Ok(true)
}

/// Waits for all experts of a request.
///
/// # Errors
/// Where one cannot be read.
pub(crate) fn arrived(mut arrivals: Arrivals<'_>) -> Result<Vec<Arc<Expert>>, EngineError> {
    let mut experts = Vec::new();
    while let Some(batch) = arrivals.next_batch()? {
        experts.extend(batch.into_iter().map(|(_, expert)| expert));
    }
    Ok(experts)
}

/// Gives experts that stay in the cache to `take`; false where one was evicted, because the cache
/// shrank while they were read.
fn load_from_cache(
    experts: &ExpertStore,
    parts: &[ExpertPart],
    take: &mut dyn FnMut(&[Arc<Expert>]) -> bool,
) -> Result<bool, EngineError> {
    for part in parts {
        let arrivals = experts.request(part.layer, &part.experts);
        let there: Vec<Arc<Expert>> = arrivals.resident().cloned().collect();
        if there.len() < part.experts.len() || !take(&there) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the cache has a slot for every expert.
pub(crate) fn holds_all(experts: &ExpertStore) -> bool {
    experts.stats().n_slots >= experts.bank().n_experts()
}

/// Least and most bytes of slabs.
const SLAB_BYTES: usize = 32 << 20;
const MOST_SLAB_BYTES: usize = 1 << 30;

/// Slabs are multiples of the pages of all systems, as devices read whole pages.
const SLAB_GRAIN: usize = 64 << 10;

/// Bytes of the slabs that slots are cut from. A GPU that fetches what it chose from all experts of
/// a layer reads from few buffers at once, so a layer is in few slabs there.
pub(crate) fn slab_bytes(
    plan: &Plan,
    bank: &ExpertBank,
    device: Device,
) -> Result<usize, EngineError> {
    let holds_all = plan.io_mode != IoMode::Mmap && plan.cache_bytes >= plan.expert_bytes;
    if device == Device::Cpu || !holds_all {
        return Ok(SLAB_BYTES);
    }
    let most = usize::try_from(DeviceLimits::of(device)?.max_buffer_bytes).unwrap_or(usize::MAX);
    let of_layer = |layer: &LayerBank| layer.layout.record_bytes() * layer.n_experts;
    let layer = bank.layers.iter().flatten().map(of_layer).max().unwrap_or(0);
    let bytes = (layer / 2).min(MOST_SLAB_BYTES).min(most);
    Ok((bytes / SLAB_GRAIN * SLAB_GRAIN).max(SLAB_BYTES))
}

/// Slots next to each other in slabs of up to `slab_bytes`, so that they share huge pages. A slab
/// ends where its last slot does: a huge page there would take memory that no slot uses.
pub(crate) fn slot_memory(slab_bytes: usize) -> SlotAlloc {
    let mut slab: Option<HostSlab> = None;
    Box::new(move |len| {
        if let Some(slot) = slab.as_mut().and_then(|slab| slab.carve(len)) {
            return Ok(slot);
        }
        let paged = len.max(1).next_multiple_of(PAGE_BYTES);
        let n_slots = (slab_bytes / paged).max(1);
        let mut fresh = HostSlab::try_new((n_slots * paged).next_multiple_of(SLAB_GRAIN))?;
        let slot = fresh.carve(len);
        slab = Some(fresh);
        slot.map_or_else(|| HostBuf::try_zeroed(len), Ok)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_end_where_their_last_slot_does() {
        for (len, per_slab) in [(PAGE_BYTES, 8192), (3_420_160, 9), (17 << 20, 1), (40 << 20, 1)] {
            let mut slots = slot_memory(SLAB_BYTES);
            let made: Vec<HostBuf> = (0..2 * per_slab).map(|_| slots(len).unwrap()).collect();
            let [first, last] = [&made[0], &made[per_slab]].map(HostBuf::guard);
            assert!(made[..per_slab].iter().all(|slot| slot.slab_id() == made[0].slab_id()));
            assert_ne!(made[0].slab_id(), made[per_slab].slab_id(), "slots of {len} bytes");
            for slab in [first, last] {
                let unused = slab.bytes() - per_slab * len;
                assert!(unused < SLAB_GRAIN, "{unused} bytes after slots of {len}");
            }
        }
    }
}
