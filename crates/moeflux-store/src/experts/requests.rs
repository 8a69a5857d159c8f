//! Requests that have not delivered all of their experts.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use moeflux_core::Expert;

use super::plan::Target;
use super::residents::{RequestId, Residents, Waiter};
use crate::StoreError;

/// Experts, each with its index in the request.
pub type Batch = Vec<(usize, Arc<Expert>)>;

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
    failed: VecDeque<StoreError>,
}

/// The state of a request when its consumer collects experts.
#[derive(Debug)]
pub(super) enum Progress {
    Arrived(Batch),
    Failed(StoreError),
    Finished,
    /// Reads of this request are queued or in progress.
    Coming,
    /// No read of this request is queued or in progress, and this number of its experts wait for a
    /// slot.
    NoFreeSlot(usize),
}

impl Pending {
    /// A request of this thread. Its first experts are put into `batch`.
    pub(super) fn new(mut batch: Batch) -> Pending {
        batch.clear();
        Pending {
            owner: thread::current().id(),
            unissued: VecDeque::new(),
            n_coming: 0,
            pinned: batch,
            awaiting: VecDeque::new(),
            failed: VecDeque::new(),
        }
    }
}

/// All unfinished requests.
#[derive(Debug, Default)]
pub(super) struct Requests {
    by_id: HashMap<RequestId, Pending>,
    n_added: u64,
}

impl Requests {
    /// The number of the next request that is added.
    pub(super) fn next_id(&self) -> RequestId {
        RequestId(self.n_added)
    }

    /// Adds a request under its number.
    pub(super) fn add(&mut self, pending: Pending) -> RequestId {
        let id = self.next_id();
        self.n_added += 1;
        self.by_id.insert(id, pending);
        id
    }

    /// Removes a request for a while, so that its experts can be looked for.
    pub(super) fn take(&mut self, id: RequestId) -> Option<Pending> {
        self.by_id.remove(&id)
    }

    pub(super) fn put_back(&mut self, id: RequestId, pending: Pending) {
        self.by_id.insert(id, pending);
    }

    /// Whether any request waits for a slot.
    pub(super) fn need_slots(&self) -> bool {
        self.by_id.values().any(|pending| !pending.unissued.is_empty())
    }

    /// Whether one of these places belongs to an unfinished request.
    pub(super) fn have_any(&self, waiters: &[Waiter]) -> bool {
        waiters.iter().any(|waiter| self.by_id.contains_key(&waiter.request))
    }

    /// Notes that an expert is resident. Returns how many requests have still to collect it.
    pub(super) fn arrived(&mut self, target: Target, waiters: &[Waiter]) -> u32 {
        let mut n_awaiting = 0;
        for waiter in waiters {
            let Some(pending) = self.by_id.get_mut(&waiter.request) else { continue };
            pending.n_coming -= 1;
            pending.awaiting.push_back((waiter.index, target));
            n_awaiting += 1;
        }
        n_awaiting
    }

    /// Has requests wait for a slot again, because the read for them did not begin or failed. The
    /// request that started the read gets the error. The others, which joined it later, try again,
    /// because the cause may be gone by now.
    pub(super) fn requeue(
        &mut self,
        target: Target,
        waiters: &[Waiter],
        mut failure: Option<(StoreError, Option<RequestId>)>,
    ) {
        for waiter in waiters {
            let Some(pending) = self.by_id.get_mut(&waiter.request) else { continue };
            pending.n_coming -= 1;
            match failure.take_if(|(_, starter)| *starter == Some(waiter.request)) {
                Some((err, _)) => pending.failed.push_back(err),
                None => pending.unissued.push_back((waiter.index, target)),
            }
        }
    }

    /// Pins resident experts of a request, at most `max_pinned` at a time. Those that were evicted
    /// while the budget shrank wait for a slot again.
    pub(super) fn pin(&mut self, id: RequestId, residents: &mut Residents, max_pinned: usize) {
        let Some(pending) = self.by_id.get_mut(&id) else { return };
        while pending.pinned.len() < max_pinned
            && let Some((index, target)) = pending.awaiting.pop_front()
        {
            match residents.collect(target, pending.owner) {
                Some(expert) => pending.pinned.push((index, expert)),
                None => pending.unissued.push_back((index, target)),
            }
        }
    }

    /// Returns what has happened to a request since the last call.
    pub(super) fn progress(&mut self, id: RequestId) -> Progress {
        let Some(pending) = self.by_id.get_mut(&id) else { return Progress::Finished };
        if let Some(err) = pending.failed.pop_front() {
            Progress::Failed(err)
        } else if !pending.pinned.is_empty() {
            Progress::Arrived(mem::take(&mut pending.pinned))
        } else if pending.n_coming > 0 {
            Progress::Coming
        } else if !pending.unissued.is_empty() {
            Progress::NoFreeSlot(pending.unissued.len())
        } else {
            self.by_id.remove(&id);
            Progress::Finished
        }
    }
}
