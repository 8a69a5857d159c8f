//! The state of each expert and of each unfinished request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::ThreadId;

use moeflux_core::Expert;

use crate::StoreError;
use crate::plan::Target;

/// Identifies an unfinished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestId(pub(super) u64);

/// Where an expert is.
#[derive(Debug)]
pub(super) enum Entry {
    Absent,
    /// Queued, or being read.
    Coming {
        waiters: Vec<Waiter>,
        /// The request that the read was started for; `None` if it was predicted.
        starter: Option<RequestId>,
        /// Whether a prediction started the read and no request has asked for the expert since.
        is_predicted: bool,
        /// Whether the expert was predicted for a layer that has not been requested yet.
        is_expected: bool,
    },
    Resident {
        expert: Arc<Expert>,
        /// The only thread that may hold the expert; `None` if no thread got it yet, or if several
        /// threads may hold it.
        holder: Option<ThreadId>,
        /// Whether a prediction started the read and no request has asked for the expert since.
        is_predicted: bool,
        /// Whether the expert is in `CacheState::expected`.
        is_expected: bool,
        /// Requests that have still to collect the expert. Until then only a shrinking budget
        /// evicts it.
        n_awaiting: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) ticket: RequestId,
    /// Index of the expert in the request.
    pub(super) index: usize,
}

/// What is left of a request.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) owner: ThreadId,
    /// Experts that wait for a slot, with their indices in the request.
    pub(super) unissued: VecDeque<(usize, Target)>,
    pub(super) n_coming: usize,
    /// Pinned experts that the consumer has not collected.
    pub(super) pinned: Batch,
    /// Experts that were resident when they were added here, with their indices in the request.
    /// They are pinned a few at a time, so that a request for a whole layer does not keep a budget
    /// from shrinking.
    pub(super) awaiting: VecDeque<(usize, Target)>,
    pub(super) failed: VecDeque<StoreError>,
}

/// The state of a request when its consumer collects experts.
#[derive(Debug)]
pub(crate) enum Progress {
    Arrived(Batch),
    Failed(StoreError),
    Finished,
    /// Reads of this request are queued or in progress.
    Coming,
    /// No read of this request is queued or in progress, and this number of its experts wait for a
    /// slot.
    NoFreeSlot(usize),
}

/// Experts, each with its index in the request.
pub type Batch = Vec<(usize, Arc<Expert>)>;

/// Whether experts that a request has still to collect may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    Stay,
    /// Only for a budget that shrinks: the request has to read them again.
    MayLeave,
}
