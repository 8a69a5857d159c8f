//! Reads ahead of requests, and the predictions for them.

use std::time::Duration;

use moeflux_core::{ExpertId, ExpertKey, LayerIdx};

use crate::plan::Target;
use crate::queue::Confidence;
use crate::tuner::PrefetchTrial;
use crate::{ExpertStore, IoMode, Prefetch};

impl ExpertStore {
    /// Queues reads of experts that the next rows will probably be routed to, the likeliest first.
    /// They replace earlier prefetches of the layer. They are read one at a time, and only while no
    /// request waits for a read. They never take a slot that a request needs. Those that have not
    /// started when a request has to read are cancelled.
    ///
    /// # Panics
    /// If the layer or one of the experts does not exist.
    pub fn prefetch(&self, layer: LayerIdx, experts: &[ExpertId]) {
        self.queue_prefetches(layer, experts, Confidence::Likely);
    }

    /// Queues prefetches as [`ExpertStore::prefetch`] does, but reads several at a time. For
    /// predictions from many rows, of which most experts will be requested.
    ///
    /// # Panics
    /// If the layer or one of the experts does not exist.
    pub fn prefetch_many(&self, layer: LayerIdx, experts: &[ExpertId]) {
        self.queue_prefetches(layer, experts, Confidence::Certain);
    }

    /// Prefetches all experts of a layer in the order of their ids, as
    /// [`ExpertStore::prefetch_many`] does.
    ///
    /// # Panics
    /// If the layer does not exist.
    pub fn prefetch_all(&self, layer: LayerIdx) {
        let n_experts = self.shared.reader.plan.layer(layer).n_experts;
        let all: Vec<ExpertId> = (0u16..).take(n_experts).map(ExpertId).collect();
        self.queue_prefetches(layer, &all, Confidence::Certain);
    }

    fn queue_prefetches(&self, layer: LayerIdx, experts: &[ExpertId], confidence: Confidence) {
        if self.is_missing(layer) || self.shared.reader.check_maps(layer).is_err() {
            return;
        }
        let plan = &self.shared.reader.plan;
        let likely = experts.iter().map(|&expert| plan.target(ExpertKey { layer, expert }));
        let likely: Vec<Target> = likely.collect();
        if confidence == Confidence::Likely {
            self.shared.hints.set_predicted(layer);
        }
        if self.shared.lock().prefetch(layer, &likely, confidence) {
            self.shared.work.notify_all();
        }
    }

    /// Whether it is worth predicting what a layer's router will choose for the next `n_rows` rows.
    pub fn wants_lookahead(&self, layer: LayerIdx, n_rows: usize) -> bool {
        let is_on = match self.options.prefetch {
            Prefetch::Off | Prefetch::LastToken => return false,
            Prefetch::Lookahead => true,
            Prefetch::Auto => n_rows > 1,
        };
        if self.is_missing(layer) || !self.shared.hints.is_worthwhile(layer) {
            return false;
        }
        is_on || self.shared.lock().tuner().is_on()
    }

    /// Whether prefetches for steps of many rows are on.
    pub fn reads_ahead(&self) -> bool {
        matches!(self.options.prefetch, Prefetch::Lookahead | Prefetch::Auto)
    }

    /// Marks the beginning of a layer's computation. With [`Prefetch::LastToken`], prefetches the
    /// experts that the last token used in the layer.
    pub fn begin_layer(&self, layer: LayerIdx) {
        if self.options.prefetch != Prefetch::LastToken {
            return;
        }
        let likely = self.shared.lock().predicted(layer);
        if !likely.is_empty() {
            self.prefetch(layer, &likely);
        }
    }

    /// Records which experts the last token was routed to in a layer. An expert counts as a
    /// prefetch hit if it was predicted since the layer's last call, at any rank, and its read has
    /// not failed. Else it counts as a miss.
    pub fn record(&self, layer: LayerIdx, experts_of_last_token: &[ExpertId]) {
        let is_predicting = self.options.prefetch == Prefetch::LastToken;
        if !self.shared.hints.take_predicted(layer) && !is_predicting {
            return;
        }
        self.shared.lock().record(layer, experts_of_last_token, is_predicting);
    }

    /// Drops all predictions, and cancels the predicted reads that have not started.
    pub fn forget_predictions(&self) {
        self.shared.hints.forget();
        self.shared.lock().forget_predictions();
    }

    /// Records the duration of a step that evaluated one token.
    pub fn end_decode_step(&self, time: Duration) {
        if self.options.prefetch == Prefetch::Auto {
            self.shared.lock().end_decode_step(time);
        }
    }

    /// The result of the last trial of [`Prefetch::Auto`]; `None` before the first, and for other
    /// choices.
    pub fn trial(&self) -> Option<PrefetchTrial> {
        let is_auto = self.options.prefetch == Prefetch::Auto;
        is_auto.then(|| self.shared.lock().tuner().last()).flatten()
    }

    /// The weight that the policy gives to each expert, layer by layer; `None` if the policy has
    /// nothing to save or files are mapped.
    pub fn learned(&self) -> Option<Vec<f32>> {
        self.shared.lock().policy()?.weights()
    }

    /// Restores weights that [`ExpertStore::learned`] returned in an earlier process. The policy
    /// begins with them, and the experts with the highest weights are read into free slots while
    /// the drive is idle. Returns false if the number of weights does not fit this bank, or if
    /// files are mapped.
    pub fn restore(&self, learned: &[f32]) -> bool {
        let plan = &self.shared.reader.plan;
        if learned.len() != plan.n_experts() || self.options.mode == IoMode::Mmap {
            return false;
        }
        let layers = (0u16..).zip(&plan.bank().layers);
        let keys = layers.flat_map(|(layer, bank)| {
            let n_experts = bank.as_ref().map_or(0, |bank| bank.n_experts);
            let key = move |expert| ExpertKey { layer: LayerIdx(layer), expert };
            (0u16..).take(n_experts).map(ExpertId).map(key)
        });
        let targets = keys.map(|key| plan.target(key));
        let weight = |target: &Target| learned[target.ordinal.idx()];
        let is_known = |target: &Target| weight(target) > 0.0 && !self.is_missing(target.key.layer);
        let mut hottest: Vec<Target> = targets.filter(is_known).collect();
        hottest.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let mut cache = self.shared.lock();
        if let Some(policy) = cache.policy() {
            policy.restore(learned);
        }
        cache.warm_up(hottest.into_iter());
        self.shared.work.notify_all();
        true
    }
}
