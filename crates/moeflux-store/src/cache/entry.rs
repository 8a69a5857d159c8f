//! Where each expert is, and what is left of each request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::ThreadId;

use moeflux_core::Expert;

use crate::StoreError;
use crate::plan::Target;

/// Names an unfinished request.
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
        /// Whether a prediction started the read and nobody asked since.
        is_predicted: bool,
        /// Whether its layer is still to come.
        is_expected: bool,
    },
    Resident {
        expert: Arc<Expert>,
        /// Who got it while nobody else had it; `None` if several may have it.
        holder: Option<ThreadId>,
        /// As above.
        is_predicted: bool,
        /// Whether it is among those that are expected.
        is_expected: bool,
        /// Requests that have still to collect it. Only a shrinking budget evicts it before that.
        n_awaiting: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) ticket: RequestId,
    /// Place of the expert in the request.
    pub(super) index: usize,
}

/// What is left of a request.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) owner: ThreadId,
    /// Experts that wait for a slot.
    pub(super) unissued: VecDeque<(usize, Target)>,
    pub(super) n_coming: usize,
    /// Pinned for the consumer.
    pub(super) pinned: Batch,
    /// Experts that were resident when they were noted here. They are pinned a few at a time, so
    /// that a request for a whole layer does not keep a budget from shrinking.
    pub(super) awaiting: VecDeque<(usize, Target)>,
    pub(super) failed: VecDeque<StoreError>,
}

/// What a consumer finds.
#[derive(Debug)]
pub(crate) enum Progress {
    Arrived(Batch),
    Failed(StoreError),
    Finished,
    /// Reads of this request are on their way.
    Coming,
    /// That many experts wait for a slot and none of this request is on its way.
    NoFreeSlot(usize),
}

/// Experts, each with its place in the request.
pub type Batch = Vec<(usize, Arc<Expert>)>;

/// Whether experts may leave that a request has still to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    Stay,
    /// The request reads them again: only for a budget that shrinks.
    MayLeave,
}
