//! The state of a store, which consumers and readers share under one lock.

use std::collections::HashMap;
use std::time::Duration;

use super::device_copies::DeviceCopies;
use super::entry::{Entry, Pending};
use crate::StoreStats;
use crate::cache::RequestId;
use crate::in_flight::InFlight;
use crate::plan::Target;
use crate::predict::LastToken;
use crate::queue::Queue;
use crate::slots::Slots;
use crate::timeline::{LayerCounts, Timeline};
use crate::tuner::Tuner;

/// The state of a store's cache.
#[derive(Debug)]
pub(crate) struct CacheState {
    /// Indexed by ordinal.
    pub(super) entries: Vec<Entry>,
    /// `None` when files are mapped: then no expert is ever evicted.
    pub(super) slots: Option<Slots>,
    pub(super) queue: Queue,
    pub(super) in_flight: InFlight,
    pub(super) requests: HashMap<RequestId, Pending>,
    pub(super) n_tickets: u64,
    /// Resident experts that were predicted for a layer that has not been requested yet, the
    /// likeliest of each layer first. They are not in the policy, so that it cannot choose them for
    /// eviction.
    pub(super) expected: Vec<Target>,
    /// Experts whose reads began before any request for them, and have not ended.
    pub(super) reading_ahead: Vec<Target>,
    pub(super) device_copies: DeviceCopies,
    pub(super) predictor: LastToken,
    pub(super) tuner: Tuner,
    /// Total stall time of consumers and total busy time of the drive when the last decode step
    /// ended.
    pub(super) last_step: (Duration, Duration),
    pub(super) counts: StoreStats,
    /// Indexed by layer.
    pub(super) layer_counts: Vec<LayerCounts>,
    /// The recorded events; `None` while recording is off.
    pub(super) timeline: Option<Timeline>,
    /// Slots that predicted reads leave to requests.
    pub(super) n_reserved: usize,
    /// The most experts that a request pins at a time.
    pub(super) max_pinned: usize,
    pub(super) is_closed: bool,
}
