//! The state of a store: what consumers and readers share, behind one lock.

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

/// The state of a store.
#[derive(Debug)]
pub(crate) struct CacheState {
    /// By ordinal.
    pub(super) entries: Vec<Entry>,
    /// `None` when files are mapped: then nothing ever has to leave.
    pub(super) slots: Option<Slots>,
    pub(super) queue: Queue,
    pub(super) in_flight: InFlight,
    pub(super) requests: HashMap<RequestId, Pending>,
    pub(super) n_tickets: u64,
    /// Resident experts that were predicted for a layer that is still to come,
    /// the likeliest of each layer first. The policy does not know of them.
    pub(super) expected: Vec<Target>,
    /// What is being read although nobody asked for it.
    pub(super) reading_ahead: Vec<Target>,
    pub(super) device_copies: DeviceCopies,
    pub(super) predictor: LastToken,
    pub(super) tuner: Tuner,
    /// What consumers had waited and the drive had read when the last decode
    /// step ended.
    pub(super) last_step: (Duration, Duration),
    pub(super) counts: StoreStats,
    /// By layer.
    pub(super) layer_counts: Vec<LayerCounts>,
    /// The events of this store, where they are recorded.
    pub(super) timeline: Option<Timeline>,
    /// Slots that predictions leave to requests.
    pub(super) n_reserved: usize,
    /// Experts that a request pins at a time.
    pub(super) max_pinned: usize,
    pub(super) is_closed: bool,
}
