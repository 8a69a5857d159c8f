//! Evaluating tokens, chunk by chunk.

use moeflux_core::TokenId;

use super::checks::check_input;
use super::evaluator::{Evaluator, LogitsSink, Read, StepChunk};
use super::handle::Session;
use crate::error::EngineError;
use crate::positions::input::ChunkInput;
use crate::step::{Logits, RowLogits};

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
        check_input(&self.engine, &self.state, ChunkInput::Tokens(tokens))?;
        eval_with_checkpoints(self, tokens, &[], progress)
    }

    /// Evaluates one token and returns the logits after it.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`].
    pub fn eval_token(&mut self, token: TokenId) -> Result<Logits, EngineError> {
        self.eval_prompt(&[token])
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
        check_input(&self.engine, &self.state, ChunkInput::Tokens(tokens))?;
        advance(self, tokens, &[], &mut |evaluator, chunk, _| {
            evaluator.step(chunk, Read::Every(sink))?;
            Ok(())
        })
    }
}

/// Evaluates checked tokens and makes a checkpoint at each of `checkpoints`, ascending
/// positions of the session. After each chunk, `progress` is called with the number of
/// tokens done.
pub(super) fn eval_with_checkpoints(
    session: &mut Session,
    tokens: &[TokenId],
    checkpoints: &[usize],
    progress: &mut dyn FnMut(usize),
) -> Result<Logits, EngineError> {
    let (mut last, mut n_done) = (None, 0);
    advance(session, tokens, checkpoints, &mut |evaluator, chunk, is_last| {
        let read = if is_last { Read::Last(None) } else { Read::Nothing };
        last = evaluator.step(chunk, read)?.logits.pop();
        n_done += chunk.len();
        progress(n_done);
        Ok(())
    })?;
    match last {
        Some(RowLogits::All(logits)) => Ok(logits),
        Some(RowLogits::Top(_)) | None => unreachable!("all logits of the last row are read"),
    }
}

/// Evaluates tokens chunk by chunk with `step`, which also gets whether a chunk is the last.
pub(super) fn advance(
    session: &mut Session,
    tokens: &[TokenId],
    checkpoints: &[usize],
    step: &mut StepChunk<'_>,
) -> Result<(), EngineError> {
    let _requested = session.request_rows(tokens);
    let Session { engine, state, .. } = session;
    Evaluator { engine, core: &mut engine.core(), state }.advance(tokens, checkpoints, step)
}
