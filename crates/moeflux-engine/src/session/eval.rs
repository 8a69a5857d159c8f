//! Evaluating tokens, chunk by chunk.

use moeflux_backend::Span;
use moeflux_core::TokenId;

use super::cache_copy::read_states;
use super::checkpoints::Retention;
use super::handle::Session;
use crate::engine::Core;
use crate::engine::step::{Batch, Logits, Outputs, RowLogits, StepOutput};
use crate::error::EngineError;

/// The distance of periodic checkpoints: after a return to an earlier position, at most this
/// many tokens are evaluated again while the budget of checkpoints allows.
const CHECKPOINT_DISTANCE: usize = 4096;

/// Receives the logits after a token, by the token's position.
pub type LogitsSink<'a> = dyn FnMut(usize, &[f32]) -> Result<(), EngineError> + 'a;

/// What is read back of the rows of a chunk.
enum Read<'a, 'b> {
    /// Nothing.
    Nothing,
    /// The logits of the last row: this many of the highest, or with `None` all.
    Last(Option<usize>),
    /// All logits of every row, by position.
    Every(&'a mut LogitsSink<'b>),
}

/// Evaluates one chunk of several; gets whether it is the last.
type StepChunk<'a> =
    dyn FnMut(&mut Session, &mut Core, &[TokenId], bool) -> Result<(), EngineError> + 'a;

impl Session {
    /// Evaluates tokens in chunks and returns the logits after the last.
    ///
    /// # Errors
    /// Where `tokens` is empty, holds a token outside the vocabulary or does not fit the
    /// context; the session is then unchanged. Where an expert or the device fails; the session
    /// then ends with the last chunk that succeeded.
    pub fn eval_prompt(&mut self, tokens: &[TokenId]) -> Result<Logits, EngineError> {
        self.eval_prompt_with_progress(tokens, &mut |_| {})
    }

    /// Evaluates tokens in chunks and returns the logits after the last. After each chunk,
    /// `progress` is called with the number of tokens done.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`].
    pub fn eval_prompt_with_progress(
        &mut self,
        tokens: &[TokenId],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Logits, EngineError> {
        self.check(tokens, self.position())?;
        self.eval_with_checkpoints(tokens, &[], progress)
    }

    /// Evaluates one token and returns the logits after it.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`].
    pub fn eval_token(&mut self, token: TokenId) -> Result<Logits, EngineError> {
        self.eval_prompt(&[token])
    }

    /// Evaluates one token and returns the `n_top` highest logits after it where the device
    /// selects them. With `None` and elsewhere it returns all.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`].
    pub(crate) fn eval_next(
        &mut self,
        token: TokenId,
        n_top: Option<usize>,
    ) -> Result<RowLogits, EngineError> {
        if self.n_pending() > 0 {
            let logits = self.eval_draft(token, &[], n_top)?.pop();
            return Ok(logits.expect("a token was evaluated"));
        }
        self.check(&[token], self.position())?;
        let mut logits = None;
        self.advance(&[token], &[], &mut |session, core, chunk, _| {
            logits = session.step(core, chunk, Read::Last(n_top))?.logits.pop();
            Ok(())
        })?;
        Ok(logits.expect("a token was evaluated"))
    }

    /// Evaluates tokens and passes the logits after every one to `sink`.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`], and what `sink` returns.
    pub fn eval_all(
        &mut self,
        tokens: &[TokenId],
        sink: &mut LogitsSink<'_>,
    ) -> Result<(), EngineError> {
        self.check(tokens, self.position())?;
        self.advance(tokens, &[], &mut |session, core, chunk, _| {
            session.step(core, chunk, Read::Every(sink))?;
            Ok(())
        })
    }

    /// Evaluates checked tokens and makes a checkpoint at each of `checkpoints`, ascending
    /// positions of the session. After each chunk, `progress` is called with the number of
    /// tokens done.
    pub(crate) fn eval_with_checkpoints(
        &mut self,
        tokens: &[TokenId],
        checkpoints: &[usize],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Logits, EngineError> {
        let (mut last, mut n_done) = (None, 0);
        self.advance(tokens, checkpoints, &mut |session, core, chunk, is_last| {
            let read = if is_last { Read::Last(None) } else { Read::Nothing };
            last = session.step(core, chunk, read)?.logits.pop();
            n_done += chunk.len();
            progress(n_done);
            Ok(())
        })?;
        match last {
            Some(RowLogits::All(logits)) => Ok(logits),
            Some(RowLogits::Top(_)) | None => unreachable!("all logits of the last row are read"),
        }
    }

    /// Checks that the context has room for tokens from position `start` on and that the
    /// vocabulary has them.
    pub(super) fn check(&self, tokens: &[TokenId], start: usize) -> Result<(), EngineError> {
        let vocab = self.engine.shape().vocab;
        self.check_room(tokens.len(), start)?;
        if let Some(token) = tokens.iter().find(|token| token.0 as usize >= vocab) {
            return Err(EngineError::TokenOutOfRange { token: *token, vocab });
        }
        Ok(())
    }

    /// Checks that the context has room for `n` rows from position `start` on, at least one.
    pub(super) fn check_room(&self, n: usize, start: usize) -> Result<(), EngineError> {
        if n == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        let (wanted, limit) = (start + n, self.engine.plan().ctx);
        if wanted > limit {
            return Err(EngineError::ContextFull { wanted, limit });
        }
        Ok(())
    }

    /// Evaluates tokens chunk by chunk with `step`, which also gets whether a chunk is the last.
    fn advance(
        &mut self,
        mut tokens: &[TokenId],
        checkpoints: &[usize],
        step: &mut StepChunk<'_>,
    ) -> Result<(), EngineError> {
        let engine = self.engine.clone();
        let _requested = self.request_rows(tokens);
        let core = &mut *engine.core();
        self.speculation.discard_rollback();
        self.replay(core)?;
        let checkpoints = if engine.shape().has_cut_points() { checkpoints } else { &[] };
        while !tokens.is_empty() {
            let start = self.timeline.n_cached();
            let next = checkpoints.iter().find(|position| **position > start);
            let n_to_next = next.map(|position| position - start);
            let n = engine.plan().chunk.min(tokens.len()).min(n_to_next.unwrap_or(usize::MAX));
            let (chunk, rest) = tokens.split_at(n);
            step(self, core, chunk, rest.is_empty())?;
            let kept = self.checkpoint_if_due(core, n_to_next == Some(n));
            self.fill_mtp_cache_if_long(core);
            if kept.is_err() {
                self.undo(core, start, start);
                return kept;
            }
            tokens = rest;
        }
        Ok(())
    }

    /// Evaluates the pending tokens.
    pub(crate) fn replay(&mut self, core: &mut Core) -> Result<(), EngineError> {
        while self.n_pending() > 0 {
            let n = self.n_pending().min(self.chunk_rows());
            let chunk = self.timeline.pending()[..n].to_vec();
            self.step(core, &chunk, Read::Nothing)?;
        }
        Ok(())
    }

    /// Evaluates one chunk at the end of what the caches hold. Where that fails, the caches
    /// are cut to where they were, or to the last checkpoint before.
    fn step(
        &mut self,
        core: &mut Core,
        chunk: &[TokenId],
        read: Read<'_, '_>,
    ) -> Result<StepOutput, EngineError> {
        let start = self.timeline.n_cached();
        match self.try_step(core, chunk, read) {
            Ok(output) => {
                self.timeline.extend_cached(chunk);
                self.requested.clear();
                self.speculation.record_hidden(start, &output.hidden);
                Ok(output)
            }
            Err(err) => {
                self.rewind(core, self.nearest(start));
                Err(err)
            }
        }
    }

    fn try_step(
        &self,
        core: &mut Core,
        chunk: &[TokenId],
        read: Read<'_, '_>,
    ) -> Result<StepOutput, EngineError> {
        let start = self.timeline.n_cached();
        let hidden_rows = if self.speculation.drafting().is_some() { chunk.len() } else { 0 };
        let rotary = self.timeline.rotary();
        let spans = &[Span { rotary, ..Span::new(self.sequence, 0..chunk.len(), start) }];
        let mut outputs = Outputs { hidden_rows, ..Outputs::default() };
        let last = [chunk.len() - 1];
        if let Read::Last(n_top) = read {
            (outputs.rows, outputs.n_top) = (&last, n_top);
        }
        let before = &[self.tokens_before(start)];
        let batch = Batch { spans, tokens: chunk, embedded: &[], before, snapshots: &[], outputs };
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
    pub(crate) fn checkpoint_if_due(
        &mut self,
        core: &mut Core,
        is_requested: bool,
    ) -> Result<(), EngineError> {
        let n_cached = self.timeline.n_cached();
        if !self.engine.shape().is_recurrent() {
            if is_requested {
                self.windows.mark(n_cached);
            }
            self.forget_passed(core);
            return Ok(());
        }
        let n_since = n_cached - self.checkpoints.nearest(n_cached);
        let retention = match is_requested {
            true => Retention::Requested,
            false if n_since >= CHECKPOINT_DISTANCE => Retention::Periodic,
            false => return Ok(()),
        };
        if self.checkpoints.fits(self.engine.plan().state_bytes, retention) {
            let states = read_states(&self.engine, core, self.sequence)?;
            self.checkpoints.insert(n_cached, states, retention);
        }
        Ok(())
    }
}
