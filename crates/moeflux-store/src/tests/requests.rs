//! Requests that succeed, and those that need more slots than exist.

use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;

use moeflux_core::{ExpertMemory, LayerIdx, PAGE_BYTES};

use super::bank::{Shape, listed, packed, stacked};
use super::*;
use crate::Batch;
use crate::drive::N_LOCKS;

fn pread() -> StoreOptions {
    options(IoMode::Pread)
}

#[test]
fn delivers_the_right_bytes_from_every_kind_of_source() {
    let shape = [packed(8), Shape::Dense, stacked(5), listed(6), packed(8)];
    for n_slots in [1, 3, 100] {
        let Fixture { dir: _dir, store, .. } = fixture(&shape, n_slots, pread());
        for _ in 0..3 {
            assert_eq!(stream(&store, 0, &[7, 0, 3]).unwrap(), 3);
            assert_eq!(stream(&store, 2, &[4, 1, 0, 2, 3]).unwrap(), 5);
            assert_eq!(stream(&store, 3, &[5, 4, 3, 2, 1, 0]).unwrap(), 6);
            assert_eq!(stream(&store, 4, &[0]).unwrap(), 1);
        }
        let stats = store.stats();
        assert_eq!((stats.requests, stats.hits + stats.misses), (12, 45));
        assert!(stats.resident <= stats.n_slots);
    }
}

#[test]
fn reads_extents_that_follow_each_other_at_once() {
    let Fixture { dir: _dir, store, control } = fixture(&[packed(4), stacked(4)], 8, pread());
    let held = fetch(&store, 0, &[2]);
    assert_eq!(control.begun(1).len(), 1);
    let ExpertMemory::Owned { starts, .. } = &held[0].memory else { panic!("a mapped expert") };
    assert_eq!(*starts, [0, 3000, 3100]);
    let held = fetch(&store, 1, &[2]);
    assert_eq!(control.begun(10).len(), 10);
    let ExpertMemory::Owned { starts, .. } = &held[0].memory else { panic!("a mapped expert") };
    assert!(starts.iter().all(|start| start.is_multiple_of(PAGE_BYTES)));
    assert_eq!(store.stats().bytes_read, 4000 + 15_468);
}

#[test]
fn serves_a_token_with_no_more_slots_than_it_uses() {
    let options = StoreOptions { top_k: 4, ..pread() };
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(8), packed(8)], 4, options);
    assert_eq!(store.warnings().len(), 1);
    for round in 0..20 {
        fetch(&store, round % 2, &[round % 8, (round + 1) % 8, (round + 3) % 8, (round + 6) % 8]);
    }
    assert_eq!(store.stats().n_slots, 4);
}

#[test]
fn resident_experts_arrive_first_and_do_not_wait_for_reads() {
    let Fixture { dir: _dir, store, control } = fixture(&[packed(8)], 8, pread());
    fetch(&store, 0, &[5, 6]);
    control.hold();
    let mut arrivals = store.request(LayerIdx(0), &ids(&[1, 5, 2, 6]));
    let batch = arrivals.next_batch().unwrap().unwrap();
    assert_eq!(batch.iter().map(|entry| entry.0).collect::<Vec<_>>(), [1, 3]);
    control.release();
    let mut rest = Vec::new();
    while let Some(batch) = arrivals.next_batch().unwrap() {
        rest.extend(batch.into_iter().map(|entry| entry.0));
    }
    rest.sort();
    assert_eq!(rest, [0, 2]);
    assert!(arrivals.next_batch().unwrap().is_none());
    assert!(store.stats().read_ns > 0);
}

#[test]
fn starts_all_misses_at_once() {
    let options = StoreOptions { n_readers: 6, ..pread() };
    let Fixture { dir: _dir, store, control } = fixture(&[packed(8)], 8, options);
    control.hold();
    let arrivals = store.request(LayerIdx(0), &ids(&[0, 1, 2, 3, 4, 5]));
    assert_eq!(control.begun(6).len(), 6);
    control.release();
    drop(arrivals);
    assert_eq!(stream(&store, 0, &[0, 1, 2, 3, 4, 5]).unwrap(), 6);
}

#[test]
fn never_reuses_a_slot_that_is_held() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(8), packed(8)], 4, pread());
    let held = fetch(&store, 0, &[1, 2]);
    fetch(&store, 1, &[3, 4]);
    fetch(&store, 1, &[5, 6]);
    held.iter().for_each(|expert| check_bytes(expert));
    assert_eq!(Arc::strong_count(&held[0]), 2);
}

#[test]
fn says_that_the_caller_holds_every_slot_and_goes_on_when_it_lets_go() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(8), packed(8)], 4, pread());
    let held = fetch(&store, 0, &[1, 2]);
    let mut arrivals = store.request(LayerIdx(1), &ids(&[0, 1, 2]));
    let mut arrived = Vec::new();
    let err = loop {
        match arrivals.next_batch() {
            Ok(batch) => arrived.extend(batch.unwrap()),
            Err(err) => break err,
        }
    };
    assert_eq!(arrived.len(), 2);
    assert_eq!(
        err.to_string(),
        "all 4 cache slots are held while 1 experts of layer 1 wait: drop experts that have been \
         used, or raise expert_cache"
    );
    drop(held);
    assert_eq!(arrivals.next_batch().unwrap().unwrap().len(), 1);
    assert!(arrivals.next_batch().unwrap().is_none());
}

#[test]
fn waits_for_slots_that_another_thread_holds() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(8)], 2, pread());
    let meet = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let held = fetch(&store, 0, &[0, 1]);
            meet.wait();
            meet.wait();
            drop(held);
        });
        meet.wait();
        let mut arrivals = store.request(LayerIdx(0), &ids(&[2]));
        meet.wait();
        assert_eq!(arrivals.next_batch().unwrap().unwrap().len(), 1);
    });
}

#[test]
fn an_expert_that_two_threads_hold_may_still_be_let_go() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(8)], 1, pread());
    let meet = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let held = fetch(&store, 0, &[0]);
            meet.wait();
            meet.wait();
            drop(held);
        });
        meet.wait();
        // The thread that got the expert last drops it first, and waits for the other.
        drop(fetch(&store, 0, &[0]));
        let mut arrivals = store.request(LayerIdx(0), &ids(&[2]));
        meet.wait();
        assert_eq!(arrivals.next_batch().unwrap().unwrap().len(), 1);
    });
}

#[test]
fn a_request_dropped_early_leaves_nothing_behind() {
    let options = StoreOptions { n_readers: 1, ..pread() };
    let Fixture { dir: _dir, store, control } = fixture(&[packed(8)], 4, options);
    control.hold();
    drop(store.request(LayerIdx(0), &ids(&[0, 1, 2, 3, 4, 5, 6])));
    control.release();
    assert_eq!(stream(&store, 0, &[7]).unwrap(), 1);
    assert!(control.begun(1).len() <= 2, "reads that had not begun should be cancelled");
    assert_eq!(fetch(&store, 0, &[3, 4, 5, 6]).len(), 4);
}

#[test]
fn two_consumers_share_reads_and_slots() {
    let shape = [packed(16), stacked(16)];
    let Fixture { dir: _dir, store, .. } = fixture(&shape, 12, pread());
    thread::scope(|scope| {
        for consumer in 0..2 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..300 {
                    let start = round * (7 + 4 * consumer);
                    let experts: Vec<u16> = (0..5).map(|i| (start + 3 * i) % 16).collect();
                    let held = fetch(store, round % 2, &experts);
                    held.iter().for_each(|expert| check_bytes(expert));
                    assert_eq!(stream(store, 1 - round % 2, &experts).unwrap(), 5);
                }
            });
        }
    });
    let stats = store.stats();
    assert_eq!(stats.hits + stats.misses, 2 * 300 * 10);
}

#[test]
fn a_request_for_nothing_ends_at_once() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(8)], 2, pread());
    assert!(store.request(LayerIdx(0), &[]).next_batch().unwrap().is_none());
}

#[test]
#[should_panic(expected = "layer 1 should have experts")]
fn asking_a_dense_layer_for_experts_is_a_mistake() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(8), Shape::Dense], 2, pread());
    let _ = store.request(LayerIdx(1), &ids(&[0]));
}

#[test]
fn slots_are_made_when_needed_and_never_more_than_the_budget() {
    let dir = TempDir::new().unwrap();
    let bank = bank::write(dir.path(), &[packed(8)]);
    let (made, n_made) = channel();
    let alloc: SlotAlloc = Box::new(move |len| {
        made.send(len).unwrap();
        HostBuf::try_zeroed(len)
    });
    let options = StoreOptions { cache_bytes: 3 * 4096 + 4095, ..pread() };
    let store = ExpertStore::open(bank, alloc, options).unwrap();
    assert_eq!(n_made.try_iter().count(), 0);
    stream(&store, 0, &[0]).unwrap();
    assert_eq!(n_made.try_iter().collect::<Vec<_>>(), [4096]);
    stream(&store, 0, &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
    assert_eq!(n_made.try_iter().count(), 2);
}

#[test]
fn a_layer_that_finds_everything_takes_the_lock_once() {
    for prefetch in [Prefetch::Off, Prefetch::Lookahead, Prefetch::Auto] {
        for policy in [CachePolicy::Lru, CachePolicy::Frequency] {
            let options = StoreOptions { prefetch, policy, ..options(IoMode::Pread) };
            let Fixture { dir: _dir, store, .. } = fixture(&[packed(8), packed(8)], 16, options);
            (0..2).for_each(|layer| drop(fetch(&store, layer, &[0, 1, 2, 3, 4, 5, 6, 7])));
            let mut batch = Batch::new();
            for step in 0..3 {
                let before = N_LOCKS.get();
                for layer in [0, 1].map(LayerIdx) {
                    store.begin_layer(layer);
                    let wanted = ids(&[1, 3]).into_iter().map(|id| (id, 1));
                    let mut arrivals = store.request_into(layer, wanted, batch);
                    batch = arrivals.next_batch().unwrap().unwrap();
                    assert_eq!(batch.len(), 2);
                    assert!(arrivals.next_batch().unwrap().is_none());
                    drop(arrivals);
                    store.record(layer, &ids(&[1, 3]));
                    store.wants_lookahead(LayerIdx(1 - layer.0), 1);
                }
                // The first step still has to find out that predictions are not worthwhile.
                assert!(step == 0 || N_LOCKS.get() - before == 2, "{prefetch:?} {policy:?}");
            }
        }
    }
}
