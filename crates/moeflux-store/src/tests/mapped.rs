//! Stores that map the files of their experts.

use moeflux_core::ExpertMemory;

use super::bank::{Shape, listed, packed, stacked};
use super::*;

#[test]
fn mapped_experts_have_the_right_bytes_and_take_no_slots() {
    let dir = TempDir::new().unwrap();
    let shape = [packed(8), Shape::Dense, stacked(5), listed(6)];
    let bank = bank::write(dir.path(), &shape);
    let alloc: SlotAlloc = Box::new(|_| unreachable!("mapped experts need no slots"));
    let options = StoreOptions { cache_bytes: 0, ..options(IoMode::Mmap) };
    let store = ExpertStore::open(bank, alloc, options).unwrap();
    for round in 1..4 {
        fetch(&store, 0, &[7, 0, 3]);
        fetch(&store, 2, &[4, 1, 0, 2, 3]);
        let held = fetch(&store, 3, &[5, 4, 3, 2, 1, 0]);
        assert!(held.iter().all(|expert| matches!(expert.memory, ExpertMemory::Mapped(_))));
        let stats = store.stats();
        assert_eq!((stats.misses, stats.hits), (14, 14 * (round - 1)));
        assert_eq!((stats.resident, stats.n_slots, stats.evictions), (14, 0, 0));
    }
}

#[test]
fn predictions_work_without_slots() {
    let options = StoreOptions { prefetch: Prefetch::LastToken, ..options(IoMode::Mmap) };
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(8)], 1, options);
    store.prefetch(LayerIdx(0), &ids(&[1, 2]));
    fetch(&store, 0, &[2, 3]);
    store.record(LayerIdx(0), &ids(&[2, 3]));
    store.begin_layer(LayerIdx(0));
    fetch(&store, 0, &[3, 4]);
    store.record(LayerIdx(0), &ids(&[3, 4]));
    let stats = store.stats();
    assert_eq!((stats.prefetch_hits, stats.prefetch_misses), (2, 2));
}
