//! What happened when: requests, reads and waits, for whoever asked to have it
//! written down.

use std::time::Instant;

use moeflux_core::{ExpertKey, LayerIdx};

/// Something that happened, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Instant,
    /// What.
    pub what: EventKind,
}

/// What can happen in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Experts of a layer were asked for.
    Request {
        /// The layer.
        layer: LayerIdx,
        /// How many were resident.
        n_hits: usize,
        /// How many were not.
        n_misses: usize,
    },
    /// A reader took an expert.
    ReadStart {
        /// Which.
        key: ExpertKey,
        /// Whether nobody waits for it yet.
        is_predicted: bool,
    },
    /// A reader is done with an expert.
    ReadEnd {
        /// Which.
        key: ExpertKey,
        /// Bytes that it brought; 0 where it failed.
        n_bytes: u64,
    },
    /// A consumer begins to wait.
    StallStart {
        /// For experts of this layer.
        layer: LayerIdx,
    },
    /// It has what it waited for.
    StallEnd {
        /// For experts of this layer.
        layer: LayerIdx,
    },
}

/// Events in the order in which they happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The first `capacity` of them.
    pub events: Vec<Event>,
    /// How many there was no room for.
    pub n_lost: u64,
    capacity: usize,
}

impl Timeline {
    pub(crate) fn new(capacity: usize) -> Timeline {
        Timeline { events: Vec::new(), n_lost: 0, capacity }
    }

    pub(crate) fn push(&mut self, what: EventKind) {
        self.push_at(Instant::now(), what);
    }

    pub(crate) fn push_at(&mut self, at: Instant, what: EventKind) {
        if self.events.len() < self.capacity {
            self.events.push(Event { at, what });
        } else {
            self.n_lost += 1;
        }
    }
}

/// How the requests of one layer fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCounts {
    /// Experts that were resident when requested.
    pub hits: u64,
    /// Experts that had to be waited for.
    pub misses: u64,
}

impl LayerCounts {
    /// Share of requested experts that were resident; `None` before the first.
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}
