//! Experts that a device keeps, and the memory of those that stay in the cache.

use std::sync::Arc;

use moeflux_backend::{ExpertResidency, ResidencyRequest};
use moeflux_core::{Expert, ExpertBank, ExpertId, HostBuf, HostSlab, LayerBank, LayerIdx};
use moeflux_model::ModelShape;
use moeflux_store::{ExpertStore, IoMode, SlotAlloc};

use crate::device::{Device, DeviceLimits};
use crate::error::EngineError;
use crate::options::EngineOptions;
use crate::plan::Plan;

/// Bytes of experts that the device may hold; padding has no say in whether all
/// of them may.
pub(crate) fn device_expert_bytes(plan: &Plan, options: &EngineOptions) -> Option<u64> {
    let bytes = plan.device_expert_bytes.or(options.experts.device_cache);
    bytes.map(|it| if it >= plan.expert_bytes { u64::MAX } else { it })
}

/// Experts that are read together where nothing bounds their number.
const KEPT_TOGETHER: usize = 64;

/// Gives the device all experts where it has room for them, or for some while the
/// cache has all: it then routes without being asked. `progress` learns the bytes
/// that it has. Tells whether it needs those of the cache, which else gives back what
/// it has no more use for.
pub(crate) fn keep_experts(
    residency: &mut dyn ExpertResidency,
    experts: &ExpertStore,
    (layers, shape): (&[LayerIdx], &ModelShape),
    expert_bytes: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<bool, EngineError> {
    let request = ResidencyRequest {
        bytes: expert_bytes,
        record_bytes: experts.slot_bytes() as u64,
        top_k: shape.top_k,
        stays_in_host: false,
    };
    let stay = !residency.plan(request);
    let stays_in_host = stay;
    if stay
        && !(holds_all(experts) && residency.plan(ResidencyRequest { stays_in_host, ..request }))
    {
        return Ok(false);
    }
    let ids: Vec<ExpertId> =
        (0..shape.n_experts).filter_map(|it| u16::try_from(it).ok()).map(ExpertId).collect();
    // While one part is copied the next one is read, where the cache holds four.
    let n_slots = match experts.stats().n_slots {
        0 => usize::MAX,
        n_slots => n_slots,
    };
    let n_part = (n_slots / 4).clamp(shape.top_k.max(1), KEPT_TOGETHER.max(shape.top_k));
    let reads_ahead = n_part <= n_slots / 4;
    let parts = layers.iter().flat_map(|layer| ids.chunks(n_part).map(|it| (*layer, it)));
    let parts: Vec<Part<'_>> = parts.collect();
    let mut keep = |part: &[Arc<Expert>]| {
        let are_kept = part.iter().all(|it| residency.load(it, shape.n_experts));
        residency.release_experts(0);
        are_kept
    };
    let is_done = if stay {
        bring(experts, &parts, reads_ahead, &mut |_| true, progress)?
            && take_all(experts, &parts, &mut keep)?
    } else {
        bring(experts, &parts, reads_ahead, &mut keep, progress)?
    };
    if !is_done {
        residency.unload_all();
        return Ok(false);
    }
    if !stay {
        experts.resize((shape.top_k * experts.slot_bytes()) as u64)?;
    }
    experts.reset_stats();
    residency.counters().reset();
    Ok(stay)
}

/// Experts of a layer.
type Part<'a> = (LayerIdx, &'a [ExpertId]);

/// Has experts brought and taken, part by part; false as soon as some are refused.
fn bring(
    experts: &ExpertStore,
    parts: &[Part<'_>],
    reads_ahead: bool,
    take: &mut dyn FnMut(&[Arc<Expert>]) -> bool,
    progress: &mut dyn FnMut(u64),
) -> Result<bool, EngineError> {
    let mut parts = parts.iter().map(|(layer, part)| experts.request(*layer, part));
    let (mut next, mut brought) = (None, 0);
    while let Some(mut arrivals) = next.take().or_else(|| parts.next()) {
        next = if reads_ahead { parts.next() } else { None };
        let mut part = Vec::new();
        while let Some(batch) = arrivals.next_batch()? {
            part.extend(batch.into_iter().map(|it| it.1));
        }
        if !take(&part) {
            return Ok(false);
        }
        brought += part.iter().map(|it| it.layout.record_bytes() as u64).sum::<u64>();
        progress(brought);
    }
    Ok(true)
}

/// Has experts taken that stay in the cache; false where one is not there any more:
/// a cache that shrinks meanwhile has no slot for it as long as others are held.
fn take_all(
    experts: &ExpertStore,
    parts: &[Part<'_>],
    take: &mut dyn FnMut(&[Arc<Expert>]) -> bool,
) -> Result<bool, EngineError> {
    for (layer, part) in parts {
        let arrivals = experts.request(*layer, part);
        let there: Vec<Arc<Expert>> = arrivals.resident().cloned().collect();
        if there.len() < part.len() || !take(&there) {
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

/// Bytes of the slabs that slots lie in: a layer lies in few of them where a GPU may
/// fetch what it chose from all of its experts, as kernels read few at once.
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
    let of_layer = |it: &LayerBank| it.layout.record_bytes() * it.n_experts;
    let layer = bank.layers.iter().flatten().map(of_layer).max().unwrap_or(0);
    let bytes = (layer / 2).min(MOST_SLAB_BYTES).min(most);
    Ok((bytes / SLAB_GRAIN * SLAB_GRAIN).max(SLAB_BYTES))
}

/// Slots side by side in slabs of so many bytes, so that they share huge pages.
pub(crate) fn slot_memory(slab_bytes: usize) -> SlotAlloc {
    let mut slab: Option<HostSlab> = None;
    Box::new(move |len| {
        if let Some(slot) = slab.as_mut().and_then(|slab| slab.carve(len)) {
            return Ok(slot);
        }
        let mut fresh = HostSlab::try_new(slab_bytes.max(len).next_multiple_of(SLAB_GRAIN))?;
        let slot = fresh.carve(len);
        slab = Some(fresh);
        slot.map_or_else(|| HostBuf::try_zeroed(len), Ok)
    })
}
