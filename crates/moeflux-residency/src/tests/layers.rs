//! Layers that stay on the device, whole or in part.

use std::sync::Arc;

use moeflux_backend::ResidencyRequest;
use moeflux_core::{Expert, LayerIdx};

use super::fake::{FakeBuffer, FakeDevice, expert, key, layout, slot_bytes};
use crate::{ExpertSlots, Slot};

const N_EXPERTS: usize = 12;
const TOP_K: usize = 3;
const LAYER: LayerIdx = LayerIdx(0);

struct Bench {
    device: FakeDevice,
    slots: ExpertSlots<FakeDevice>,
    experts: Vec<Arc<Expert>>,
}

impl Bench {
    /// A device that has memory for this many experts.
    fn of_slots(n_slots: usize) -> Bench {
        let bytes = (n_slots * slot_bytes(0)) as u64;
        Bench {
            device: FakeDevice::with_memory(bytes),
            slots: ExpertSlots::new(bytes),
            experts: (0..N_EXPERTS as u16).map(|id| expert(0, id)).collect(),
        }
    }

    /// A device that keeps `n_slots` of the experts, and a quarter more memory for others.
    fn partly_resident(n_slots: usize) -> Bench {
        let record = layout(0).record_bytes() as u64;
        let mut bench = Bench::of_slots(0);
        let bytes = (n_slots as u64 * record * 4).div_ceil(3) + 3000;
        bench.device.memory.set(bytes);
        bench.slots = ExpertSlots::new(bytes);
        assert!(bench.plan(true) && bench.load());
        bench
    }

    fn plan(&mut self, stays_in_host: bool) -> bool {
        let record_bytes = layout(0).record_bytes() as u64;
        let bytes = N_EXPERTS as u64 * record_bytes;
        let request = ResidencyRequest { bytes, record_bytes, top_k: TOP_K, stays_in_host };
        self.slots.plan(&self.device, request)
    }

    fn load(&mut self) -> bool {
        let Bench { device, slots, experts } = self;
        experts.iter().all(|expert| slots.load(device, expert, N_EXPERTS))
    }

    /// Experts that the host knows to be resident.
    fn n_known(&self) -> usize {
        (0..N_EXPERTS as u16).filter(|id| self.slots.holds(key(0, *id))).count()
    }

    /// The slots of the layer as the device numbers them.
    fn numbered(&self) -> Vec<Slot<FakeBuffer>> {
        let layer = self.slots.routable_layer(LAYER).unwrap();
        layer.host().unwrap().slots().to_vec()
    }
}

#[test]
fn a_layer_that_fits_is_resident_until_all_are_unloaded() {
    let mut bench = Bench::of_slots(14);
    assert!(bench.plan(true));
    assert_eq!(bench.device.allocated_bytes(), 0, "a plan takes nothing");
    assert!(bench.load());
    assert!(bench.slots.can_route(LAYER, 1000));
    let layer = Arc::clone(bench.slots.routable_layer(LAYER).unwrap());
    assert!(layer.host().is_none() && layer.n_experts() == N_EXPERTS);
    let tables = layer.tables().unwrap();
    assert_eq!(tables.0, layer.slots(), "tables are made when all are there");
    for (id, slot) in layer.filled() {
        assert_eq!(bench.device.expert_in(slot), Some(key(0, id.0)));
        assert_eq!(layer.buffer_idx(slot), 0);
    }
    drop(layer);
    let changes = bench.slots.drain_residency_changes();
    assert!(changes.len() == N_EXPERTS && changes.iter().all(|change| change.is_resident));
    assert!(bench.load(), "they are there");
    assert_eq!(bench.device.n_uploads, N_EXPERTS);
    bench.slots.unload_all(&mut bench.device);
    assert_eq!((bench.device.allocated_bytes(), bench.slots.taken_bytes()), (0, 0));
    assert!(bench.n_known() == 0 && !bench.slots.can_route(LAYER, 1));
    let changes = bench.slots.drain_residency_changes();
    assert!(changes.len() == N_EXPERTS && changes.iter().all(|change| !change.is_resident));
    assert_eq!(bench.device.retained, []);
}

#[test]
fn what_is_uploaded_of_a_reserved_layer_stays_in_it() {
    let mut bench = Bench::of_slots(14);
    let Bench { device, slots, experts } = &mut bench;
    assert!(slots.reserve(device, LAYER, &experts[0].layout, N_EXPERTS));
    let taken = slots.taken_bytes();
    for uses in 1..4 {
        let since = slots.begin_step();
        for expert in [&experts[7], &experts[2]] {
            let located = slots.locate_or_upload(device, expert, since).unwrap();
            assert_eq!(device.expert_in(&located.slot), Some(expert.key));
        }
        assert_eq!((device.n_uploads, slots.taken_bytes()), (2, taken), "use {uses}");
    }
    assert!(!slots.can_route(LAYER, 1), "ten are missing");
    assert!(bench.load() && bench.slots.can_route(LAYER, 1));
    assert_eq!(bench.device.n_uploads, N_EXPERTS, "each once");
    let changes = bench.slots.drain_residency_changes();
    assert!(changes.len() == N_EXPERTS && changes.iter().all(|change| change.is_resident));
}

#[test]
fn the_last_upload_of_a_reserved_layer_makes_it_routable() {
    let mut bench = Bench::of_slots(14);
    let Bench { device, slots, experts } = &mut bench;
    assert!(slots.reserve(device, LAYER, &experts[0].layout, N_EXPERTS));
    let since = slots.begin_step();
    for expert in &*experts {
        assert!(!slots.can_route(LAYER, 1));
        assert!(slots.locate_or_upload(device, expert, since).is_some());
    }
    assert!(slots.can_route(LAYER, 1000));
}

#[test]
fn a_layer_that_cannot_be_reserved_takes_nothing() {
    let mut bench = Bench::of_slots(8);
    let layout = Arc::clone(&bench.experts[0].layout);
    assert!(!bench.slots.reserve(&mut bench.device, LAYER, &layout, N_EXPERTS));
    assert_eq!((bench.device.allocated_bytes(), bench.slots.taken_bytes()), (0, 0));
}

#[test]
fn a_layer_takes_as_few_buffers_as_kernels_can_see() {
    let mut bench = Bench::of_slots(14);
    bench.device.max_buffer_bytes = 5 * slot_bytes(0) as u64 + 100;
    assert!(bench.plan(true) && bench.load());
    let layer = bench.slots.routable_layer(LAYER).unwrap();
    assert_eq!(layer.buffers().len(), 3);
    let idx = |id: usize| layer.buffer_idx(layer.slots()[id].as_ref().unwrap());
    assert_eq!([0, 4, 5, 11].map(idx), [0, 0, 1, 2]);
}

#[test]
fn a_layer_for_which_memory_ends_frees_what_it_took() {
    let mut bench = Bench::of_slots(8);
    bench.device.max_buffer_bytes = 5 * slot_bytes(0) as u64;
    // Without a plan nothing says that a part is enough.
    assert!(!bench.load());
    assert_eq!((bench.device.allocated_bytes(), bench.slots.taken_bytes()), (0, 0));
    let changes = bench.slots.drain_residency_changes();
    assert_eq!(changes, []);
}

#[test]
fn a_failed_upload_or_table_is_reported_and_can_be_repeated() {
    let mut bench = Bench::of_slots(14);
    assert!(bench.plan(true));
    bench.device.refuses_uploads = true;
    assert!(!bench.load());
    bench.device.refuses_uploads = false;
    bench.device.refuses_tables = true;
    assert!(!bench.load() && !bench.slots.can_route(LAYER, 1));
    assert_eq!(bench.device.n_uploads, N_EXPERTS, "there is a slot for each");
    bench.slots.unload_all(&mut bench.device);
    bench.device.refuses_tables = false;
    assert!(bench.load() && bench.slots.can_route(LAYER, 1));
    // Of other experts than the layer's there is none.
    let stranger = expert(0, N_EXPERTS as u16);
    assert!(!bench.slots.load(&mut bench.device, &stranger, N_EXPERTS));
}

#[test]
fn experts_of_a_layer_that_differ_are_not_loaded() {
    let mut bench = Bench::of_slots(14);
    assert!(bench.slots.load(&mut bench.device, &bench.experts[0], N_EXPERTS));
    let other = Arc::new(Expert { key: key(0, 1), ..Arc::into_inner(expert(1, 1)).unwrap() });
    assert!(!bench.slots.load(&mut bench.device, &other, N_EXPERTS));
}

#[test]
fn a_shared_expert_that_is_stored_alike_gets_the_last_slot() {
    for (bytes, n_shared) in [(slot_bytes(0), 1), (slot_bytes(1), 0)] {
        let mut bench = Bench::of_slots(14);
        bench.slots.register_shared(LAYER, bytes);
        assert!(bench.plan(true) && bench.load());
        let layer = bench.slots.routable_layer(LAYER).unwrap();
        let n_slots = N_EXPERTS + n_shared;
        assert_eq!(bench.device.allocated_bytes(), (n_slots * slot_bytes(0)) as u64);
        let Some(shared) = layer.shared() else {
            assert_eq!(n_shared, 0);
            continue;
        };
        assert_eq!(shared.at, N_EXPERTS * slot_bytes(0));
        assert!(bench.device.has_shared(shared));
    }
}

#[test]
fn a_part_is_planned_only_where_kernels_can_fetch_the_rest() {
    let mut bench = Bench::of_slots(9);
    assert!(bench.plan(true));
    assert!(!bench.plan(false), "the host may free experts");
    bench.device.fetches_missing = false;
    assert!(!bench.plan(true));
    // A part that has no room for what one row chooses is no use.
    let mut bench = Bench::of_slots(TOP_K);
    assert!(!(bench.plan(true) && bench.load()));
}

#[test]
fn a_budget_that_is_not_the_limit_is_found_by_trying() {
    let mut bench = Bench::of_slots(0);
    bench.slots = ExpertSlots::new(u64::MAX);
    bench.device.memory.set((9 * slot_bytes(0)) as u64);
    assert!(bench.plan(true));
    assert_eq!(bench.device.allocated_bytes(), 0);
    assert!(bench.load());
    let n_slots = bench.numbered().len();
    assert!((5..9).contains(&n_slots), "{n_slots} slots");
    let mut none = Bench::of_slots(0);
    none.slots = ExpertSlots::new(u64::MAX);
    assert!(!(none.plan(true) && none.load()));
}

#[test]
fn a_partly_resident_layer_has_the_first_experts_and_knows_all() {
    let bench = Bench::partly_resident(7);
    let layer = bench.slots.routable_layer(LAYER).unwrap();
    let host = layer.host().unwrap();
    assert_eq!(host.experts().count(), N_EXPERTS);
    let n_slots = host.slots().len();
    assert!((6..=7).contains(&n_slots), "{n_slots} slots");
    let filled: Vec<u16> = layer.filled().map(|(id, _)| id.0).collect();
    assert_eq!(filled, (0..n_slots as u16).collect::<Vec<_>>());
    assert_eq!(bench.device.n_uploads, n_slots);
    // As many rows as there are slots for what they choose.
    assert!(bench.slots.can_route(LAYER, n_slots / TOP_K));
    assert!(!bench.slots.can_route(LAYER, n_slots / TOP_K + 1));
}

#[test]
fn what_the_device_admitted_is_known_after_it_was_read() {
    let mut bench = Bench::partly_resident(7);
    let numbered = bench.numbered();
    let n_slots = numbered.len();
    assert_eq!(bench.n_known(), n_slots);
    assert_eq!(bench.slots.stale_layers().count(), 0);
    assert_eq!(bench.slots.drain_residency_changes(), [], "the host needs all of them");
    // The device brings expert 9 in the place of expert 2.
    bench.device.replace(&numbered[2], key(0, 9), slot_bytes(0));
    bench.slots.mark_stale();
    assert_eq!(bench.n_known(), 0, "none is known until it was read");
    let [layer] = bench.slots.stale_layers().collect::<Vec<_>>()[..] else { panic!("one layer") };
    let mut numbers = vec![u32::MAX; layer.n_experts()];
    (0..n_slots).for_each(|slot| numbers[slot] = slot as u32);
    (numbers[2], numbers[9]) = (u32::MAX, 2);
    bench.slots.refresh(&numbers);
    assert_eq!(bench.n_known(), n_slots);
    assert!(!bench.slots.holds(key(0, 2)));
    for id in 0..N_EXPERTS as u16 {
        if let Some(located) = bench.slots.peek(key(0, id)) {
            assert_eq!(bench.device.expert_in(&located.slot), Some(key(0, id)));
        }
    }
    assert!(bench.load(), "they are loaded");
    assert!(bench.slots.holds(key(0, 9)), "and what is known stays");
    bench.slots.unload_all(&mut bench.device);
    assert_eq!(bench.slots.drain_residency_changes(), []);
    assert_eq!(bench.device.allocated_bytes(), 0);
    assert_eq!(bench.device.retained.len(), N_EXPERTS, "kernels may still read them");
}

#[test]
fn an_expert_with_two_copies_is_resident_until_both_are_gone() {
    let mut bench = Bench::of_slots(0);
    bench.device.memory.set(u64::MAX);
    bench.slots = ExpertSlots::new(u64::MAX);
    let since = bench.slots.begin_step();
    let first = &bench.experts[0];
    assert!(bench.slots.locate_or_upload(&mut bench.device, first, since).is_some());
    assert!(bench.load());
    bench.slots.drain_residency_changes();
    bench.slots.unload_all(&mut bench.device);
    assert!(bench.slots.holds(key(0, 0)));
    let left = bench.slots.drain_residency_changes();
    assert_eq!(left.len(), N_EXPERTS - 1);
    assert!(left.iter().all(|change| !change.is_resident && change.key != key(0, 0)));
}
