//! Reads ahead of requests, which start only while no request waits for the drive.

use std::mem;

use moeflux_core::{ExpertId, HostBuf, LayerIdx};

use super::{CacheState, Entry};
use crate::plan::{Ordinal, Target};
use crate::queue::{Confidence, Job, PrefetchRequest, Priority};
use crate::slots::Slots;

impl CacheState {
    /// Queues reads of experts that are likely to be requested, the likeliest first. Returns
    /// whether such reads may begin.
    pub(crate) fn prefetch(
        &mut self,
        layer: LayerIdx,
        likely: &[Target],
        confidence: Confidence,
    ) -> bool {
        let mut absent: Vec<PrefetchRequest> = Vec::new();
        for &target in likely {
            match &self.entries[target.ordinal.idx()] {
                Entry::Absent if self.is_on_device(target) => {}
                Entry::Absent => absent.push(PrefetchRequest { target, confidence }),
                Entry::Coming { .. } => {}
                Entry::Resident { .. } => self.expect(target),
            }
        }
        self.queue.set_prefetches(layer, absent.into_iter());
        if confidence == Confidence::Likely {
            let experts = || likely.iter().map(|target| target.key.expert);
            self.predictor.cover(layer, experts());
            self.predictor.predict(layer, experts());
        }
        self.queue.may_read_ahead()
    }

    /// Protects a resident expert from eviction until its layer is requested. A request that finds
    /// no other slot may still evict it.
    fn expect(&mut self, target: Target) {
        let Entry::Resident { is_expected, .. } = &mut self.entries[target.ordinal.idx()] else {
            return;
        };
        if let Some(slots) = &mut self.slots
            && !mem::replace(is_expected, true)
        {
            slots.policy.removed(target.ordinal);
            self.expected.push(target);
        }
    }

    /// Ends the protection of a layer's predicted experts: from now on the policy may choose them
    /// for eviction.
    pub(super) fn settle(&mut self, layer: LayerIdx) {
        let (settled, expected) =
            mem::take(&mut self.expected).into_iter().partition(|target| target.key.layer == layer);
        self.expected = expected;
        self.settle_all(settled);
        for target in &self.reading_ahead {
            if let Entry::Coming { is_expected, .. } = &mut self.entries[target.ordinal.idx()]
                && target.key.layer == layer
            {
                *is_expected = false;
            }
        }
    }

    fn settle_all(&mut self, settled: Vec<Target>) {
        for target in settled {
            let entry = &mut self.entries[target.ordinal.idx()];
            if let Entry::Resident { is_expected, .. } = entry
                && mem::take(is_expected)
                && let Some(slots) = &mut self.slots
            {
                slots.policy.inserted(target.ordinal);
            }
        }
    }

    /// The experts that the last token used in a layer; empty if none are recorded.
    pub(crate) fn predicted(&self, layer: LayerIdx) -> Vec<ExpertId> {
        self.predictor.predicted(layer).map_or_else(Vec::new, <[ExpertId]>::to_vec)
    }

    /// Compares a layer's routing with its prediction, counts the result, and keeps the routing as
    /// the next prediction. A layer without any prediction is counted only if `is_predicting`.
    pub(crate) fn record(&mut self, layer: LayerIdx, routed: &[ExpertId], is_predicting: bool) {
        let is_counted = is_predicting || self.predictor.is_covered(layer);
        let outcome = self.predictor.record(layer, routed);
        if is_counted {
            self.counts.prefetch_hits += outcome.hits;
            self.counts.prefetch_misses += outcome.misses;
            self.counts.predictions += outcome.n_predicted;
            self.counts.predictions_correct += outcome.n_correct;
        }
    }

    pub(crate) fn forget_predictions(&mut self) {
        self.queue.cancel_prefetches();
        let expected = mem::take(&mut self.expected);
        self.settle_all(expected);
        self.predictor.forget();
    }

    /// Queues reads into free slots, in the given order, that start only while no other read is in
    /// progress.
    pub(crate) fn warm_up(&mut self, hottest_first: impl Iterator<Item = Target>) {
        self.queue.warm(hottest_first);
    }

    /// The next read that no request waits for, if one may start now.
    pub(super) fn start_ahead(&mut self) -> Option<Job> {
        while let Some(request) = self.queue.next_prefetch() {
            if self.is_absent(request.target) {
                let buf = self.spare()?;
                self.queue.drop_prefetch();
                self.counts.prefetch_reads += 1;
                return Some(self.begin_ahead(request.target, buf, Priority::Prefetch));
            }
            self.queue.drop_prefetch();
        }
        while let Some(target) = self.queue.next_warm() {
            if self.is_absent(target) {
                let Some(buf) = self.slots.as_mut().and_then(Slots::take) else {
                    self.queue.stop_warming();
                    return None;
                };
                self.queue.drop_warm();
                return Some(self.begin_ahead(target, Some(buf), Priority::WarmUp));
            }
            self.queue.drop_warm();
        }
        None
    }

    fn begin_ahead(&mut self, target: Target, buf: Option<HostBuf>, priority: Priority) -> Job {
        let is_prefetch = priority == Priority::Prefetch;
        self.entries[target.ordinal.idx()] = Entry::Coming {
            waiters: Vec::new(),
            starter: None,
            is_predicted: is_prefetch,
            is_expected: is_prefetch,
        };
        self.reading_ahead.push(target);
        self.queue.begin(priority);
        Job { target, buf, priority }
    }

    fn is_absent(&self, target: Target) -> bool {
        matches!(self.entries[target.ordinal.idx()], Entry::Absent)
    }

    /// Memory for a predicted record; `Some(None)` when files are mapped. `None` if a request waits
    /// for a slot, or if too few slots would be left for the next request.
    fn spare(&mut self) -> Option<Option<HostBuf>> {
        let n_slots = self.slots.as_ref().map_or(usize::MAX, Slots::n_slots);
        let n_taken = self.queue.n_ahead_reading() + self.expected.len() + self.n_reserved;
        if n_taken >= n_slots || self.requests.values().any(|request| !request.unissued.is_empty())
        {
            return None;
        }
        self.acquire_slot(Priority::Prefetch)
    }

    /// Removes and returns the expected expert that is the least likely to be requested. For a
    /// request that can evict no other expert.
    pub(super) fn evict_prefetched(
        &mut self,
        may_leave: impl Fn(Ordinal) -> bool,
    ) -> Option<Ordinal> {
        let at = self.expected.iter().rposition(|target| may_leave(target.ordinal))?;
        Some(self.expected.remove(at).ordinal)
    }
}
