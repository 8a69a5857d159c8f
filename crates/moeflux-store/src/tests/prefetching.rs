//! Predicted reads, and their limits.

use std::io;

use moeflux_core::FileIdx;

use super::bank::{packed, stacked};
use super::probe::Fault;
use super::*;

const LAYER: LayerIdx = LayerIdx(0);

fn last_token() -> StoreOptions {
    StoreOptions { prefetch: Prefetch::LastToken, n_readers: 1, ..options(IoMode::Pread) }
}

/// One decode step of a layer.
#[track_caller]
fn step(store: &ExpertStore, experts: &[u16]) {
    store.begin_layer(LAYER);
    fetch(store, LAYER.0, experts);
    store.record(LAYER, &ids(experts));
}

#[track_caller]
fn check_outcomes(store: &ExpertStore, hits: u64, misses: u64) {
    let stats = store.stats();
    assert_eq!((stats.prefetch_hits, stats.prefetch_misses), (hits, misses));
}

fn offset(expert: u64) -> (FileIdx, u64) {
    (FileIdx(0), expert * 4096)
}

#[test]
fn predictions_match_as_sets() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16)], 16, last_token());
    step(&store, &[1, 2, 3, 4]);
    check_outcomes(&store, 0, 4);
    step(&store, &[4, 3, 2, 1]);
    check_outcomes(&store, 4, 4);
    step(&store, &[9, 1, 8, 4]);
    check_outcomes(&store, 6, 6);
    // Without `begin_layer` nothing is predicted.
    store.record(LAYER, &ids(&[9, 1, 8, 4]));
    check_outcomes(&store, 6, 10);
    store.forget_predictions();
    step(&store, &[9, 1, 8, 4]);
    check_outcomes(&store, 6, 14);
    store.reset_stats();
    check_outcomes(&store, 0, 0);
    assert_eq!(store.stats().resident, 6);
}

#[test]
fn nothing_is_predicted_or_counted_when_off() {
    let options = StoreOptions { prefetch: Prefetch::Off, ..last_token() };
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16)], 16, options);
    step(&store, &[1, 2]);
    step(&store, &[1, 2]);
    check_outcomes(&store, 0, 0);
}

#[test]
fn predicted_experts_are_read_and_counted_when_used() {
    let options = StoreOptions { n_readers: 4, ..last_token() };
    let Fixture { dir: _dir, store, control } = fixture(&[packed(16)], 8, options);
    store.record(LAYER, &ids(&[1, 2, 3]));
    control.hold();
    store.begin_layer(LAYER);
    // One read at a time, so that a miss waits for at most one.
    assert_eq!(control.begun(1).len(), 1);
    control.release();
    control.begun(3);
    fetch(&store, 0, &[2, 3, 5, 6]);
    store.record(LAYER, &ids(&[2, 3, 5, 6]));
    let stats = store.stats();
    assert_eq!((stats.prefetch_reads, stats.prefetch_used), (3, 2));
    assert_eq!((stats.prefetch_hits, stats.prefetch_misses), (2, 2 + 3));
    fetch(&store, 0, &[1, 2]);
    assert_eq!(store.stats().prefetch_used, 3);
}

#[test]
fn a_miss_goes_before_predictions_and_cancels_those_that_wait() {
    let Fixture { dir: _dir, store, control } = fixture(&[packed(16)], 8, last_token());
    control.hold();
    store.prefetch(LAYER, &ids(&[1, 2, 3]));
    control.begun(1);
    let mut arrivals = store.request(LAYER, &ids(&[3, 9]));
    control.release();
    let mut n_arrived = 0;
    while let Some(batch) = arrivals.next_batch().unwrap() {
        n_arrived += batch.len();
    }
    assert_eq!(n_arrived, 2);
    assert_eq!(control.begun(3), [offset(1), offset(3), offset(9)]);
    let stats = store.stats();
    assert_eq!((stats.prefetch_reads, stats.prefetch_used), (1, 0));
    assert_eq!(stats.resident, 3);
}

#[test]
fn predictions_leave_a_token_its_slots() {
    for (n_slots, want) in [(4, 0), (5, 1), (7, 3), (16, 4)] {
        let options = StoreOptions { top_k: 4, n_readers: 4, ..last_token() };
        let Fixture { dir: _dir, store, control } = fixture(&[packed(32)], n_slots, options);
        store.prefetch(LAYER, &ids(&[1, 2, 3, 4]));
        assert_eq!(control.begun(want).len(), want, "{n_slots} slots");
        let mut arrivals = store.request(LAYER, &ids(&[11, 12, 13, 14]));
        let mut n_arrived = 0;
        while let Some(batch) = arrivals.next_batch().unwrap() {
            n_arrived += batch.len();
        }
        assert_eq!(n_arrived, 4);
        assert_eq!(store.stats().prefetch_reads, want as u64);
    }
}

#[test]
fn predictions_do_not_evict_each_other_or_what_is_held() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16)], 4, last_token());
    let held = fetch(&store, 0, &[1]);
    fetch(&store, 0, &[2, 3, 4]);
    store.prefetch(LAYER, &ids(&[2, 7]));
    // The oldest expert that is neither held nor predicted was evicted.
    fetch(&store, 0, &[7]);
    let hits = store.stats().hits;
    fetch(&store, 0, &[1, 2, 4, 7]);
    assert_eq!(store.stats().hits, hits + 4);
    check_bytes(&held[0]);
}

#[test]
fn a_failed_prediction_is_a_miss_and_no_error() {
    let Fixture { dir: _dir, store, control } = fixture(&[packed(16)], 8, last_token());
    store.record(LAYER, &ids(&[1, 2]));
    control.hold();
    control.spoil(0, Fault::Error(io::ErrorKind::Other));
    store.begin_layer(LAYER);
    control.begun(1);
    control.release();
    // The second read begins after the first has failed.
    control.begun(2);
    fetch(&store, 0, &[1, 2]);
    store.record(LAYER, &ids(&[1, 2]));
    check_outcomes(&store, 1, 1 + 2);
}

#[test]
fn predictions_wait_while_a_request_goes_short_of_slots() {
    let Fixture { dir: _dir, store, control } = fixture(&[packed(16)], 2, last_token());
    let mut arrivals = store.request(LAYER, &ids(&[0, 1, 2, 3]));
    let held = arrivals.next_batch().unwrap().unwrap();
    store.prefetch(LAYER, &ids(&[8]));
    drop(held);
    let mut n_arrived = 1;
    while let Some(batch) = arrivals.next_batch().unwrap() {
        n_arrived += batch.len();
    }
    assert!(n_arrived >= 3);
    assert!(!control.begun(4)[..4].contains(&offset(8)));
}

#[test]
fn what_many_rows_want_is_read_by_all_readers() {
    let options = StoreOptions { n_readers: 3, ..last_token() };
    let Fixture { dir: _dir, store, control } = fixture(&[packed(16)], 8, options);
    control.hold();
    store.prefetch_many(LAYER, &ids(&[1, 2, 3, 4]));
    assert_eq!(control.begun(3).len(), 3);
    control.release();
    control.begun(4);
    fetch(&store, 0, &[1, 2, 3, 4]);
    assert_eq!(store.stats().prefetch_used, 4);
}

#[test]
fn a_small_cache_streams_a_layer_and_the_next_behind_it() {
    let options = StoreOptions { top_k: 2, ..last_token() };
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16), packed(16)], 5, options);
    let all: Vec<u16> = (0..16).collect();
    for _ in 0..3 {
        for layer in [0, 1] {
            let mut arrivals = store.request(LayerIdx(layer), &ids(&all));
            store.prefetch_all(LayerIdx(1 - layer));
            let mut n_arrived = 0;
            while let Some(batch) = arrivals.next_batch().unwrap() {
                batch.iter().for_each(|(_, expert)| check_bytes(expert));
                n_arrived += batch.len();
            }
            assert_eq!(n_arrived, 16);
        }
    }
}

#[test]
fn what_is_predicted_stays_until_its_layer_comes() {
    let Fixture { dir: _dir, store, .. } =
        fixture(&[packed(8), packed(8)], 4, StoreOptions { top_k: 2, ..last_token() });
    fetch(&store, 1, &[5]);
    // The expert is older than any other, and predicted.
    store.prefetch(LayerIdx(1), &ids(&[5]));
    for expert in 0..6 {
        fetch(&store, 0, &[expert]);
    }
    let hits = store.stats().hits;
    fetch(&store, 1, &[5]);
    assert_eq!(store.stats().hits, hits + 1);
    // Its layer has been requested: now it is evicted like any other.
    for expert in 0..6 {
        fetch(&store, 0, &[expert]);
    }
    let hits = store.stats().hits;
    fetch(&store, 1, &[5]);
    assert_eq!(store.stats().hits, hits);
}

#[test]
fn a_request_takes_slots_from_predictions_where_there_is_nothing_else() {
    let options = StoreOptions { top_k: 4, ..last_token() };
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(8), packed(8)], 4, options);
    fetch(&store, 1, &[0, 1, 2, 3]);
    store.prefetch(LayerIdx(1), &ids(&[0, 1, 2, 3]));
    assert_eq!(fetch(&store, 0, &[4, 5, 6, 7]).len(), 4);
}

#[test]
fn what_was_learned_warms_the_next_start() {
    let options = StoreOptions { policy: CachePolicy::Frequency, ..last_token() };
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16), stacked(16)], 6, options);
    for _ in 0..4 {
        fetch(&store, 0, &[3, 7]);
        fetch(&store, 1, &[15]);
    }
    fetch(&store, 0, &[1, 2]);
    let learned = store.learned().unwrap();
    assert_eq!(learned.len(), 32);

    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16), stacked(16)], 3, options);
    assert!(!store.restore(&learned[1..]));
    assert!(store.restore(&learned));
    while store.stats().resident < 3 {
        std::thread::yield_now();
    }
    fetch(&store, 0, &[3, 7]);
    fetch(&store, 1, &[15]);
    let stats = store.stats();
    assert_eq!((stats.hits, stats.misses, stats.prefetch_reads), (3, 0, 0));
    assert_eq!(stats.evictions, 0);
}

#[test]
fn layers_that_never_miss_are_not_worth_predicting() {
    let options = StoreOptions { prefetch: Prefetch::Lookahead, ..last_token() };
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16), packed(16)], 4, options);
    assert!(store.wants_lookahead(LAYER, 1));
    for _ in 0..40 {
        fetch(&store, 0, &[1, 2]);
    }
    assert!(!store.wants_lookahead(LAYER, 1));
    assert!(store.wants_lookahead(LayerIdx(1), 1));
    fetch(&store, 0, &[3]);
    assert!(store.wants_lookahead(LAYER, 1));
}
