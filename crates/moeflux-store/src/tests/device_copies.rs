//! Experts that devices have copies of.

use super::bank::packed;
use super::*;

const LAYER: LayerIdx = LayerIdx(0);

fn note(store: &ExpertStore, experts: &[u16], is_there: bool) {
    let key = |n: &u16| (ExpertKey { layer: LAYER, expert: ExpertId(*n) }, is_there);
    store.set_on_device(experts.iter().map(key));
}

/// Requests the experts, and returns how many of them were resident.
#[track_caller]
fn n_resident(store: &ExpertStore, experts: &[u16]) -> u64 {
    let before = store.stats().hits;
    fetch(store, LAYER.0, experts);
    store.stats().hits - before
}

#[test]
fn what_a_device_has_leaves_first_and_only_as_long_as_it_has_it() {
    for policy in [CachePolicy::Lru, CachePolicy::Frequency] {
        let options = StoreOptions { policy, ..options(IoMode::Pread) };
        let Fixture { dir: _dir, store, .. } = fixture(&[packed(16)], 4, options);
        fetch(&store, 0, &[0, 1, 2, 3]);
        // The experts that were used last, which would stay longest without copies on the device.
        note(&store, &[2, 3], true);
        fetch(&store, 0, &[4, 5]);
        assert_eq!(n_resident(&store, &[0, 1]), 2, "{policy:?}");
        // An expert that is read while the device has a copy is the first to be evicted again.
        note(&store, &[9], true);
        fetch(&store, 0, &[9]);
        fetch(&store, 0, &[10]);
        assert_eq!(n_resident(&store, &[9]), 0, "{policy:?}");
        // An expert whose copy the device dropped is evicted like any other.
        note(&store, &[9], false);
        assert_eq!(n_resident(&store, &[0]), 1, "{policy:?}");
        note(&store, &[0], true);
        note(&store, &[0], false);
        fetch(&store, 0, &[11]);
        assert_eq!(n_resident(&store, &[0]), 1, "{policy:?}");
    }
}

#[test]
fn held_experts_stay_although_a_device_has_them() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16)], 3, options(IoMode::Pread));
    let held = fetch(&store, 0, &[0]);
    fetch(&store, 0, &[1, 2]);
    note(&store, &[0], true);
    fetch(&store, 0, &[3]);
    held.iter().for_each(|expert| check_bytes(expert));
    assert_eq!(n_resident(&store, &[0]), 1);
}

#[test]
fn what_a_device_has_is_not_read_ahead() {
    let options =
        StoreOptions { prefetch: Prefetch::Lookahead, n_readers: 1, ..options(IoMode::Pread) };
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(16)], 16, options);
    note(&store, &[1, 2], true);
    store.prefetch_many(LAYER, &ids(&[1, 2, 3]));
    // The only reader starts prefetches in their order.
    while store.stats().resident == 0 {
        std::thread::yield_now();
    }
    assert_eq!(n_resident(&store, &[1, 2]), 0);
}
