//! Reads of what may be wanted, at nobody's expense.

use std::sync::Arc;

use moeflux_core::{ExpertId, HostBuf, LayerIdx};

use super::{Desk, Entry};
use crate::plan::Target;
use crate::queue::Urgency;
use crate::slots::Slots;

impl Desk {
    /// Starts reading experts that may be wanted, where that takes nothing from
    /// requests. True if there were any.
    pub(crate) fn prefetch(&mut self, layer: LayerIdx, likely: &[Target]) -> bool {
        // Resident ones are held meanwhile, lest they make room for each other.
        let mut held = Vec::new();
        let mut absent = Vec::new();
        let mut covered: Vec<ExpertId> = Vec::with_capacity(likely.len());
        for &target in likely {
            match &self.entries[target.ordinal.idx()] {
                Entry::Absent => {
                    absent.push(target);
                    continue;
                }
                Entry::Coming { .. } => {}
                Entry::Resident { expert, .. } => held.push(Arc::clone(expert)),
            }
            covered.push(target.key.expert);
        }
        let mut is_any = false;
        for target in absent {
            let Some(buf) = self.spare() else { break };
            self.start(target, buf, Urgency::Prefetch, Vec::new());
            covered.push(target.key.expert);
            is_any = true;
        }
        self.predictor.cover(layer, covered.into_iter());
        is_any
    }

    /// The experts that the last token used in a layer.
    pub(crate) fn predicted(&self, layer: LayerIdx) -> Vec<ExpertId> {
        self.predictor.predicted(layer).map_or_else(Vec::new, <[ExpertId]>::to_vec)
    }

    /// Compares a layer's routing with its prediction, and learns from it.
    /// Without any prediction nothing is counted unless `is_predicting`.
    pub(crate) fn record(&mut self, layer: LayerIdx, routed: &[ExpertId], is_predicting: bool) {
        let is_counted = is_predicting || self.predictor.is_covered(layer);
        let outcome = self.predictor.record(layer, routed);
        if is_counted {
            self.counts.prefetch_hits += outcome.hits;
            self.counts.prefetch_misses += outcome.misses;
        }
    }

    pub(crate) fn forget_predictions(&mut self) {
        self.cancel_prefetches();
        self.predictor.forget();
    }

    /// As [`Desk::vacate`], for a predicted read: none if a request goes short
    /// or the next one would.
    fn spare(&mut self) -> Option<Option<HostBuf>> {
        let n_slots = self.slots.as_ref().map_or(usize::MAX, Slots::n_slots);
        let would_be_short = self.queue.n_prefetches() + self.n_reserved >= n_slots;
        if would_be_short || self.requests.values().any(|it| !it.unissued.is_empty()) {
            return None;
        }
        self.vacate(Urgency::Prefetch)
    }

    pub(super) fn cancel_prefetches(&mut self) {
        while let Some(job) = self.queue.cancel_prefetch() {
            self.withdraw(job);
        }
    }
}
