//! Staging: what commands copy is what the expert is, a buffer has one owner, and memory is bounded.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use moeflux_backend::DeviceCounters;
use moeflux_core::Expert;
use proptest::prelude::*;

use super::fake::{expert, pack};
use super::fake_staging::{
    FIRST_SLOW, FakeStagingBuffer, FakeStagingMemory, Shared, packed_expert,
};
use crate::{BUFFER_BYTES, PackedExpert, Packing, Staged, Staging, StagingBuffer};

/// A device and what was recorded for it.
struct Bench {
    staging: Staging<FakeStagingMemory>,
    shared: Arc<Shared>,
    counters: Arc<DeviceCounters>,
    n_submitted: u64,
    recorded: Vec<Copy>,
}

/// A command that copies an expert into a slot.
struct Copy {
    from: FakeStagingBuffer,
    at: u64,
    packed: PackedExpert,
}

fn packed(expert: &Arc<Expert>) -> PackedExpert {
    let packing = Arc::new(pack(&expert.layout));
    PackedExpert { expert: Arc::clone(expert), packing }
}

impl Bench {
    fn with_memory(bytes: u64) -> Bench {
        let shared = Arc::<Shared>::default();
        shared.memory.set(bytes);
        let counters = Arc::<DeviceCounters>::default();
        let memory = FakeStagingMemory::new(&shared);
        let staging = Staging::new(memory, Arc::clone(&counters));
        Bench { staging, shared, counters, n_submitted: 0, recorded: Vec::new() }
    }

    /// Records the copy of an expert, as an encoder does; false where there is no memory.
    fn upload(&mut self, packed: &PackedExpert) -> bool {
        loop {
            match self.staging.stage(&packed.expert, &packed.packing) {
                Staged::At { buffer, at } => {
                    assert!(at.is_multiple_of(256));
                    self.recorded.push(Copy { from: buffer, at, packed: packed.clone() });
                    return true;
                }
                Staged::AfterSubmit => {
                    assert!(!self.recorded.is_empty(), "a submission helps");
                    self.submit();
                }
                Staged::NoMemory(_) => return false,
            }
        }
    }

    /// Submits what was recorded. The device copies at once, and passes the fence later.
    fn submit(&mut self) {
        assert_eq!(self.staging.is_open(), !self.recorded.is_empty());
        if self.recorded.is_empty() {
            return;
        }
        self.staging.finish_writes();
        self.n_submitted += 1;
        self.staging.submitted(&self.n_submitted);
        for Copy { from, at, packed } in self.recorded.drain(..) {
            let want = packed_expert(&packed.expert, &packed.packing);
            let got = from.copy(at, want.len());
            assert!(got == want, "{} in buffer {}", packed.expert.key, from.number());
        }
        assert!(!self.staging.is_open());
    }
}

#[test]
fn commands_copy_what_threads_wrote() {
    let mut bench = Bench::with_memory(u64::MAX);
    let experts: Vec<_> = (0..20).map(|id| packed(&expert(id % 2, id))).collect();
    for some in experts.chunks(7) {
        assert!(some.iter().all(|packed| bench.upload(packed)));
        bench.submit();
    }
    let stats = bench.counters.stats();
    let bytes: usize = experts.iter().map(|packed| packed.packing.bytes()).sum();
    assert_eq!(stats.uploaded_bytes, bytes as u64);
    assert!(stats.upload_ns > 0);
    assert!(experts.iter().all(|packed| Arc::strong_count(&packed.expert) == 1), "they are free");
}

#[test]
fn more_experts_than_may_be_held_are_written_before_others_are_asked_for() {
    let mut bench = Bench::with_memory(u64::MAX);
    let slow: Vec<_> = (0..3).map(|id| packed(&expert(0, FIRST_SLOW + id))).collect();
    bench.staging.begin(&slow);
    let n_held = || slow.iter().filter(|packed| Arc::strong_count(&packed.expert) > 1).count();
    bench.staging.release_experts(3);
    bench.staging.release_experts(2);
    assert_eq!(n_held(), 0, "all are written");
    assert!(slow.iter().all(|packed| bench.upload(packed)));
    bench.submit();
}

#[test]
fn bytes_of_the_caller_share_buffers_and_submissions_with_experts() {
    let mut bench = Bench::with_memory(u64::MAX);
    assert!(bench.upload(&packed(&expert(0, 0))));
    let mut places = Vec::new();
    for n in 0..3 * BUFFER_BYTES / 1000 {
        let place = loop {
            match bench.staging.reserve(1000) {
                Staged::At { buffer, at } => break (buffer, at),
                Staged::AfterSubmit => bench.submit(),
                Staged::NoMemory(_) => panic!("there is memory"),
            }
        };
        assert!(place.1.is_multiple_of(256) && place.1 + 1000 <= place.0.bytes());
        let is_taken = |other: &(FakeStagingBuffer, u64)| {
            other.0.number() == place.0.number() && other.1.abs_diff(place.1) < 1000
        };
        assert!(n % 500 != 0 || !places.iter().any(is_taken), "place {n} is free");
        assert!(place.0.is_hosts() && bench.staging.is_open());
        places.push(place);
    }
    bench.staging.finish_writes();
    assert!(places.iter().all(|(buffer, _)| !buffer.is_hosts()), "the device has all of them");
    assert!(bench.staging.n_buffers() <= 5);
}

#[test]
fn what_was_begun_is_not_written_twice() {
    let mut bench = Bench::with_memory(u64::MAX);
    let experts: Vec<_> = (0..3).map(|id| packed(&expert(0, id))).collect();
    bench.staging.begin(&experts);
    bench.staging.begin(&experts);
    assert!(!bench.staging.is_open(), "no command copies from it");
    assert!(experts.iter().all(|packed| bench.upload(packed)));
    bench.submit();
    assert_eq!(bench.counters.stats().uploaded_bytes, 3 * experts[0].packing.bytes() as u64);
    assert_eq!(bench.staging.n_buffers(), 1);
}

#[test]
fn a_buffer_is_written_again_when_the_device_has_done_with_it() {
    let mut bench = Bench::with_memory(u64::MAX);
    assert!(bench.upload(&packed(&expert(0, 0))));
    bench.submit();
    assert!(bench.staging.has_in_flight());
    assert!(bench.upload(&packed(&expert(0, 1))));
    bench.submit();
    assert_eq!(bench.staging.n_buffers(), 2, "the device has the first");
    bench.shared.passed.set(1);
    assert!(bench.upload(&packed(&expert(0, 2))));
    bench.submit();
    assert_eq!(bench.staging.n_buffers(), 2);
    bench.shared.passed.set(3);
    assert!(!bench.staging.has_in_flight());
    assert_eq!(bench.shared.n_waits.get(), 0);
}

#[test]
fn buffers_are_few_and_the_host_waits_for_the_oldest() {
    let mut bench = Bench::with_memory(u64::MAX);
    for id in 0..40 {
        assert!(bench.upload(&packed(&expert(0, id))));
        bench.submit();
    }
    assert_eq!(bench.staging.n_buffers(), 8);
    assert!(bench.shared.n_waits.get() >= 30);
    let passed = bench.shared.passed.get();
    assert!(passed < bench.n_submitted, "it does not wait for the last");
}

#[test]
fn full_buffers_are_submitted_before_all_are_full() {
    let mut bench = Bench::with_memory(u64::MAX);
    // Eight go into a buffer.
    for id in 0..4 * 8 {
        assert!(bench.upload(&packed(&expert(0, id))));
    }
    assert_eq!(bench.n_submitted, 0);
    assert!(bench.upload(&packed(&expert(0, 99))));
    assert_eq!(bench.n_submitted, 1);
}

#[test]
fn little_memory_is_used_again_and_none_is_reported() {
    let one = packed(&expert(0, 0));
    let buffer_bytes = (8 * one.packing.bytes() as u64).next_multiple_of(256);
    let mut bench = Bench::with_memory(buffer_bytes);
    for id in 0..40 {
        assert!(bench.upload(&packed(&expert(0, id))));
    }
    bench.submit();
    assert_eq!(bench.staging.n_buffers(), 1);
    // A buffer that is too small makes room for a larger one.
    assert!(!bench.upload(&packed(&expert(3, 0))), "there is no memory for it");
    bench.shared.memory.set(20 * buffer_bytes);
    assert!(bench.upload(&packed(&expert(3, 0))));
    bench.submit();
    let mut none = Bench::with_memory(100);
    assert!(!none.upload(&one));
    assert_eq!(none.staging.n_buffers(), 0);
}

#[test]
fn experts_that_were_begun_in_vain_make_room() {
    let one = packed(&expert(0, 0));
    let buffer_bytes = (8 * one.packing.bytes() as u64).next_multiple_of(256);
    let mut bench = Bench::with_memory(buffer_bytes);
    let begun: Vec<_> = (FIRST_SLOW..FIRST_SLOW + 12).map(|id| packed(&expert(0, id))).collect();
    // As many as there is space for.
    bench.staging.begin(&begun);
    for id in 0..2 {
        assert!(bench.upload(&packed(&expert(0, id))));
        bench.submit();
        // A thread that wrote late would find the buffer to be the device's.
        thread::sleep(Duration::from_millis(30));
    }
    assert_eq!(bench.staging.n_buffers(), 1);
    assert!(bench.shared.reports.take().is_empty());
}

#[test]
fn a_lost_device_is_reported_once_it_is_waited_for() {
    let mut bench = Bench::with_memory(u64::MAX);
    for id in 0..8 {
        assert!(bench.upload(&packed(&expert(0, id))));
        bench.submit();
    }
    bench.shared.is_lost.set(true);
    assert!(!bench.upload(&packed(&expert(0, 9))));
    assert_eq!(bench.shared.reports.take(), ["the device is gone"]);
    // Buffers that it had do not come back.
    bench.shared.passed.set(8);
    assert!(!bench.staging.has_in_flight());
    assert_eq!(bench.staging.n_buffers(), 0);
}

#[test]
fn threads_write_pieces_that_cover_an_expert() {
    for layer in [0, 1] {
        let packing: Packing = pack(&expert(layer, 0).layout);
        let mut n_bytes = 0;
        for (matrix, part) in packing.parts().iter().enumerate() {
            let mut end = 0;
            for piece in packing.pieces().iter().filter(|piece| piece.matrix == matrix) {
                assert_eq!(piece.bytes.start, end, "pieces follow each other");
                assert!(piece.bytes.len() <= 1000 && !piece.bytes.is_empty());
                let is_stored = piece.bytes.start < part.as_stored;
                assert!(
                    !is_stored || piece.bytes.end <= part.as_stored,
                    "or are packed as a whole"
                );
                end = piece.bytes.end;
            }
            assert_eq!(end, part.bytes.len());
            n_bytes += end;
        }
        assert_eq!(n_bytes, packing.bytes());
    }
}

#[derive(Clone, Debug)]
enum Action {
    Begin(Vec<u16>),
    Upload(u16),
    Submit,
    Pass(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        2 => prop::collection::vec(0..30_u16, 0..12).prop_map(Action::Begin),
        12 => (0..30_u16).prop_map(Action::Upload),
        3 => Just(Action::Submit),
        2 => (0..4_u64).prop_map(Action::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn commands_copy_whole_experts_in_any_order(
        n_experts_of_memory in 20..100_u64,
        actions in prop::collection::vec(action(), 0..80),
    ) {
        let experts: Vec<_> = (0..30).map(|id| packed(&expert(id % 2, id))).collect();
        let largest = experts.iter().map(|packed| packed.packing.bytes() as u64).max().unwrap();
        let mut bench = Bench::with_memory(n_experts_of_memory * largest);
        for action in actions {
            match action {
                Action::Begin(ids) => {
                    let some: Vec<_> =
                        ids.iter().map(|id| experts[usize::from(*id)].clone()).collect();
                    bench.staging.begin(&some);
                }
                Action::Upload(id) => {
                    prop_assert!(bench.upload(&experts[usize::from(id)]), "there is memory");
                }
                Action::Submit => bench.submit(),
                Action::Pass(n) => {
                    let passed = bench.shared.passed.get() + n;
                    bench.shared.passed.set(passed.min(bench.n_submitted));
                }
            }
            prop_assert!(bench.staging.n_buffers() <= 8);
            prop_assert!(bench.shared.reports.borrow().is_empty());
        }
        bench.submit();
        bench.shared.passed.set(bench.n_submitted);
        prop_assert!(!bench.staging.has_in_flight());
    }
}
