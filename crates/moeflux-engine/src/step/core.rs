//! The state that one step at a time may use, and how steps run.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use moeflux_backend::cpu::{Isa, soft_cap};
use moeflux_backend::{
    Backend, Cols, DeviceError, HiddenRows, LogitsExtras, PrerecordedStep, RotaryPositions, Span,
    TokenLogit, Weight,
};
use moeflux_core::{Expert, ExpertId, LayerIdx, OutOfMemory, TokenId, catch_out_of_memory};
use moeflux_model::{ExpertObserver, Model, MoeLists, NoRows, RoutingObserver, Step};
use moeflux_store::ExpertStore;

use super::{
    Batch, LOGIT_ROWS, LogitRows, Logits, MtpBatch, Outputs, Pipeline, RowLogits, RowSink,
    StepOutput,
};
use crate::error::EngineError;
use crate::expert_stats::ExpertStats;
use crate::record::Recorder;
use crate::residency::{ExpertPart, holds_all};
use crate::rows::{RequestedRows, StepRows, TableRows};

/// The state that one step at a time may use, behind the lock of an engine. All but steps reach
/// the device through [`Core::backend`].
pub(crate) struct Core {
    /// May hold the recorded step of `pipeline`.
    backend: Box<dyn Backend>,
    pub(crate) experts: Arc<ExpertStore>,
    /// Where the model has tables whose rows are read one by one.
    pub(crate) rows: Option<Arc<TableRows>>,
    /// Steps that were begun.
    pub(crate) n_steps: u64,
    /// Whether the device needs all experts to stay in the cache.
    pub(crate) keeps_from_cache: bool,
    model: Box<dyn Model>,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) expert_stats: Option<ExpertStats>,
    /// Receives the inputs of routed experts while a model is calibrated.
    pub(crate) observer: Option<Box<dyn ExpertObserver>>,
    /// Buffers that steps use again.
    lists: MoeLists,
    /// The layers with routed experts.
    moe_layers: Vec<LayerIdx>,
    /// The state of the device between two steps.
    pipeline: Pipeline,
    /// The allocation that failed inside a step. The contents of the device's buffers and caches
    /// are not known after that, so that all further steps are refused.
    out_of_memory: Option<OutOfMemory>,
    /// How many of the next steps and copies of caches fail as if memory were missing.
    #[cfg(test)]
    pub(crate) n_refused: usize,
    /// Whether all fail as if the device were lost.
    #[cfg(test)]
    pub(crate) is_lost: bool,
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(stats) = &mut self.expert_stats {
            stats.save(&self.experts);
        }
    }
}

impl Core {
    /// A device with nothing to do, whose model has routed experts in `moe_layers`.
    pub(crate) fn new(
        backend: Box<dyn Backend>,
        experts: Arc<ExpertStore>,
        model: Box<dyn Model>,
        moe_layers: Vec<LayerIdx>,
    ) -> Core {
        Core {
            backend,
            experts,
            rows: None,
            n_steps: 0,
            keeps_from_cache: false,
            model,
            recorder: None,
            expert_stats: None,
            observer: None,
            lists: MoeLists::default(),
            moe_layers,
            pipeline: Pipeline::default(),
            out_of_memory: None,
            #[cfg(test)]
            n_refused: 0,
            #[cfg(test)]
            is_lost: false,
        }
    }

    /// The device, after it has discarded a prerecorded step.
    pub(crate) fn backend(&mut self) -> &mut dyn Backend {
        if let Pipeline::Prerecorded(_) = self.pipeline {
            self.pipeline = Pipeline::Idle;
        }
        if let Some(recording) = self.backend.recording() {
            recording.discard_prerecorded();
        }
        self.backend.as_mut()
    }

    /// Runs the layers over a batch and reads its outputs back. While the device computes the
    /// logits of a decode step, the step that is expected to follow is recorded.
    ///
    /// # Errors
    /// Where the device or an expert fails, and where a logit is NaN or positive infinity. The
    /// caches of some layers may hold the batch then.
    pub(crate) fn step(&mut self, batch: &Batch<'_>) -> Result<StepOutput, EngineError> {
        self.run(batch)?.output(&batch.outputs)
    }

    /// As [`Core::step`], but passes the logits of every row to `sink` instead of collecting
    /// them. Returns the hidden states.
    ///
    /// # Errors
    /// Those of [`Core::step`] and of `sink`.
    pub(crate) fn step_all_logits(
        &mut self,
        batch: &Batch<'_>,
        sink: &mut RowSink<'_>,
    ) -> Result<Vec<f32>, EngineError> {
        let mut readback = self.run(batch)?;
        let rows: Vec<usize> = (0..batch.tokens.len()).collect();
        for rows in rows.chunks(LOGIT_ROWS) {
            let logits = readback.logits(rows)?;
            for (row, logits) in rows.iter().zip(logits.chunks_exact(logits.len() / rows.len())) {
                sink(*row, logits)?;
            }
        }
        readback.hidden()
    }

    /// Runs the multi-token prediction layer over tokens and the hidden states of the positions
    /// before them. The logits and hidden states that it reads back are those of this layer.
    ///
    /// # Errors
    /// As [`Core::step`].
    pub(crate) fn mtp_step(&mut self, batch: &MtpBatch<'_>) -> Result<StepOutput, EngineError> {
        self.backend();
        let wants_output = !batch.outputs.rows.is_empty();
        if wants_output {
            self.pipeline = Pipeline::Drafted;
        }
        let Core { backend, experts, model, lists, .. } = self;
        let (recorder, observer) = (None, None);
        let (backend, tokens, spans) = (backend.as_mut(), batch.tokens, batch.spans);
        let (rows, embedded) = (&mut NoRows, &[][..]);
        let mut step =
            Step { backend, experts, tokens, embedded, spans, recorder, observer, rows, lists };
        let outcome = model.forward_mtp(&mut step, batch.hidden, wants_output);
        if outcome.is_err() {
            self.drain_errors();
        }
        outcome?;
        let hidden = HiddenStates::Wanted(batch.outputs.hidden_rows);
        Readback { core: self, spans: &[], may_prerecord: false, hidden }.output(&batch.outputs)
    }

    /// Waits until the device has run all that it was given.
    ///
    /// # Errors
    /// Those of the device since the last read-back.
    pub(crate) fn synchronize(&mut self) -> Result<(), EngineError> {
        let buf = self.model.output().0.buf;
        self.backend().read(buf, 0)?;
        Ok(())
    }

    /// Forgets which experts the last token used.
    pub(crate) fn forget_predictions(&self) {
        self.experts.forget_predictions();
    }

    /// Fails while [`n_refused`](Core::n_refused) is not used up, and while the device
    /// [is lost](Core::is_lost).
    #[cfg(test)]
    pub(crate) fn refuse(&mut self) -> Result<(), EngineError> {
        if self.is_lost {
            return Err(DeviceError::Lost { reason: String::from("a test says so") }.into());
        }
        let Some(n_left) = self.n_refused.checked_sub(1) else { return Ok(()) };
        self.n_refused = n_left;
        Err(DeviceError::OutOfMemory { bytes: 1 }.into())
    }

    /// Runs the layers over a batch.
    fn run<'a>(&'a mut self, batch: &Batch<'a>) -> Result<Readback<'a>, EngineError> {
        #[cfg(test)]
        self.refuse()?;
        if let Some(err) = self.out_of_memory {
            return Err(err.into());
        }
        self.n_steps += 1;
        self.release_host_experts()?;
        let _requested = self.request_rows(batch);
        let start = Instant::now();
        let may_prerecord = self.pipeline != Pipeline::Drafted;
        let outcome = self.replay_or_forward(batch);
        // Failures that the device has yet to report belong to this step, not to the next.
        if outcome.is_err() && self.out_of_memory.is_none() {
            self.drain_errors();
        }
        if batch.tokens.len() == 1 && outcome.is_ok() {
            self.experts.end_decode_step(start.elapsed());
        }
        if let Some(stats) = &mut self.expert_stats {
            stats.tick(&self.experts);
        }
        match &mut self.recorder {
            Some(recorder) if outcome.is_ok() => recorder.end_step(batch.tokens.len())?,
            Some(recorder) => recorder.discard(),
            None => {}
        }
        outcome?;
        let hidden = HiddenStates::Wanted(batch.outputs.hidden_rows);
        Ok(Readback { core: self, spans: batch.spans, may_prerecord, hidden })
    }

    /// Replays the prerecorded step if it is this one; else discards it and runs the layers.
    fn replay_or_forward(&mut self, batch: &Batch<'_>) -> Result<(), EngineError> {
        let pipeline = mem::take(&mut self.pipeline);
        let is_next = matches!(pipeline, Pipeline::Prerecorded(spans) if spans == batch.spans);
        let may_replay = is_next
            && self.observer.is_none()
            && batch.snapshots.is_empty()
            && batch.embedded.is_empty();
        if may_replay
            && let Some(recording) = self.backend.recording()
            && recording.replay_step(batch.tokens)
        {
            return Ok(());
        }
        if batch.snapshots.is_empty() {
            self.backend();
            return self.forward(batch);
        }
        self.backend().snapshot_states(batch.snapshots);
        let outcome = self.forward(batch);
        self.backend().snapshot_states(&[]);
        outcome
    }

    /// Has the rows of a step read that are not on their way.
    fn request_rows(&self, batch: &Batch<'_>) -> Vec<RequestedRows> {
        let Some(tables) = &self.rows else { return Vec::new() };
        let spans = batch.spans.iter().zip(batch.before);
        spans
            .map(|(span, before)| tables.request(before, &batch.tokens[span.rows.clone()]))
            .collect()
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), EngineError> {
        let Core { backend, experts, model, recorder, observer, lists, .. } = self;
        let Batch { spans, tokens, embedded, before, .. } = *batch;
        let mut rows =
            self.rows.as_deref().map(|tables| StepRows { tables, spans, tokens, before });
        let mut step = Step {
            backend: backend.as_mut(),
            experts,
            tokens,
            embedded,
            spans,
            recorder: recorder.as_mut().map(|recorder| recorder as &mut dyn RoutingObserver),
            observer: observer
                .as_mut()
                .map(|observer| observer.as_mut() as &mut dyn ExpertObserver),
            rows: match &mut rows {
                Some(rows) => rows,
                None => &mut NoRows,
            },
            lists,
        };
        let outcome = catch_out_of_memory(|| model.forward(&mut step));
        Ok(outcome.map_err(|err| *self.out_of_memory.insert(err))??)
    }

    /// Waits for the device and drops the errors that it reports, after a step that has failed.
    fn drain_errors(&mut self) {
        let _ = self.backend.read(self.model.output().0.buf, 0);
    }

    /// Has the device do without the host's copies of experts where the expert cache has to
    /// shrink, and shrinks the cache.
    fn release_host_experts(&mut self) -> Result<(), EngineError> {
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

    /// The experts of a part that the device does not have.
    pub(crate) fn missing_on_device(&self, part: &ExpertPart) -> Vec<ExpertId> {
        let Some(residency) = self.backend.residency() else { return Vec::new() };
        let ids = part.experts.iter().copied();
        ids.filter(|id| !residency.is_resident(part.layer, *id)).collect()
    }

    /// Loads experts for which the device has reserved memory. Where that fails all are unloaded, and
    /// stream from then on.
    ///
    /// # Errors
    /// Where the device has no memory to load them.
    pub(crate) fn load_experts(&mut self, experts: &[Arc<Expert>]) -> Result<(), EngineError> {
        let store = Arc::clone(&self.experts);
        let n_experts = |layer: LayerIdx| {
            let layer = store.bank().layers[layer.idx()].as_ref();
            layer.map_or(0, |layer| layer.n_experts)
        };
        let Some(residency) = self.backend().residency_mut() else { return Ok(()) };
        let are_loaded =
            experts.iter().all(|expert| residency.load(expert, n_experts(expert.key.layer)));
        if !are_loaded {
            residency.unload_all();
        }
        residency.release_experts(0);
        let changes = residency.drain_residency_changes();
        store.set_on_device(changes.iter().map(|change| (change.key, change.is_resident)));
        if let Some(recording) = self.backend.recording() {
            recording.flush();
        }
        if are_loaded {
            return Ok(());
        }
        self.drain_errors();
        let bytes = experts.iter().map(|expert| expert.layout.record_bytes() as u64).sum();
        Err(DeviceError::OutOfMemory { bytes }.into())
    }

    /// Shrinks the cache of experts to the least that it can have, as the device has them all.
    ///
    /// # Errors
    /// None that is known: the cache may always be that small.
    pub(crate) fn end_loading(&self, top_k: usize) -> Result<(), EngineError> {
        Ok(self.experts.resize((top_k * self.experts.slot_bytes()) as u64)?)
    }

    /// Whether the device routes tokens itself and holds all experts of every layer.
    fn holds_all_layers(&self, rows: usize) -> bool {
        let Some(residency) = self.backend.residency() else { return false };
        let mut layers = self.moe_layers.iter();
        !self.moe_layers.is_empty() && layers.all(|layer| residency.is_layer_resident(*layer, rows))
    }
}

/// Top logits after their cap, which may make some of them equal.
fn capped(mut top: Vec<TokenLogit>, cap: f32) -> Vec<TokenLogit> {
    let mut logits: Vec<f32> = top.iter().map(|token| token.logit).collect();
    soft_cap(Isa::detect(), &mut logits, cap);
    for (it, logit) in top.iter_mut().zip(logits) {
        it.logit = logit;
    }
    top.sort_by(TokenLogit::order);
    top
}

/// Hidden states that a step reads back.
enum HiddenStates {
    /// This many rows are read back together with the first logits.
    Wanted(usize),
    /// They were.
    Read(Vec<f32>),
}

/// Reads the results of a step back. No other use of the device can come in between,
/// as the core is borrowed.
struct Readback<'a> {
    core: &'a mut Core,
    /// Those of the step; none where it was multi-token prediction.
    spans: &'a [Span],
    /// Whether the next step may be recorded while the device computes logits.
    may_prerecord: bool,
    hidden: HiddenStates,
}

impl Readback<'_> {
    fn output(mut self, outputs: &Outputs<'_>) -> Result<StepOutput, EngineError> {
        let mut logits = LogitRows::with_capacity(outputs.rows.len());
        for rows in outputs.rows.chunks(LOGIT_ROWS) {
            self.push_logits(rows, outputs.n_top, &mut logits)?;
        }
        Ok(StepOutput { logits, hidden: self.hidden()? })
    }

    fn push_logits(
        &mut self,
        rows: &[usize],
        n_top: Option<usize>,
        out: &mut LogitRows,
    ) -> Result<(), EngineError> {
        if let Some(n) = n_top
            && let Some(top) = self.top_logits(rows, n)?
        {
            out.extend(top.into_iter().map(RowLogits::Top));
            return Ok(());
        }
        let mut all = self.logits(rows)?;
        let vocab = all.len() / rows.len().max(1);
        let others: Vec<_> = all.chunks_exact(vocab).skip(1).map(<[f32]>::to_vec).collect();
        all.truncate(vocab);
        out.extend([all].into_iter().chain(others).map(|row| RowLogits::All(Logits(row))));
        Ok(())
    }

    /// Logits of some rows, a float for every token of the vocabulary each.
    fn logits(&mut self, rows: &[usize]) -> Result<Vec<f32>, EngineError> {
        let mut logits = self
            .ask_head(rows, |backend, (x, head), extras| backend.logits(rows, x, head, extras))?;
        let is_invalid = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
        // Without branches, which compilers vectorise.
        if logits.iter().fold(false, |any, logit| any | is_invalid(logit)) {
            let idx = logits.iter().position(is_invalid).unwrap_or(0);
            let vocab = logits.len() / rows.len().max(1);
            let what = self.name_logit(rows[idx / vocab], idx % vocab);
            return Err(EngineError::NotFinite { what, value: logits[idx] });
        }
        if let Some(cap) = self.core.model.logit_softcap() {
            soft_cap(Isa::detect(), &mut logits, cap);
        }
        Ok(logits)
    }

    /// The `n` highest logits of each of some rows, where the device selects them.
    fn top_logits(
        &mut self,
        rows: &[usize],
        n: usize,
    ) -> Result<Option<Vec<Vec<TokenLogit>>>, EngineError> {
        let top = self.ask_head(rows, |backend, (x, head), extras| {
            backend.top_logits(rows, n, x, head, extras)
        })?;
        let Some(cap) = self.core.model.logit_softcap() else { return Ok(top) };
        Ok(top.map(|rows| rows.into_iter().map(|row| capped(row, cap)).collect()))
    }

    /// The hidden states of the step's first rows. Where the answer with the logits brought
    /// them, the device is not waited for once more.
    fn hidden(self) -> Result<Vec<f32>, EngineError> {
        match self.hidden {
            HiddenStates::Read(rows) => Ok(rows),
            HiddenStates::Wanted(0) => Ok(Vec::new()),
            HiddenStates::Wanted(n) => {
                let buf = self.core.model.output().0.buf;
                Ok(self.core.backend().read(buf, n)?)
            }
        }
    }

    /// Multiplies rows with the output head by `ask`. While the device computes, the next step
    /// is recorded if it can be.
    fn ask_head<T>(
        &mut self,
        rows: &[usize],
        ask: impl FnOnce(&mut dyn Backend, (Cols, Weight), LogitsExtras<'_>) -> Result<T, DeviceError>,
    ) -> Result<T, EngineError> {
        self.core.backend();
        let next = self.next_spans(rows);
        let tokens = vec![TokenId(0); next.len()];
        let Core { backend, experts, model, lists, .. } = &mut *self.core;
        let mut record = |backend: &mut dyn Backend| {
            let (recorder, observer) = (None, None);
            let (tokens, embedded, spans, rows) = (&tokens[..], &[][..], &next[..], &mut NoRows);
            let mut step =
                Step { backend, experts, tokens, embedded, spans, recorder, observer, rows, lists };
            model.forward(&mut step).is_ok()
        };
        let next_step =
            (!next.is_empty()).then(|| PrerecordedStep { spans: &next, record: &mut record });
        let mut read = Vec::new();
        let hidden_rows = match self.hidden {
            HiddenStates::Wanted(n) if n > 0 => Some(HiddenRows { n, into: &mut read }),
            HiddenStates::Wanted(_) | HiddenStates::Read(_) => None,
        };
        let extras = LogitsExtras { hidden_rows, next_step };
        let answer = ask(backend.as_mut(), model.output(), extras);
        match &answer {
            Ok(_) if !next.is_empty() => self.core.pipeline = Pipeline::Prerecorded(next),
            Ok(_) => {}
            Err(_) => {
                self.core.backend();
            }
        }
        // A backend that selects no top logits may not have read the rows either.
        if answer.is_ok() && !read.is_empty() {
            self.hidden = HiddenStates::Read(read);
        }
        Ok(answer?)
    }

    /// The spans of the next step if one token follows each of these rows: where they end all
    /// spans of this step and the device routes without the host. Else none.
    fn next_spans(&self, rows: &[usize]) -> Vec<Span> {
        let ends = self.spans.iter().map(|span| span.rows.end - 1);
        let is_observed = self.core.recorder.is_some() || self.core.observer.is_some();
        // Rows of tables, and some experts, follow from tokens, which are not known.
        if is_observed
            || self.core.rows.is_some()
            || self.core.model.routes_by_tokens()
            || !self.may_prerecord
            || !ends.eq(rows.iter().copied())
            || !self.core.holds_all_layers(rows.len())
        {
            return Vec::new();
        }
        let next = |(i, span): (usize, &Span)| match &span.rotary {
            RotaryPositions::Shifted(by) if span.rotary_before.is_empty() => {
                let position = span.position + span.rows.len();
                let rotary = RotaryPositions::Shifted(*by);
                Some(Span { rotary, ..Span::new(span.sequence, i..i + 1, position) })
            }
            // What follows depends on earlier rows of the session, too.
            RotaryPositions::Shifted(_) | RotaryPositions::Each(_) => None,
        };
        let spans: Option<Vec<Span>> = self.spans.iter().enumerate().map(next).collect();
        spans.unwrap_or_default()
    }

    /// How messages name a logit of a row of the step.
    fn name_logit(&self, row: usize, token: usize) -> String {
        let span = self.spans.iter().find(|span| span.rows.contains(&row));
        match span {
            Some(span) => {
                let position = span.position + row - span.rows.start;
                format!("the logit of token {token} at position {position}")
            }
            None => format!("the logit of token {token}"),
        }
    }
}
