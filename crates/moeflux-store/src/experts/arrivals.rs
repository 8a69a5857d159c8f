//! The experts of one request, in the order in which they become resident.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use moeflux_core::{Expert, LayerIdx};

use super::desk::ExpertDesk;
use super::requests::{Batch, Progress};
use super::residents::RequestId;
use super::slots::Slots;
use crate::drive;
use crate::{StoreError, StoreStats};

type Shared = drive::Shared<ExpertDesk>;

/// How often a consumer checks whether another thread has dropped its experts. Dropping an `Arc`
/// does not notify a condition variable.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How long a consumer waits for another thread to drop its experts.
const PATIENCE: Duration = Duration::from_secs(1);

/// The experts of a request, delivered in batches as they become resident.
///
/// Dropping it early cancels the reads that have not started; the others
/// finish and stay in the desk.
#[derive(Debug)]
pub struct Arrivals<'a> {
    shared: &'a Shared,
    layer: LayerIdx,
    is_missing: bool,
    /// All experts of the request if all were resident and pinned at once; else empty.
    hits: Batch,
    /// Identifies the request in the cache; `None` when the cache has nothing left to deliver.
    id: Option<RequestId>,
    failed: Option<StoreError>,
}

impl<'a> Arrivals<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        layer: LayerIdx,
        hits: Batch,
        id: Option<RequestId>,
    ) -> Arrivals<'a> {
        Arrivals { shared, layer, is_missing: false, hits, id, failed: None }
    }

    /// For a layer whose file is missing: no expert arrives.
    pub(super) fn missing(shared: &'a Shared, layer: LayerIdx) -> Arrivals<'a> {
        let mut arrivals = Arrivals::new(shared, layer, Vec::new(), None);
        arrivals.is_missing = true;
        arrivals
    }

    pub(super) fn failed(shared: &'a Shared, layer: LayerIdx, err: StoreError) -> Arrivals<'a> {
        let mut arrivals = Arrivals::new(shared, layer, Vec::new(), None);
        arrivals.failed = Some(err);
        arrivals
    }

    /// Whether the layer's file is missing and
    /// [`StoreOptions::allow_missing`](crate::StoreOptions::allow_missing) permits it. Then no
    /// expert arrives, and the layer's routed output is zero.
    pub fn is_missing(&self) -> bool {
        self.is_missing
    }

    /// The requested experts if all were resident at the time of the request; else empty.
    pub fn resident(&self) -> impl Iterator<Item = &Arc<Expert>> {
        self.hits.iter().map(|hit| &hit.1)
    }

    /// Returns the experts that have arrived since the last call, and waits if there are none.
    /// Returns `None` when all experts of the request have been returned. Experts that wait for a
    /// slot are read after other experts have been dropped and this is called again.
    ///
    /// # Errors
    /// One error for each expert that cannot be read; the others still arrive.
    /// [`StoreError::SlotsHeld`] if the calling thread holds every slot that is needed, or if other
    /// threads hold them for a second. [`StoreError::OutOfMemory`] instead if the system gave no
    /// memory for a slot.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, StoreError> {
        if let Some(err) = self.failed.take() {
            return Err(err);
        }
        let Some(id) = self.id else {
            let hits = std::mem::take(&mut self.hits);
            return Ok(if hits.is_empty() { None } else { Some(hits) });
        };
        let mut desk = self.shared.lock();
        let mut waiting_since = None;
        let this_thread = thread::current().id();
        let outcome = loop {
            desk.pin(id);
            if desk.issue(id) {
                self.shared.work.notify_one();
            }
            let progress = desk.requests.progress(id);
            let starved = match progress {
                Progress::Arrived(batch) => break Ok(Some(batch)),
                Progress::Failed(err) => break Err(err),
                Progress::Finished => {
                    self.id = None;
                    break Ok(None);
                }
                Progress::Coming => None,
                Progress::NoFreeSlot(n_waiting) => Some(n_waiting),
            };
            let since = *waiting_since.get_or_insert_with(Instant::now);
            let Some(n_waiting) = starved else {
                desk = self.shared.wait(desk);
                continue;
            };
            let is_hopeless =
                || since.elapsed() > PATIENCE || desk.residents.are_all_held_by(this_thread);
            if desk.queue.is_idle() && is_hopeless() {
                if let Some(err) = desk.residents.slots.as_ref().and_then(Slots::refusal) {
                    break Err(StoreError::OutOfMemory(err));
                }
                let StoreStats { n_slots, .. } = desk.stats();
                let layer = self.layer.0;
                break Err(StoreError::SlotsHeld { n_slots, n_waiting, layer });
            }
            desk = self.shared.wait_for(desk, LOOK_AGAIN);
        };
        if desk.queue.may_read_ahead() {
            self.shared.work.notify_all();
        }
        if let Some(since) = waiting_since {
            desk.journal.stall(self.layer, since);
        }
        outcome
    }
}

impl Drop for Arrivals<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shared.lock().abandon(id);
            self.shared.work.notify_one();
            self.shared.arrived.notify_all();
        }
    }
}
