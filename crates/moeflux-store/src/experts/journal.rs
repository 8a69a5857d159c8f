//! What the cache did: counters, and the events that are recorded.

use std::time::Instant;

use moeflux_core::{ExpertKey, LayerIdx, nanoseconds};

use super::predict::Outcome;
use super::stats::StoreStats;
use super::timeline::{EventKind, LayerCounts, Timeline};

/// Counters since the last reset, and events while they are recorded.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) counts: StoreStats,
    /// Indexed by layer.
    pub(super) layers: Vec<LayerCounts>,
    /// The recorded events; `None` while recording is off.
    timeline: Option<Timeline>,
}

impl Journal {
    pub(super) fn new(n_layers: usize) -> Journal {
        let layers = vec![LayerCounts::default(); n_layers];
        Journal { counts: StoreStats::default(), layers, timeline: None }
    }

    /// Counts a request.
    pub(super) fn request(&mut self, layer: LayerIdx, n_hits: usize, n_misses: usize) {
        let of_layer = &mut self.layers[layer.idx()];
        self.counts.requests += 1;
        self.counts.hits += n_hits as u64;
        self.counts.misses += n_misses as u64;
        of_layer.hits += n_hits as u64;
        of_layer.misses += n_misses as u64;
        self.note(EventKind::Request { layer, n_hits, n_misses });
    }

    pub(super) fn read_begins(&mut self, key: ExpertKey, is_predicted: bool) {
        self.note(EventKind::ReadStart { key, is_predicted });
    }

    /// Counts the bytes of a record that was read; 0 if the read failed.
    pub(super) fn read_ends(&mut self, key: ExpertKey, n_bytes: u64) {
        self.counts.bytes_read += n_bytes;
        self.note(EventKind::ReadEnd { key, n_bytes });
    }

    /// Counts how a prediction compared with the routing.
    pub(super) fn prediction(&mut self, outcome: Outcome) {
        self.counts.prefetch_hits += outcome.hits;
        self.counts.prefetch_misses += outcome.misses;
        self.counts.predictions += outcome.n_predicted;
        self.counts.predictions_correct += outcome.n_correct;
    }

    /// Counts a wait that began at `since` and ends now.
    pub(super) fn stall(&mut self, layer: LayerIdx, since: Instant) {
        self.counts.stall_ns += nanoseconds(since.elapsed());
        if let Some(timeline) = &mut self.timeline {
            timeline.push_at(since, EventKind::StallStart { layer });
            timeline.push_at(Instant::now(), EventKind::StallEnd { layer });
        }
    }

    /// Records events from now on, at most `capacity` of them.
    pub(super) fn record(&mut self, capacity: usize) {
        self.timeline = Some(Timeline::new(capacity));
    }

    /// Stops recording and returns the events.
    pub(super) fn take_timeline(&mut self) -> Timeline {
        let mut timeline = self.timeline.take().unwrap_or_default();
        // A wait is recorded when it ends, after the reads that ended during it.
        timeline.events.sort_by_key(|event| event.at);
        timeline
    }

    pub(super) fn reset(&mut self) {
        self.layers.fill(LayerCounts::default());
        self.counts = StoreStats::default();
    }

    fn note(&mut self, what: EventKind) {
        if let Some(timeline) = &mut self.timeline {
            timeline.push_at(Instant::now(), what);
        }
    }
}
