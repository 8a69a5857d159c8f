//! Slots of the cache: none leaks, none that is in use is given away, and what is reported is true.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use moeflux_backend::{ExpertCall, ExpertRow, ResidentCall};
use moeflux_core::{Expert, ExpertId, ExpertKey, LayerIdx};
use proptest::prelude::*;

use super::fake::{FakeDevice, expert, key, slot_bytes};
use crate::pool::{Slab, allocate_slab};
use crate::{ExpertSlots, SlotMemory};

const MIB: usize = 1 << 20;

/// Slots of a device, with one budget for all.
struct Bench {
    device: FakeDevice,
    slots: ExpertSlots<FakeDevice>,
}

impl Bench {
    /// A device with memory for `n_slots` experts of layer 0, which the budget allows.
    fn of_slots(n_slots: usize) -> Bench {
        Bench::new(u64::MAX, (n_slots * slot_bytes(0)) as u64)
    }

    fn new(memory: u64, budget: u64) -> Bench {
        Bench { device: FakeDevice::with_memory(memory), slots: ExpertSlots::new(budget) }
    }

    /// Uses an expert in a step of its own; whether it got a slot.
    fn run(&mut self, expert: &Arc<Expert>) -> bool {
        let since = self.slots.begin_step();
        self.slots.locate_or_upload(&mut self.device, expert, since).is_some()
    }

    fn held(&self) -> BTreeSet<ExpertKey> {
        let keys = (0..3).flat_map(|layer| (0..12).map(move |expert| key(layer, expert)));
        keys.filter(|key| self.slots.holds(*key)).collect()
    }

    /// Checks that slots are free or have one expert each.
    fn assert_no_leak(&self) {
        for pool in self.slots.pools() {
            let counts = pool.counts();
            assert_eq!(counts.n_slots, counts.n_free + counts.n_experts, "a slot leaked");
            assert_eq!(counts.n_experts, counts.n_uses, "uses of experts that are gone");
        }
    }
}

#[test]
fn the_least_recently_used_expert_leaves() {
    let mut bench = Bench::of_slots(3);
    let experts: Vec<_> = (0..5).map(|id| expert(0, id)).collect();
    for expert in &experts[..3] {
        assert!(bench.run(expert));
    }
    // Used again: the second is the oldest now.
    assert!(bench.slots.locate(experts[0].key).is_some());
    assert!(bench.run(&experts[3]));
    assert_eq!(bench.held(), BTreeSet::from([key(0, 0), key(0, 2), key(0, 3)]));
    assert!(bench.run(&experts[2]));
    assert_eq!(bench.device.n_uploads, 4, "what is resident is not uploaded again");
    assert!(bench.run(&experts[4]));
    assert_eq!(bench.held(), BTreeSet::from([key(0, 2), key(0, 3), key(0, 4)]));
}

#[test]
fn an_expert_that_the_step_uses_is_not_evicted() {
    let mut bench = Bench::of_slots(2);
    let [first, second, third] = [0, 1, 2].map(|id| expert(0, id));
    let since = bench.slots.begin_step();
    let mut upload = |expert| bench.slots.locate_or_upload(&mut bench.device, expert, since);
    let [one, other] = [upload(&first).unwrap(), upload(&second).unwrap()];
    assert_ne!(one.slot, other.slot);
    assert!(upload(&third).is_none());
    assert_eq!(upload(&first).unwrap().slot, one.slot, "it is where it was");
    assert!(bench.run(&third), "the next step may evict it");
}

#[test]
fn experts_of_other_sizes_do_not_share_slots() {
    let mut bench = Bench::of_slots(2);
    assert!(bench.run(&expert(0, 0)));
    // The budget is used up, but a step cannot run without a slot.
    assert!(bench.run(&expert(1, 0)));
    assert!(bench.run(&expert(1, 1)));
    assert_eq!(bench.held(), BTreeSet::from([key(0, 0), key(1, 1)]));
    // Layers of one layout do.
    assert!(bench.run(&expert(2, 5)));
    assert!(bench.run(&expert(2, 6)));
    assert_eq!(bench.held(), BTreeSet::from([key(1, 1), key(2, 5), key(2, 6)]));
}

#[test]
fn a_failed_upload_loses_no_slot() {
    let mut bench = Bench::of_slots(2);
    let experts: Vec<_> = (0..3).map(|id| expert(0, id)).collect();
    bench.device.refuses_uploads = true;
    assert!(!bench.run(&experts[0]));
    bench.device.refuses_uploads = false;
    assert!(experts[..2].iter().all(|expert| bench.run(expert)));
    bench.slots.drain_residency_changes();
    bench.device.refuses_uploads = true;
    assert!(!bench.run(&experts[2]));
    // Its bytes may be gone.
    assert_eq!(bench.held(), BTreeSet::from([key(0, 1)]));
    let [left] = bench.slots.drain_residency_changes()[..] else { panic!("one left") };
    assert!(left.key == key(0, 0) && !left.is_resident);
    bench.assert_no_leak();
    bench.device.refuses_uploads = false;
    assert!(bench.run(&experts[2]));
    assert_eq!(bench.held(), BTreeSet::from([key(0, 1), key(0, 2)]));
}

#[test]
fn a_device_without_memory_for_one_slot_reports_it() {
    let mut bench = Bench::new(1000, u64::MAX);
    assert!(!bench.run(&expert(0, 0)));
    assert_eq!(bench.device.n_reported, 1);
    bench.device.memory.set(u64::MAX);
    assert!(bench.run(&expert(0, 0)), "there is some now");
    assert_eq!(bench.device.n_reported, 1);
}

#[test]
fn a_device_without_memory_for_more_slots_reuses_those_that_it_has() {
    // The first slab, and not another.
    let mut bench = Bench::new(MIB as u64, u64::MAX);
    for id in 0..100 {
        assert!(bench.run(&expert(0, id)));
    }
    assert_eq!(bench.device.n_reported, 0);
    let n_held = (0..100).filter(|id| bench.slots.holds(key(0, *id))).count();
    assert_eq!(n_held, MIB / slot_bytes(0));
    assert_eq!(bench.device.n_buffers(), 1);
}

#[test]
fn slabs_grow_and_stay_below_the_largest_buffer() {
    let mut bench = Bench::new(u64::MAX, u64::MAX);
    bench.device.max_buffer_bytes = 2 * MIB as u64;
    let n_experts = 8 * MIB / slot_bytes(0);
    for id in 0..n_experts {
        assert!(bench.run(&expert(0, u16::try_from(id).unwrap())));
    }
    // One of a MiB, then of two.
    assert_eq!(bench.device.n_buffers(), 5);
    assert!(bench.slots.holds(key(0, 0)));
}

#[test]
fn a_slab_that_finds_no_memory_gets_smaller_but_not_small() {
    let slab = |free: usize| {
        let device = FakeDevice::with_memory((free * MIB) as u64);
        let Slab { buffer, n_slots } = allocate_slab(&device, 128, MIB)?;
        assert_eq!(device.allocated_bytes(), (n_slots * MIB) as u64);
        device.free_unused(buffer);
        Some(n_slots)
    };
    assert_eq!(slab(128), Some(128));
    assert_eq!(slab(127), Some(64));
    assert_eq!(slab(63), None);
}

fn row(row: u32) -> ExpertRow {
    ExpertRow { row, slot: row }
}

#[test]
fn calls_go_together_as_far_as_there_are_slots_and_rows() {
    let mut bench = Bench::of_slots(3);
    let call = |id: u16, n_rows: u32| ExpertCall {
        expert: expert(0, id),
        rows: (0..n_rows).map(row).collect(),
    };
    let calls = [call(0, 4), call(1, 4), call(2, 1), call(3, 1)];
    let mut n_uploaded = |calls: &[ExpertCall], max_rows| {
        bench.slots.upload_calls(&mut bench.device, calls, max_rows).len()
    };
    assert_eq!(n_uploaded(&calls, 100), 3, "three slots");
    assert_eq!(n_uploaded(&calls, 8), 2, "eight rows");
    assert_eq!(n_uploaded(&calls, 1), 1, "the first in any case");
    assert_eq!(n_uploaded(&calls[3..], 8), 1);
    assert_eq!(n_uploaded(&[], 8), 0);
    let [one, other] = [1, 3].map(|id| ResidentCall { expert: ExpertId(id), rows: vec![row(0)] });
    let located = bench.slots.resident_calls(LayerIdx(0), &[one, other], 8);
    let there: Vec<_> = located.iter().map(|found| bench.device.expert_in(&found.slot)).collect();
    assert_eq!(there, [Some(key(0, 1)), Some(key(0, 3))]);
}

#[test]
fn uploads_ahead_evict_no_expert_that_the_layer_uses() {
    let mut bench = Bench::of_slots(3);
    let experts: Vec<_> = (0..6).map(|id| expert(0, id)).collect();
    for expert in &experts[..3] {
        assert!(bench.run(expert));
    }
    let resident = [key(0, 0), key(0, 1)].into_iter();
    let mut wanted = experts[3..].iter();
    bench.slots.upload_ahead(&mut bench.device, resident, &mut wanted);
    assert_eq!(bench.held(), BTreeSet::from([key(0, 0), key(0, 1), key(0, 3)]));
    let missing = bench.slots.missing(&bench.device, &mut experts[2..].iter());
    let missing: Vec<_> = missing.iter().map(|packed| packed.expert.key).collect();
    assert_eq!(missing, [key(0, 2), key(0, 4), key(0, 5)]);
}

/// Something that is done to slots.
#[derive(Clone, Debug)]
enum Action {
    BeginStep,
    Use(u16, u16),
    Locate(u16, u16),
    RefuseUploads(bool),
    LimitMemory(u64),
    Drain,
    LoadLayer(u16),
    UnloadAll,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::BeginStep),
        24 => (0..3_u16, 0..12_u16).prop_map(|(layer, id)| Action::Use(layer, id)),
        6 => (0..3_u16, 0..12_u16).prop_map(|(layer, id)| Action::Locate(layer, id)),
        1 => any::<bool>().prop_map(Action::RefuseUploads),
        1 => (0..4 * MIB as u64).prop_map(Action::LimitMemory),
        2 => Just(Action::Drain),
        1 => (0..3_u16).prop_map(Action::LoadLayer),
        1 => Just(Action::UnloadAll),
    ]
}

/// What has to be true of slots after every action.
struct Model {
    bench: Bench,
    /// By expert, what was reported last.
    reported: BTreeMap<ExpertKey, bool>,
    used_in_step: HashSet<ExpertKey>,
    since: crate::StepStart,
}

impl Model {
    fn apply(&mut self, action: &Action) {
        let Bench { device, slots } = &mut self.bench;
        match *action {
            Action::BeginStep => {
                self.since = slots.begin_step();
                self.used_in_step.clear();
            }
            Action::Use(layer, id) => {
                let was_held = slots.holds(key(layer, id));
                let n_uploads = device.n_uploads;
                let located = slots.locate_or_upload(device, &expert(layer, id), self.since);
                assert!(located.is_some() || !was_held, "an expert that was there is found");
                assert_eq!(device.n_uploads > n_uploads, located.is_some() && !was_held);
                if located.is_some() {
                    self.used_in_step.insert(key(layer, id));
                }
            }
            Action::Locate(layer, id) => {
                let was_held = slots.holds(key(layer, id));
                assert_eq!(slots.locate(key(layer, id)).is_some(), was_held);
                if was_held {
                    self.used_in_step.insert(key(layer, id));
                }
            }
            Action::RefuseUploads(refuses) => device.refuses_uploads = refuses,
            Action::LimitMemory(bytes) => device.memory.set(bytes),
            Action::Drain => self.drain(),
            Action::LoadLayer(layer) => {
                let all: Vec<_> = (0..12).map(|id| expert(layer, id)).collect();
                if !all.iter().all(|expert| slots.load(device, expert, 12)) {
                    slots.unload_all(device);
                    self.used_in_step.retain(|key| slots.holds(*key));
                }
            }
            Action::UnloadAll => {
                slots.unload_all(device);
                self.used_in_step.retain(|key| slots.holds(*key));
            }
        }
    }

    fn drain(&mut self) {
        for change in self.bench.slots.drain_residency_changes() {
            self.reported.insert(change.key, change.is_resident);
        }
        let held = self.bench.held();
        for key in (0..3).flat_map(|layer| (0..12).map(move |id| key(layer, id))) {
            let is_reported = self.reported.get(&key) == Some(&true);
            assert_eq!(is_reported, held.contains(&key), "{key}: what was reported is true");
        }
    }

    fn check(&mut self) {
        self.bench.assert_no_leak();
        for key in &self.used_in_step {
            assert!(self.bench.slots.holds(*key), "{key} left the step that uses it");
        }
        assert_eq!(self.bench.slots.taken_bytes(), self.bench.device.allocated_bytes());
        let mut known = HashSet::new();
        for key in self.bench.held() {
            let located = self.bench.slots.peek(key).expect("it is held");
            assert_eq!(self.bench.device.expert_in(&located.slot), Some(key), "bytes of {key}");
            assert!(known.insert(format!("{:?}", located.slot)), "one expert a slot");
        }
    }
}

proptest! {
    #[test]
    fn slots_hold_what_they_report_and_none_leaks(
        n_slots in 0..20_u64,
        memory in 0..4 * MIB as u64,
        actions in prop::collection::vec(action(), 0..120),
    ) {
        let mut bench = Bench::new(memory, n_slots * slot_bytes(0) as u64);
        let since = bench.slots.begin_step();
        let (reported, used_in_step) = (BTreeMap::new(), HashSet::new());
        let mut model = Model { bench, reported, used_in_step, since };
        for action in &actions {
            model.apply(action);
            model.check();
        }
        model.drain();
    }
}
