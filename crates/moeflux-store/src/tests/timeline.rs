//! The recorded events of requests, reads and waits.

use super::bank::packed;
use super::*;
use crate::{EventKind, LayerCounts, Timeline};

fn pread() -> StoreOptions {
    options(IoMode::Pread)
}

#[test]
fn layers_count_their_own_hits_and_misses() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(8), packed(8)], 16, pread());
    for (layer, experts) in [(0, vec![1, 2]), (1, vec![1]), (0, vec![2, 3, 1]), (1, vec![1])] {
        fetch(&store, layer, &experts);
    }
    let counts = |hits, misses| LayerCounts { hits, misses };
    assert_eq!(store.layer_counts(), [counts(2, 3), counts(1, 1)]);
    assert_eq!(store.layer_counts()[0].hit_rate(), Some(0.4));
    store.reset_stats();
    assert_eq!(store.layer_counts(), [counts(0, 0); 2]);
    assert_eq!(store.layer_counts()[0].hit_rate(), None);
}

#[test]
fn nothing_is_written_down_unless_asked() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(8)], 8, pread());
    fetch(&store, 0, &[1]);
    assert_eq!(store.take_timeline(), Timeline::default());
}

#[test]
fn events_tell_what_happened_in_order() {
    for mode in [IoMode::Pread, IoMode::Mmap] {
        let Fixture { dir: _dir, store, .. } = fixture(&[packed(8)], 8, options(mode));
        fetch(&store, 0, &[1]);
        store.record_timeline(100);
        fetch(&store, 0, &[1, 5]);
        let Timeline { events, n_lost, .. } = store.take_timeline();
        assert_eq!(n_lost, 0);
        assert!(events.is_sorted_by_key(|event| event.at), "{events:?}");
        let layer = LayerIdx(0);
        let key = ExpertKey { layer, expert: ExpertId(5) };
        let what: Vec<EventKind> = events.iter().map(|event| event.what).collect();
        assert_eq!(what[0], EventKind::Request { layer, n_hits: 1, n_misses: 1 });
        let place = |wanted: EventKind| what.iter().position(|kind| *kind == wanted);
        let start = place(EventKind::ReadStart { key, is_predicted: false });
        let end = place(EventKind::ReadEnd { key, n_bytes: 4000 });
        assert!(start.is_some() && start < end, "{what:?}");
        let stalls = [EventKind::StallStart { layer }, EventKind::StallEnd { layer }].map(place);
        assert!(stalls[0].is_none() == stalls[1].is_none() && stalls[0] <= stalls[1], "{what:?}");
        fetch(&store, 0, &[6]);
        assert_eq!(store.take_timeline(), Timeline::default(), "the writing down has ended");
    }
}

#[test]
fn a_timeline_is_bounded() {
    let Fixture { dir: _dir, store, .. } = fixture(&[packed(8)], 8, pread());
    store.record_timeline(2);
    fetch(&store, 0, &[0, 1, 2, 3]);
    let timeline = store.take_timeline();
    assert_eq!(timeline.events.len(), 2);
    assert!(timeline.n_lost >= 7, "{timeline:?}");
}

#[test]
fn a_cleared_store_reads_again_what_was_not_held() {
    for mode in [IoMode::Pread, IoMode::Mmap] {
        let Fixture { dir: _dir, store, .. } = fixture(&[packed(8)], 8, options(mode));
        let held = fetch(&store, 0, &[1]);
        fetch(&store, 0, &[2, 3]);
        store.clear();
        let stays = usize::from(mode == IoMode::Pread);
        assert_eq!(store.stats().resident, stays, "{mode}");
        held.iter().for_each(|expert| check_bytes(expert));
        store.reset_stats();
        fetch(&store, 0, &[1, 2, 3]);
        assert_eq!(store.stats().hits, stays as u64, "{mode}");
        assert_eq!(store.stats().misses, 3 - stays as u64, "{mode}");
    }
}
