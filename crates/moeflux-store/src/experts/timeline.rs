//! A recording of requests, reads and waits, with their times.

use std::time::Instant;

use moeflux_core::{ExpertKey, LayerIdx};

/// An event and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time.
    pub at: Instant,
    /// The kind of event.
    pub what: EventKind,
}

/// The kinds of events in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Experts of a layer were requested.
    Request {
        /// The layer.
        layer: LayerIdx,
        /// How many experts were resident.
        n_hits: usize,
        /// How many experts were not resident.
        n_misses: usize,
    },
    /// A reader began to read an expert.
    ReadStart {
        /// The expert.
        key: ExpertKey,
        /// Whether the read began before any request for the expert.
        is_predicted: bool,
    },
    /// A reader finished the read of an expert.
    ReadEnd {
        /// The expert.
        key: ExpertKey,
        /// Bytes of the record; 0 if the read failed.
        n_bytes: u64,
    },
    /// A consumer begins to wait.
    StallStart {
        /// The layer whose experts it waits for.
        layer: LayerIdx,
    },
    /// A consumer stopped waiting.
    StallEnd {
        /// The layer whose experts it waited for.
        layer: LayerIdx,
    },
}

/// Events in the order in which they happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The first `capacity` events.
    pub events: Vec<Event>,
    /// Events that were dropped because `capacity` was reached.
    pub n_lost: u64,
    capacity: usize,
}

impl Timeline {
    pub(crate) fn new(capacity: usize) -> Timeline {
        Timeline { events: Vec::new(), n_lost: 0, capacity }
    }

    pub(crate) fn push_at(&mut self, at: Instant, what: EventKind) {
        if self.events.len() < self.capacity {
            self.events.push(Event { at, what });
        } else {
            self.n_lost += 1;
        }
    }
}

/// The hits and misses of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCounts {
    /// Experts that were resident when requested.
    pub hits: u64,
    /// Experts that were not resident when requested.
    pub misses: u64,
}

impl LayerCounts {
    /// Share of requested experts that were resident; `None` before the first.
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}
