//! Evaluating tokens of a session chunk by chunk, and undoing what was evaluated.

use moeflux_backend::Span;
use moeflux_core::TokenId;
use moeflux_model::EmbeddedRow;
use smallvec::SmallVec;

use super::cache_copy::{read_states, write_states, zero_mtp_caches};
use super::state::{SessionState, StepRows};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::positions::checkpoints::Retention;
use crate::positions::pictures::{PictureRow, embedded_rows};
use crate::positions::timeline::Timeline;
use crate::speculation::mtp_history::MAX_MISSING;
use crate::step::{Batch, Core, MtpBatch, Outputs, StepOutput};

/// The distance of periodic checkpoints: after a return to an earlier position, at most this
/// many tokens are evaluated again while the budget of checkpoints allows.
const CHECKPOINT_DISTANCE: usize = 4096;

/// Receives the logits after a token, by the token's position.
pub type LogitsSink<'a> = dyn FnMut(usize, &[f32]) -> Result<(), EngineError> + 'a;

/// What is read back of the rows of a chunk.
pub(super) enum Read<'a, 'b> {
    /// Nothing.
    Nothing,
    /// The logits of the last row: this many of the highest, or with `None` all.
    Last(Option<usize>),
    /// All logits of every row, by position.
    Every(&'a mut LogitsSink<'b>),
}

/// Evaluates one chunk of several; gets whether it is the last.
pub(super) type StepChunk<'a> =
    dyn FnMut(&mut Evaluator<'_>, &[TokenId], bool) -> Result<(), EngineError> + 'a;

/// A session while it holds the device.
pub(crate) struct Evaluator<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) core: &'a mut Core,
    pub(crate) state: &'a mut SessionState,
}

impl Evaluator<'_> {
    /// Evaluates tokens chunk by chunk with `step`, which also gets whether a chunk is the last.
    pub(super) fn advance(
        &mut self,
        mut tokens: &[TokenId],
        checkpoints: &[usize],
        step: &mut StepChunk<'_>,
    ) -> Result<(), EngineError> {
        self.state.speculation.discard_rollback();
        self.replay()?;
        let checkpoints = if self.engine.shape().has_cut_points() { checkpoints } else { &[] };
        while !tokens.is_empty() {
            let start = self.state.timeline.n_cached();
            let next = checkpoints.iter().find(|position| **position > start);
            let n_to_next = next.map(|position| position - start);
            let n = self.engine.plan().chunk.min(tokens.len()).min(n_to_next.unwrap_or(usize::MAX));
            let n = self.state.timeline.pictures().whole(start, n).min(tokens.len());
            let (chunk, rest) = tokens.split_at(n);
            step(self, chunk, rest.is_empty())?;
            let kept = self.checkpoint_if_due(n_to_next == Some(n));
            self.fill_mtp_cache_if_long();
            if kept.is_err() {
                self.undo(start, start);
                return kept;
            }
            tokens = rest;
        }
        Ok(())
    }

    /// Evaluates the pending tokens.
    pub(crate) fn replay(&mut self) -> Result<(), EngineError> {
        while self.state.n_pending() > 0 {
            let n = self.state.n_pending().min(self.engine.plan().chunk);
            let n = self.state.timeline.pictures().whole(self.state.timeline.n_cached(), n);
            let chunk = self.state.timeline.pending()[..n].to_vec();
            self.step(&chunk, Read::Nothing)?;
        }
        Ok(())
    }

    /// Evaluates one chunk at the end of what the caches hold. Where that fails, the caches
    /// are cut to where they were, or to the last checkpoint before.
    pub(super) fn step(
        &mut self,
        chunk: &[TokenId],
        read: Read<'_, '_>,
    ) -> Result<StepOutput, EngineError> {
        let start = self.state.timeline.n_cached();
        match self.try_step(chunk, read) {
            Ok(output) => {
                self.state.timeline.extend_cached(chunk);
                self.state.requested.clear();
                self.state.speculation.record_hidden(start, &output.hidden);
                Ok(output)
            }
            Err(err) => {
                self.return_to(self.state.nearest(start));
                Err(err)
            }
        }
    }

    fn try_step(
        &mut self,
        chunk: &[TokenId],
        read: Read<'_, '_>,
    ) -> Result<StepOutput, EngineError> {
        let Evaluator { engine, core, state } = self;
        let start = state.timeline.n_cached();
        let hidden_rows = if state.speculation.drafting().is_some() { chunk.len() } else { 0 };
        let StepRows { tokens, spans, pictures } = state.step_rows(start, chunk, engine.shape())?;
        let mut outputs = Outputs { hidden_rows, ..Outputs::default() };
        let last = [chunk.len() - 1];
        if let Read::Last(n_top) = read {
            (outputs.rows, outputs.n_top) = (&last, n_top);
        }
        let before =
            spans.iter().map(|span| state.tokens_before(span.position, engine.rows(), chunk));
        let before: SmallVec<[Vec<TokenId>; 1]> = before.collect();
        let deepstack: Vec<Vec<&[f32]>> = pictures.iter().map(PictureRow::deepstack).collect();
        let embedded: Vec<EmbeddedRow<'_>> = embedded_rows(&pictures, &deepstack).collect();
        let batch = Batch {
            spans: &spans,
            tokens: &tokens,
            embedded: &embedded,
            before: &before,
            snapshots: &[],
            outputs,
        };
        match read {
            Read::Nothing | Read::Last(_) => core.step(&batch),
            Read::Every(sink) => {
                let sink = &mut |row, logits: &[f32]| sink(start + row, logits);
                let hidden = core.step_all_logits(&batch, sink)?;
                Ok(StepOutput { hidden, ..StepOutput::default() })
            }
        }
    }

    /// Makes a checkpoint at the end of the caches if the caller has requested it, or if the
    /// last one is far away. Layers with a window forget what it has passed.
    pub(crate) fn checkpoint_if_due(&mut self, is_requested: bool) -> Result<(), EngineError> {
        let n_cached = self.state.timeline.n_cached();
        if !self.engine.shape().is_recurrent() {
            if is_requested {
                self.state.windows.mark(n_cached);
            }
            self.forget_passed();
            return Ok(());
        }
        let n_since = n_cached - self.state.checkpoints.nearest(n_cached);
        let retention = if is_requested {
            Retention::Requested
        } else if n_since >= CHECKPOINT_DISTANCE {
            Retention::Periodic
        } else {
            return Ok(());
        };
        if self.state.checkpoints.fits(self.engine.plan().state_bytes, retention) {
            let states = read_states(self.engine, self.core, self.state.sequence)?;
            self.state.checkpoints.insert(n_cached, states, retention);
        }
        Ok(())
    }

    /// Ends the session at a position to which the caches can be cut.
    pub(super) fn go_back(&mut self, position: usize) {
        self.state.checkpoints.truncate(position);
        self.rewind(position.min(self.state.timeline.n_cached()));
        self.state.truncate(position);
    }

    /// Cuts the caches at a position where they can be cut.
    fn rewind(&mut self, position: usize) {
        if position == 0 {
            self.core.backend().clear_sequence(self.state.sequence);
        } else {
            self.core.backend().truncate_sequence(self.state.sequence, position);
            if self.engine.shape().is_recurrent() {
                let states = self.state.checkpoints.get(position).expect("a checkpoint's position");
                // The sequence has held states before, so that they fit; a lost device is
                // reported by the next step.
                let _ = write_states(self.engine, self.core, self.state.sequence, &states);
            }
        }
        self.state.windows.truncate(position);
        self.state.truncate_cached(position);
    }

    /// Lets layers with a window forget what it has passed.
    fn forget_passed(&mut self) {
        if let Some(ends) = self.state.windows.advance(self.state.timeline.n_cached()) {
            self.core.backend().forget_passed(self.state.sequence, &ends);
        }
    }

    /// Undoes a step that has failed: the session ends at `position` again. The caches held
    /// `n_cached` positions before the step; some layers may hold more.
    pub(super) fn undo(&mut self, position: usize, n_cached: usize) {
        self.state.checkpoints.truncate(n_cached);
        self.state.truncate(position);
        self.state.speculation.discard_rollback();
        self.return_to(self.state.nearest(n_cached));
    }

    /// Cuts the caches at a position where they can be cut. Rows after it that cannot be evaluated
    /// again are forgotten.
    fn return_to(&mut self, position: usize) {
        let can_be_pending = self.state.timeline.can_be_pending(position);
        self.rewind(position);
        if !can_be_pending {
            self.state.truncate(position);
        }
    }

    /// Forgets everything, caches included.
    pub(super) fn empty(&mut self) {
        self.core.backend().clear_sequence(self.state.sequence);
        self.state.timeline = Timeline::default();
        self.state.checkpoints.clear();
        self.state.windows.truncate(0);
        self.state.speculation.resume_at(0);
    }

    /// Fills the caches of an empty session; where that fails, the session stays empty.
    pub(super) fn fill_or_clear<T>(
        &mut self,
        fill: impl FnOnce(&mut Core) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let filled = fill(self.core);
        #[cfg(test)]
        let filled = self.core.refuse().and(filled);
        if filled.is_err() {
            self.core.backend().clear_sequence(self.state.sequence);
        }
        filled
    }

    /// Removes the last `n_rejected` tokens, drafts of the last step. With recurrent layers, the
    /// accepted drafts of the step become pending tokens if any was rejected.
    pub(super) fn roll_back(&mut self, n_rejected: usize) -> Result<(), EngineError> {
        if n_rejected == 0 {
            self.state.speculation.discard_rollback();
            return self.checkpoint_if_due(false);
        }
        self.state.truncate(self.state.position() - n_rejected);
        if self.engine.shape().is_recurrent() {
            self.restore_rollback_point();
        } else {
            self.rewind(self.state.position());
            self.forget_passed();
        }
        Ok(())
    }

    /// Cuts the caches at the rollback point, which is not valid after that.
    fn restore_rollback_point(&mut self) {
        let point = self.state.speculation.rollback.as_mut();
        let (position, states) = point
            .and_then(|point| Some((point.position.take()?, point.sequence)))
            .expect("a step with drafts has copied the states");
        self.core.backend().truncate_sequence(self.state.sequence, position);
        self.core.backend().swap_states(self.state.sequence, states);
        self.state.truncate_cached(position);
    }

    /// Fills the MTP cache where many entries are missing. Where that fails, this session drafts
    /// no more with the MTP layer; a lost device is reported by the next step.
    pub(crate) fn fill_mtp_cache_if_long(&mut self) {
        let end = self.state.position();
        let is_long = self.state.speculation.drafting().is_some_and(|history| {
            end.min(history.end()).saturating_sub(history.n_entries) >= MAX_MISSING
        });
        if is_long
            && self.fill_mtp_cache().and_then(|()| self.core.synchronize()).is_err()
            && let Some(history) = &mut self.state.speculation.mtp
        {
            history.drafts = false;
        }
    }

    /// Computes all entries of the MTP cache whose tokens and hidden states are known.
    pub(crate) fn fill_mtp_cache(&mut self) -> Result<(), EngineError> {
        let Evaluator { engine, core, state } = self;
        let (chunk_rows, end) = (engine.plan().chunk, state.position());
        let SessionState { sequence, timeline, speculation, .. } = &mut **state;
        let Some(history) = speculation.mtp.as_mut().filter(|history| history.drafts) else {
            return Ok(());
        };
        while history.n_entries < end.min(history.end()) {
            let first = history.n_entries;
            let n = chunk_rows.min(end.min(history.end()) - first);
            let rotary = timeline.rotary(first..first + n);
            let spans = &[Span { rotary, ..Span::new(*sequence, 0..n, first) }];
            let tokens = &timeline.vocabulary_at(first..first + n);
            let (hidden, outputs) = (history.rows(first, n), Outputs::default());
            core.mtp_step(&MtpBatch { spans, tokens, hidden, outputs })?;
            history.set_filled(first + n);
        }
        Ok(())
    }

    /// Completes the MTP cache before caches are copied: entries whose hidden states are not
    /// known become zeros.
    pub(crate) fn flush_mtp(&mut self) -> Result<(), EngineError> {
        self.fill_mtp_cache().and_then(|()| self.core.synchronize())?;
        let n_cached = self.state.timeline.n_cached();
        let Some(n_entries) = self.state.speculation.mtp.as_ref().map(|history| history.n_entries)
        else {
            return Ok(());
        };
        if n_entries < n_cached {
            zero_mtp_caches(self.engine, self.core, self.state.sequence, n_entries..n_cached)?;
            self.state.speculation.resume_at(n_cached);
        }
        Ok(())
    }
}
