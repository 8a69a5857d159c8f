//! Reads ahead of requests, which start only while no request waits for the drive, and the
//! predictions that they follow.

use moeflux_core::{ExpertId, HostBuf, LayerIdx};

use super::plan::Target;
use super::predict::{LastToken, Outcome};
use super::queue::{Confidence, Job, PrefetchRequest, Priority, Queue};
use super::requests::Requests;
use super::residents::{Coming, Residents};
use super::slots::Slots;
use super::tuner::Tuner;

/// What is read ahead, and whether that is worth it.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) predictor: LastToken,
    pub(super) tuner: Tuner,
    /// Experts whose reads began before any request for them, and have not ended.
    reading: Vec<Target>,
    /// Slots that reads ahead leave to requests.
    n_reserved: usize,
}

impl Ahead {
    pub(super) fn new(n_layers: usize, n_reserved: usize) -> Ahead {
        let (predictor, tuner) = (LastToken::new(n_layers), Tuner::new());
        Ahead { predictor, tuner, reading: Vec::new(), n_reserved }
    }

    /// Queues reads of experts that are likely to be requested, the likeliest first. Those that are
    /// resident are protected from eviction.
    pub(super) fn prefetch(
        &mut self,
        layer: LayerIdx,
        likely: &[Target],
        confidence: Confidence,
        residents: &mut Residents,
        queue: &mut Queue,
    ) {
        likely.iter().for_each(|target| residents.expect(*target));
        let absent = likely
            .iter()
            .filter(|target| residents.is_absent(**target) && !residents.is_on_device(**target));
        queue.set_prefetches(
            layer,
            absent.map(|target| PrefetchRequest { target: *target, confidence }),
        );
        if confidence == Confidence::Likely {
            let experts = || likely.iter().map(|target| target.key.expert);
            self.predictor.cover(layer, experts());
            self.predictor.predict(layer, experts());
        }
    }

    /// Ends the protection of a layer's predicted experts, because it is requested.
    pub(super) fn settle(&self, layer: LayerIdx, residents: &mut Residents) {
        residents.settle(Some(layer));
        let reading = self.reading.iter().filter(|target| target.key.layer == layer);
        reading.for_each(|target| residents.settle_coming(*target));
    }

    /// Drops all predictions, and the reads for them that have not started.
    pub(super) fn forget(&mut self, residents: &mut Residents, queue: &mut Queue) {
        queue.cancel_prefetches();
        residents.settle(None);
        self.predictor.forget();
    }

    /// Starts the next read that no request waits for, if one may start now.
    pub(super) fn start(
        &mut self,
        residents: &mut Residents,
        queue: &mut Queue,
        requests: &Requests,
    ) -> Option<Job> {
        while let Some(PrefetchRequest { target, .. }) = queue.next_prefetch() {
            if residents.is_absent(target) {
                let buf = self.spare_slot(residents, queue, requests)?;
                queue.drop_prefetch();
                return Some(self.begin(target, buf, Priority::Prefetch, residents, queue));
            }
            queue.drop_prefetch();
        }
        while let Some(target) = queue.next_warm() {
            if residents.is_absent(target) {
                let Some(buf) = residents.slots.as_mut().and_then(Slots::take) else {
                    queue.stop_warming();
                    return None;
                };
                queue.drop_warm();
                return Some(self.begin(target, Some(buf), Priority::WarmUp, residents, queue));
            }
            queue.drop_warm();
        }
        None
    }

    fn begin(
        &mut self,
        target: Target,
        buf: Option<HostBuf>,
        priority: Priority,
        residents: &mut Residents,
        queue: &mut Queue,
    ) -> Job {
        let is_predicted = priority == Priority::Prefetch;
        let coming = Coming { is_predicted, is_expected: is_predicted, ..Coming::default() };
        residents.start(target, coming);
        self.reading.push(target);
        queue.begin(priority);
        Job { target, buf, priority }
    }

    /// Memory for a predicted record; `Some(None)` when files are mapped. `None` if a request waits
    /// for a slot, or if too few slots would be left for the next request.
    fn spare_slot(
        &self,
        residents: &mut Residents,
        queue: &Queue,
        requests: &Requests,
    ) -> Option<Option<HostBuf>> {
        let n_ahead = queue.n_ahead_reading() + self.n_reserved;
        let is_full = |slots: &Slots| n_ahead + slots.n_expected() >= slots.n_slots();
        if residents.slots.as_ref().is_some_and(is_full) || requests.need_slots() {
            return None;
        }
        residents.acquire(Priority::Prefetch)
    }

    /// Ends a read that no request waited for when it began.
    pub(super) fn end(&mut self, target: Target) {
        self.reading.retain(|other| *other != target);
    }

    /// Compares a layer's routing with its prediction, and keeps the routing as the next one. `None`
    /// for a layer without any prediction, unless it `is_predicting`.
    pub(super) fn record(
        &mut self,
        layer: LayerIdx,
        routed: &[ExpertId],
        is_predicting: bool,
    ) -> Option<Outcome> {
        let is_counted = is_predicting || self.predictor.is_covered(layer);
        let outcome = self.predictor.record(layer, routed);
        is_counted.then_some(outcome)
    }
}
