//! Budgets that change while experts are held, read and waited for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use moeflux_core::HostSlab;

use super::bank::{packed, stacked};
use super::*;

const SLOT: u64 = 4096;

fn pread() -> StoreOptions {
    options(IoMode::Pread)
}

#[track_caller]
fn check_slots(store: &ExpertStore, n_slots: usize, cache_bytes: u64) {
    let stats = store.stats();
    assert_eq!((stats.n_slots, stats.cache_bytes), (n_slots, cache_bytes));
    assert!(stats.resident <= n_slots);
}

#[test]
fn memory_goes_back_and_comes_again() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16)], 16, pread());
    let all: Vec<u16> = (0..16).collect();
    fetch(&store, 0, &all);
    check_slots(&store, 16, 16 * SLOT);
    store.resize(3 * SLOT + 5).unwrap();
    check_slots(&store, 3, 3 * SLOT);
    assert_eq!(store.stats().evictions, 13);
    assert_eq!(stream(&store, 0, &all).unwrap(), 16);
    check_slots(&store, 3, 3 * SLOT);
    store.resize(u64::MAX).unwrap();
    fetch(&store, 0, &all);
    check_slots(&store, 16, 16 * SLOT);
}

#[test]
fn a_budget_below_one_layer_is_refused_and_nothing_changes() {
    let options = StoreOptions { top_k: 4, ..pread() };
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16)], 16, options);
    let err = store.resize(4 * SLOT - 1).unwrap_err();
    assert!(matches!(err, StoreError::BudgetTooSmall { needed: 16384, .. }), "{err}");
    check_slots(&store, 16, 0);
}

/// Whichever expert is held, and whichever leaves its slot for it: another one moves, so that a slot can be freed.
#[test]
fn one_that_is_held_keeps_no_memory_from_the_system() {
    for kept in 0..6 {
        for left in (0..6).filter(|left| *left != kept) {
            let Fixture { dir: _dir, store, .. } = fixture(&[packed(16)], 8, pread());
            fetch(&store, 0, &[0, 1, 2, 3, 4, 5]);
            let held = fetch(&store, 0, &[kept]);
            for _ in 0..3 {
                let others: Vec<u16> = (0..6).filter(|id| ![kept, left].contains(id)).collect();
                fetch(&store, 0, &others);
            }
            store.resize(5 * SLOT).unwrap();
            check_slots(&store, 5, 5 * SLOT);
            held.iter().for_each(|expert| check_bytes(expert));
            assert_eq!(stream(&store, 0, &[0, 1, 2, 3, 4, 5]).unwrap(), 6);
        }
    }
}

#[test]
fn what_is_held_leaves_when_it_is_dropped() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16), packed(16)], 8, pread());
    let held = fetch(&store, 0, &[0, 1, 2, 3, 4, 5]);
    store.resize(2 * SLOT).unwrap();
    assert_eq!(store.stats().cache_bytes, 6 * SLOT);
    held.iter().for_each(|expert| check_bytes(expert));
    drop(held);
    assert_eq!(stream(&store, 1, &[7, 8, 9]).unwrap(), 3);
    assert!(store.stats().cache_bytes < 6 * SLOT);
    store.resize(2 * SLOT).unwrap();
    check_slots(&store, 2, 2 * SLOT);
}

#[test]
fn experts_that_stay_move_out_of_slabs_that_go() {
    let dir = TempDir::new().unwrap();
    let bank = bank::write(dir.path(), &[packed(16)]);
    let options = StoreOptions { cache_bytes: 16 * SLOT, ..pread() };
    let mut slab = HostSlab::new(0);
    let alloc: SlotAlloc = Box::new(move |len| {
        Ok(slab.carve(len).unwrap_or_else(|| {
            slab = HostSlab::new(4 * len);
            slab.carve(len).unwrap()
        }))
    });
    let store = ExpertStore::open(bank, alloc, options).unwrap();
    let all: Vec<u16> = (0..16).collect();
    fetch(&store, 0, &all);
    // The experts that stay are spread over all slabs.
    fetch(&store, 0, &[0, 4, 8, 12]);
    store.resize(4 * SLOT).unwrap();
    check_slots(&store, 4, 4 * SLOT);
    store.reset_stats();
    fetch(&store, 0, &[0, 4, 8, 12]);
    assert_eq!(store.stats().hits, 4);
}

#[test]
fn resizing_in_the_middle_of_requests_loses_nothing() {
    for mode in [IoMode::Pread, IoMode::Direct] {
        let options = StoreOptions { top_k: 2, ..options(mode) };
        let shape = [packed(16), stacked(16)];
        let Fixture { dir: _dir, store, .. } = fixture(&shape, 12, options);
        let slot = store.slot_bytes() as u64;
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n_slots in [2, 12, 5, 3, 9, 2, 7].into_iter().cycle() {
                    if is_done.load(Ordering::Relaxed) {
                        break;
                    }
                    store.resize(n_slots * slot).unwrap();
                    thread::yield_now();
                }
            });
            let rounds = (0..300u16).map(|round| {
                let experts: Vec<u16> = (0..8).map(|i| (round + i * 5) % 16).collect();
                stream(&store, round % 2, &experts)
            });
            let failed = rounds.map(Result::ok).find(|n_arrived| *n_arrived != Some(8));
            // Set first, so that a failed assertion ends the other thread too.
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(failed, None);
        });
        store.resize(2 * slot).unwrap();
        check_slots(&store, 2, 2 * slot);
        store.resize(12 * slot).unwrap();
        let all: Vec<u16> = (0..12).collect();
        assert_eq!(fetch(&store, 0, &all).len(), 12);
        check_slots(&store, 12, 12 * slot);
    }
}

#[test]
fn a_request_pins_no_more_than_it_may_at_a_time() {
    let max_pinned_bytes = Some(4 * 4096);
    let options = StoreOptions { max_pinned_bytes, ..pread() };
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16)], 16, options);
    let all: Vec<u16> = (0..16).collect();
    for is_resident in [false, true] {
        let mut arrivals = store.request(LayerIdx(0), &ids(&all));
        let mut seen = Vec::new();
        while let Some(batch) = arrivals.next_batch().unwrap() {
            assert!(batch.len() <= 4);
            seen.extend(batch.iter().map(|(index, expert)| {
                check_bytes(expert);
                *index
            }));
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..16), "resident: {is_resident}");
    }
    assert_eq!(store.stats().misses, 16);
}

#[test]
fn a_budget_shrinks_in_the_middle_of_a_request_for_a_whole_layer() {
    for is_resident in [false, true] {
        let options = StoreOptions { max_pinned_bytes: Some(2 * 4096), ..pread() };
        let Fixture { dir: _dir, store, .. } = fixture(&[packed(64)], 64, options);
        let all: Vec<u16> = (0..64).collect();
        if is_resident {
            fetch(&store, 0, &all);
        }
        let mut arrivals = store.request(LayerIdx(0), &ids(&all));
        let first = arrivals.next_batch().unwrap().unwrap();
        assert!(first.len() <= 2);
        store.resize(4 * SLOT).unwrap();
        // Reads that have begun end first; none of them waits for the consumer.
        let since = std::time::Instant::now();
        while store.stats().cache_bytes > 4 * SLOT {
            assert!(since.elapsed().as_secs() < 5, "{} bytes", store.stats().cache_bytes);
            thread::yield_now();
        }
        first.iter().for_each(|(_, expert)| check_bytes(expert));
        let mut n_seen = first.len();
        drop(first);
        while let Some(batch) = arrivals.next_batch().unwrap() {
            batch.iter().for_each(|(_, expert)| check_bytes(expert));
            n_seen += batch.len();
        }
        assert_eq!(n_seen, 64, "resident: {is_resident}");
        check_slots(&store, 4, 4 * SLOT);
    }
}

#[test]
fn two_requests_for_whole_layers_end_while_the_budget_shrinks_and_grows() {
    let options = StoreOptions { max_pinned_bytes: Some(2 * 4096), top_k: 2, ..pread() };
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(32), packed(32)], 40, options);
    let all: Vec<u16> = (0..32).collect();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n_slots in [4, 40, 9, 21, 5].into_iter().cycle() {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                store.resize(n_slots * SLOT).unwrap();
                thread::sleep(std::time::Duration::from_micros(300));
            }
        });
        let (store, all) = (&store, &all);
        let consumers: Vec<_> = (0..2u16)
            .map(|layer| {
                scope.spawn(move || {
                    for _ in 0..60 {
                        assert_eq!(stream(store, layer, all).unwrap(), 32);
                    }
                })
            })
            .collect();
        let done: Vec<_> = consumers.into_iter().map(|consumer| consumer.join()).collect();
        is_done.store(true, Ordering::Relaxed);
        assert!(done.iter().all(Result::is_ok));
    });
}
