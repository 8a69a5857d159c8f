//! What one step at a time may use, and how steps run.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use moeflux_backend::{
    Backend, Cols, DeviceError, HiddenRows, LogitsExtras, PrerecordedStep, Sequence, Span,
    StateSnapshot, TokenLogit, Weight,
};
use moeflux_core::{LayerIdx, OutOfMemory, TokenId, catch_out_of_memory};
use moeflux_model::{ExpertObserver, Model, MoeLists, RoutingObserver, Step};
use moeflux_store::ExpertStore;

use crate::error::EngineError;
use crate::expert_stats::ExpertStats;
use crate::record::Recorder;
use crate::residency::holds_all;

/// What the model made of the last step's first rows, for who asks for it.
#[derive(Debug, Default)]
pub(super) enum Sight {
    #[default]
    Unwanted,
    /// So many rows are read back with the next answer of the head.
    Wanted(usize),
    /// So many were.
    Seen(usize, Vec<f32>),
}

/// What one step at a time may use. Whoever is not about to run a step reaches the
/// device through [`Core::backend`].
pub(crate) struct Core {
    /// Waits, maybe, for the tokens of `next`.
    pub(super) backend: Box<dyn Backend>,
    pub(crate) experts: Arc<ExpertStore>,
    /// Whether the device needs all experts to stay in the cache.
    pub(super) keeps_from_cache: bool,
    pub(super) model: Box<dyn Model>,
    pub(super) recorder: Option<Recorder>,
    pub(super) expert_stats: Option<ExpertStats>,
    /// Sees what routed experts are given, while a model is calibrated.
    pub(crate) observer: Option<Box<dyn ExpertObserver>>,
    /// Kept from step to step.
    pub(super) lists: MoeLists,
    /// The layers with routed experts.
    pub(super) moe_layers: Vec<LayerIdx>,
    /// What the last step continued.
    pub(super) last: Vec<Span>,
    /// Whether tokens were foreseen since the last step, and before that.
    pub(super) has_foreseen: bool,
    pub(super) is_foreseeing: bool,
    /// So many rows of the last step are read back with the next answer of the head; what
    /// was read, if it is not taken yet.
    pub(super) sight: Sight,
    /// What the step continues that was offered to be recorded ahead.
    pub(super) next: Vec<Span>,
    /// The allocation that failed inside a step: what the step left of the device's buffers and
    /// caches is not known, so that no other follows.
    pub(super) out_of_memory: Option<OutOfMemory>,
    /// Steps, and copies of caches, that pretend to find no memory.
    #[cfg(test)]
    pub(crate) n_refused: usize,
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(stats) = &mut self.expert_stats {
            stats.save(&self.experts);
        }
    }
}

impl Core {
    /// The device, which forgets the step that it may have recorded ahead.
    pub(crate) fn backend(&mut self) -> &mut dyn Backend {
        self.next.clear();
        if let Some(recording) = self.backend.recording() {
            recording.discard_prerecorded();
        }
        self.backend.as_mut()
    }

    /// Runs the layers over tokens that continue a sequence at `position`.
    pub(crate) fn step(
        &mut self,
        sequence: Sequence,
        position: usize,
        tokens: &[TokenId],
    ) -> Result<(), EngineError> {
        self.step_spans(&[Span { sequence, rows: 0..tokens.len(), position }], tokens)
    }

    /// The same, and keeps some recurrent states on the way.
    pub(crate) fn step_keeping(
        &mut self,
        spans: &[Span],
        tokens: &[TokenId],
        keep: &[StateSnapshot],
    ) -> Result<(), EngineError> {
        if keep.is_empty() {
            return self.step_spans(spans, tokens);
        }
        self.backend().snapshot_states(keep);
        let outcome = self.step_spans(spans, tokens);
        self.backend().snapshot_states(&[]);
        outcome
    }

    /// Runs the layers over tokens of different sequences, each in one span.
    pub(crate) fn step_spans(
        &mut self,
        spans: &[Span],
        tokens: &[TokenId],
    ) -> Result<(), EngineError> {
        #[cfg(test)]
        self.refuse()?;
        if let Some(err) = self.out_of_memory {
            return Err(err.into());
        }
        self.leave_the_cache()?;
        let start = Instant::now();
        self.forget_last();
        self.is_foreseeing = mem::take(&mut self.has_foreseen);
        let outcome =
            if self.replay_step(spans, tokens) { Ok(()) } else { self.forward(spans, tokens) };
        if outcome.is_ok() {
            self.last.extend_from_slice(spans);
        } else {
            // Whatever else the device has to say is no affair of the next step.
            if self.out_of_memory.is_none() {
                let _ = self.backend.read(self.model.output().0.buf, 0);
            }
        }
        if tokens.len() == 1 && outcome.is_ok() {
            self.experts.end_decode_step(start.elapsed());
        }
        if let Some(stats) = &mut self.expert_stats {
            stats.tick(&self.experts);
        }
        match &mut self.recorder {
            Some(recorder) if outcome.is_ok() => recorder.end_step(tokens.len()),
            Some(recorder) => {
                recorder.discard();
                outcome
            }
            None => outcome,
        }
    }

    /// Fails as often as it is to.
    #[cfg(test)]
    pub(crate) fn refuse(&mut self) -> Result<(), EngineError> {
        let Some(n_left) = self.n_refused.checked_sub(1) else { return Ok(()) };
        self.n_refused = n_left;
        Err(DeviceError::OutOfMemory { bytes: 1 }.into())
    }

    fn forward(&mut self, spans: &[Span], tokens: &[TokenId]) -> Result<(), EngineError> {
        let Core { backend, experts, model, recorder, observer, lists, .. } = self;
        let mut step = Step {
            backend: backend.as_mut(),
            experts,
            tokens,
            spans,
            recorder: recorder.as_mut().map(|it| it as &mut dyn RoutingObserver),
            observer: observer
                .as_mut()
                .map(|observer| observer.as_mut() as &mut dyn ExpertObserver),
            lists,
        };
        let outcome = catch_out_of_memory(|| model.forward(&mut step));
        Ok(outcome.map_err(|err| *self.out_of_memory.insert(err))??)
    }

    /// What the model made of the first rows of the last step, as multi-token prediction
    /// wants it. Who has [said](Core::will_see) so before does not wait for the device once more.
    pub(crate) fn hidden(&mut self, rows: usize) -> Result<Vec<f32>, EngineError> {
        if let Sight::Seen(n, seen) = mem::take(&mut self.sight)
            && n == rows
        {
            return Ok(seen);
        }
        let buf = self.model.output().0.buf;
        Ok(self.backend().read(buf, rows)?)
    }

    /// What was said of the last step is of no use to anybody.
    fn forget_last(&mut self) {
        self.last.clear();
        self.sight = Sight::Unwanted;
    }

    /// Somebody is going to ask for the [`hidden`](Core::hidden) of so many rows of the last
    /// step, behind what the head says of it.
    pub(crate) fn will_see(&mut self, rows: usize) {
        self.sight = Sight::Wanted(rows);
    }

    /// Runs multi-token prediction over tokens that follow what the model made of the positions
    /// `before`, a row each. If its output is wanted, [`logits`](Core::logits),
    /// [`leaders`](Core::leaders) and [`hidden`](Core::hidden) are those of its rows then.
    pub(crate) fn foresee(
        &mut self,
        spans: &[Span],
        tokens: &[TokenId],
        before: &[f32],
        wants_output: bool,
    ) -> Result<(), EngineError> {
        self.backend();
        self.forget_last();
        self.has_foreseen |= wants_output;
        let Core { backend, experts, model, lists, .. } = self;
        let (recorder, observer) = (None, None);
        let backend = backend.as_mut();
        let mut step = Step { backend, experts, tokens, spans, recorder, observer, lists };
        let outcome = model.foresee(&mut step, before, wants_output);
        if outcome.is_err() {
            // Whatever else the device has to say is no affair of the next step.
            let _ = self.backend.read(self.model.output().0.buf, 0);
        }
        Ok(outcome?)
    }

    /// Runs the step that was recorded ahead, if it is this one.
    fn replay_step(&mut self, spans: &[Span], tokens: &[TokenId]) -> bool {
        let is_next = !spans.is_empty() && self.next == spans && self.observer.is_none();
        if is_next
            && let Some(recording) = self.backend.recording()
            && recording.replay_step(tokens)
        {
            self.next.clear();
            return true;
        }
        self.backend();
        false
    }

    /// Has the device do without experts of the cache where this has to shrink, which
    /// then does.
    fn leave_the_cache(&mut self) -> Result<(), EngineError> {
        if !self.keeps_from_cache || holds_all(&self.experts) {
            return Ok(());
        }
        self.keeps_from_cache = false;
        if let Some(residency) = self.backend().residency_mut() {
            residency.unload_all();
            residency.release_experts(0);
        }
        let n_slots = self.experts.stats().n_slots;
        Ok(self.experts.resize((n_slots * self.experts.slot_bytes()) as u64)?)
    }

    /// Logits of some rows of the last step, `vocab` floats each.
    ///
    /// # Errors
    /// Where the device or an expert fails, and where a logit is NaN or positive infinity.
    pub(crate) fn logits(&mut self, rows: &[usize]) -> Result<Vec<f32>, EngineError> {
        let logits =
            self.ask(rows, |backend, (x, head), extras| backend.logits(rows, x, head, extras))?;
        let is_odd = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
        // Without branches, which compilers vectorise.
        if logits.iter().fold(false, |any, logit| any | is_odd(logit)) {
            let idx = logits.iter().position(is_odd).unwrap_or(0);
            let vocab = logits.len() / rows.len().max(1);
            let what = self.name_logit(rows[idx / vocab], idx % vocab);
            return Err(EngineError::NotFinite { what, value: logits[idx] });
        }
        Ok(logits)
    }

    /// What messages call a logit of a row of the last step.
    fn name_logit(&self, row: usize, token: usize) -> String {
        let span = self.last.iter().find(|span| span.rows.contains(&row));
        match span {
            Some(span) => {
                let position = span.position + row - span.rows.start;
                format!("the logit of token {token} at position {position}")
            }
            None => format!("the logit of token {token}"),
        }
    }

    /// The `n` likeliest tokens to follow each of some rows of the last step, where the
    /// device finds them without giving all logits away.
    pub(crate) fn leaders(
        &mut self,
        rows: &[usize],
        n: usize,
    ) -> Result<Option<Vec<Vec<TokenLogit>>>, EngineError> {
        self.ask(rows, |backend, (x, head), extras| backend.top_logits(rows, n, x, head, extras))
    }

    /// Asks for what the head says of rows; a device that needs nobody to choose
    /// experts may record what follows meanwhile.
    fn ask<T>(
        &mut self,
        rows: &[usize],
        ask: impl FnOnce(&mut dyn Backend, (Cols, Weight), LogitsExtras<'_>) -> Result<T, DeviceError>,
    ) -> Result<T, EngineError> {
        self.backend();
        self.next = self.following(rows);
        let Core { backend, experts, model, lists, next, sight, .. } = self;
        let tokens = vec![TokenId(0); next.len()];
        let mut record = |backend: &mut dyn Backend| {
            let (recorder, observer) = (None, None);
            let step = &mut Step {
                backend,
                experts,
                tokens: &tokens,
                spans: next,
                recorder,
                observer,
                lists,
            };
            model.forward(step).is_ok()
        };
        let next_step = PrerecordedStep { spans: next, record: &mut record };
        let next_step = Some(next_step).filter(|step| !step.spans.is_empty());
        let mut seen = Vec::new();
        let hidden_rows = match sight {
            Sight::Wanted(n) => Some(HiddenRows { n: *n, into: &mut seen }),
            Sight::Unwanted | Sight::Seen(..) => None,
        };
        let extras = LogitsExtras { hidden_rows, next_step };
        let answer = ask(backend.as_mut(), model.output(), extras);
        // Who has no leaders to give may have read no rows either.
        if let (Ok(_), Sight::Wanted(n)) = (&answer, &*sight)
            && !seen.is_empty()
        {
            *sight = Sight::Seen(*n, seen);
        }
        if answer.is_err() {
            self.backend();
        }
        Ok(answer?)
    }

    /// What the next step continues if a token follows each of these rows, where they
    /// end all spans of the last one and nobody has to choose experts; else nothing.
    fn following(&self, rows: &[usize]) -> Vec<Span> {
        let ends = self.last.iter().map(|it| it.rows.end - 1);
        let is_seen = self.recorder.is_some() || self.observer.is_some();
        if is_seen
            || self.is_foreseeing
            || !ends.eq(rows.iter().copied())
            || !self.holds_all_layers(rows.len())
        {
            return Vec::new();
        }
        let spans = self.last.iter().enumerate().map(|(i, it)| Span {
            sequence: it.sequence,
            rows: i..i + 1,
            position: it.position + it.rows.len(),
        });
        spans.collect()
    }

    /// Whether the device chooses and has what it chooses, in all layers.
    fn holds_all_layers(&self, rows: usize) -> bool {
        let Some(residency) = self.backend.residency() else { return false };
        let mut layers = self.moe_layers.iter();
        !self.moe_layers.is_empty() && layers.all(|layer| residency.is_layer_resident(*layer, rows))
    }

    /// Forgets which experts the last token used.
    pub(crate) fn forget_predictions(&self) {
        self.experts.forget_predictions();
    }
}
