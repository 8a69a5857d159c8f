//! What the store reads before it is asked, and what it learns for that.

use std::time::Duration;

use moeflux_core::{ExpertId, ExpertKey, LayerIdx};

use crate::plan::Target;
use crate::queue::Confidence;
use crate::tuner::PrefetchTrial;
use crate::{ExpertStore, IoMode, Prefetch};

impl ExpertStore {
    /// Wishes for experts that the next rows will probably be routed to, the
    /// likeliest first, in place of earlier wishes for that layer. They are read
    /// one at a time, only while nobody waits for a read, never take a slot that
    /// a request needs, and are cancelled if they have not started when a
    /// request has to read.
    ///
    /// # Panics
    /// If the layer or one of the experts does not exist.
    pub fn prefetch(&self, layer: LayerIdx, experts: &[ExpertId]) {
        self.wish(layer, experts, Confidence::Likely);
    }

    /// As [`ExpertStore::prefetch`], several at a time: many rows were looked at,
    /// so that most of these will be wanted by some.
    ///
    /// # Panics
    /// If the layer or one of the experts does not exist.
    pub fn prefetch_many(&self, layer: LayerIdx, experts: &[ExpertId]) {
        self.wish(layer, experts, Confidence::Certain);
    }

    /// As [`ExpertStore::prefetch_many`], for all experts of a layer in the order
    /// of their files.
    ///
    /// # Panics
    /// If the layer does not exist.
    pub fn prefetch_all(&self, layer: LayerIdx) {
        let n_experts = self.shared.reader.plan.layer(layer).n_experts;
        let all: Vec<ExpertId> = (0u16..).take(n_experts).map(ExpertId).collect();
        self.wish(layer, &all, Confidence::Certain);
    }

    fn wish(&self, layer: LayerIdx, experts: &[ExpertId], confidence: Confidence) {
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

    /// Whether it is worth predicting what a layer's router will choose for the
    /// next rows.
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

    /// Whether reads ahead of what many rows will want are welcome.
    pub fn reads_ahead(&self) -> bool {
        matches!(self.options.prefetch, Prefetch::Lookahead | Prefetch::Auto)
    }

    /// Says that a layer's computation begins: where the last token predicts,
    /// wishes for the experts that it used there.
    pub fn begin_layer(&self, layer: LayerIdx) {
        if self.options.prefetch != Prefetch::LastToken {
            return;
        }
        let likely = self.shared.lock().predicted(layer);
        if !likely.is_empty() {
            self.prefetch(layer, &likely);
        }
    }

    /// Says which experts the last token was routed to in a layer. Each counts
    /// as a prefetch hit if it was among those that were predicted since the
    /// layer's last call, whatever its place among them, and reading it has not
    /// failed; else as a miss.
    pub fn record(&self, layer: LayerIdx, experts_of_last_token: &[ExpertId]) {
        let is_predicting = self.options.prefetch == Prefetch::LastToken;
        if !self.shared.hints.take_predicted(layer) && !is_predicting {
            return;
        }
        self.shared.lock().record(layer, experts_of_last_token, is_predicting);
    }

    /// Drops all predictions and the predicted reads that have not started.
    pub fn forget_predictions(&self) {
        self.shared.hints.forget();
        self.shared.lock().forget_predictions();
    }

    /// Says that a step has ended that evaluated one token in so long a time.
    pub fn end_decode_step(&self, time: Duration) {
        if self.options.prefetch == Prefetch::Auto {
            self.shared.lock().end_decode_step(time);
        }
    }

    /// What [`Prefetch::Auto`] last found, if it has finished a trial.
    pub fn trial(&self) -> Option<PrefetchTrial> {
        let is_auto = self.options.prefetch == Prefetch::Auto;
        is_auto.then(|| self.shared.lock().tuner().last()).flatten()
    }

    /// What the policy has learned of each expert, layer by layer; nothing
    /// where it learns nothing that lasts.
    pub fn learned(&self) -> Option<Vec<f32>> {
        self.shared.lock().policy()?.weights()
    }

    /// Takes up what [`ExpertStore::learned`] gave in an earlier life: the
    /// policy begins with it, and the best experts are read into free slots
    /// while the drive is idle. False if that does not fit this bank.
    pub fn restore(&self, learned: &[f32]) -> bool {
        let plan = &self.shared.reader.plan;
        if learned.len() != plan.n_experts() || self.options.mode == IoMode::Mmap {
            return false;
        }
        let layers = (0u16..).zip(&plan.bank().layers);
        let keys = layers.flat_map(|(layer, bank)| {
            let n_experts = bank.as_ref().map_or(0, |it| it.n_experts);
            let key = move |expert| ExpertKey { layer: LayerIdx(layer), expert };
            (0u16..).take(n_experts).map(ExpertId).map(key)
        });
        let targets = keys.map(|key| plan.target(key));
        let weight = |it: &Target| learned[it.ordinal.idx()];
        let is_known = |it: &Target| weight(it) > 0.0 && !self.is_missing(it.key.layer);
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
