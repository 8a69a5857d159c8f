//! Evaluating tokens, chunk by chunk.

use std::ops::Deref;

use moeflux_backend::TokenLogit;
use moeflux_core::TokenId;

use super::{Keep, Session};
use crate::engine::Core;
use crate::error::EngineError;

/// Rows whose logits are read back together; bounds their memory.
pub(super) const LOGIT_ROWS: usize = 16;

/// Tokens without a checkpoint that are evaluated in a row where the model has
/// recurrent states: at most so many are replayed while the budget allows.
const PASSING_TOKENS: usize = 4096;

/// One score for every entry of the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits(pub(super) Vec<f32>);

impl Deref for Logits {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

/// What may follow a token.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// The likeliest, as many as were wanted, where the device found them.
    Leaders(Vec<TokenLogit>),
    Logits(Logits),
}

/// Takes the logits of a token, by its position.
pub type LogitsSink<'a> = dyn FnMut(usize, &[f32]) -> Result<(), EngineError> + 'a;

/// Sees each chunk evaluated, and whether it is the last.
type AfterChunk<'a> = dyn FnMut(&mut Core, &[TokenId], bool) -> Result<(), EngineError> + 'a;

/// What may follow some rows of the last step, at most [`LOGIT_ROWS`]: so many leaders
/// where the device finds them, with `None` all logits.
pub(super) fn next_of(
    core: &mut Core,
    rows: &[usize],
    n_leaders: Option<usize>,
) -> Result<Vec<Next>, EngineError> {
    if let Some(n) = n_leaders
        && let Some(leaders) = core.leaders(rows, n)?
    {
        return Ok(leaders.into_iter().map(Next::Leaders).collect());
    }
    let mut all = core.logits(rows)?;
    let vocab = all.len() / rows.len().max(1);
    let others: Vec<_> = all.chunks_exact(vocab).skip(1).map(<[f32]>::to_vec).collect();
    all.truncate(vocab);
    Ok([all].into_iter().chain(others).map(|it| Next::Logits(Logits(it))).collect())
}

impl Session {
    /// Evaluates tokens in chunks and gives the logits of the last.
    ///
    /// # Errors
    /// Where `tokens` is empty, holds a token outside the vocabulary or does
    /// not fit the context; the session is then unchanged. Where an expert or
    /// the device fails; the session then ends with the last chunk that
    /// succeeded.
    pub fn eval_prompt(&mut self, tokens: &[TokenId]) -> Result<Logits, EngineError> {
        self.eval_prompt_with_progress(tokens, &mut |_| {})
    }

    /// Evaluates tokens; `progress` learns after each chunk how many are done.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`].
    pub fn eval_prompt_with_progress(
        &mut self,
        tokens: &[TokenId],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Logits, EngineError> {
        self.check(tokens, self.position())?;
        self.eval_marked(tokens, &[], progress)
    }

    /// Evaluates one token.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`].
    pub fn eval_token(&mut self, token: TokenId) -> Result<Logits, EngineError> {
        self.eval_prompt(&[token])
    }

    /// Evaluates one token for who wants nothing but so many of the likeliest to follow,
    /// or with `None` all.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`].
    pub(crate) fn eval_next(
        &mut self,
        token: TokenId,
        n_leaders: Option<usize>,
    ) -> Result<Next, EngineError> {
        if self.n_pending() > 0 {
            let next = self.eval_guess(token, &[], n_leaders)?.pop();
            return Ok(next.expect("a token was evaluated"));
        }
        self.check(&[token], self.position())?;
        let mut next = None;
        self.advance(&[token], &[], &mut |core, _, _| {
            next = next_of(core, &[0], n_leaders)?.pop();
            Ok(())
        })?;
        Ok(next.expect("a token was evaluated"))
    }

    /// Evaluates tokens and hands the logits of every one to `sink`.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`], and what `sink` returns.
    pub fn eval_all(
        &mut self,
        tokens: &[TokenId],
        sink: &mut LogitsSink<'_>,
    ) -> Result<(), EngineError> {
        self.check(tokens, self.position())?;
        let vocab = self.engine.shape().vocab;
        let mut position = self.position();
        self.advance(tokens, &[], &mut |core, chunk, _| {
            let rows: Vec<usize> = (0..chunk.len()).collect();
            for rows in rows.chunks(LOGIT_ROWS) {
                for logits in core.logits(rows)?.chunks_exact(vocab) {
                    sink(position, logits)?;
                    position += 1;
                }
            }
            Ok(())
        })
    }

    /// Evaluates checked tokens and makes a checkpoint at each of `marks`,
    /// ascending positions of the session.
    pub(crate) fn eval_marked(
        &mut self,
        tokens: &[TokenId],
        marks: &[usize],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Logits, EngineError> {
        let mut last = Vec::new();
        let mut n_done = 0;
        self.advance(tokens, marks, &mut |core, chunk, is_last| {
            n_done += chunk.len();
            progress(n_done);
            if is_last {
                last = core.logits(&[chunk.len() - 1])?;
            }
            Ok(())
        })?;
        Ok(Logits(last))
    }

    /// Checks tokens that are to follow position `start`.
    pub(super) fn check(&self, tokens: &[TokenId], start: usize) -> Result<(), EngineError> {
        let vocab = self.engine.shape().vocab;
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if let Some(token) = tokens.iter().find(|it| it.0 as usize >= vocab) {
            return Err(EngineError::TokenOutOfRange { token: *token, vocab });
        }
        let (wanted, limit) = (start + tokens.len(), self.engine.plan().ctx);
        if wanted > limit {
            return Err(EngineError::ContextFull { wanted, limit });
        }
        Ok(())
    }

    /// Evaluates chunk by chunk; `after` sees each chunk and whether it is the
    /// last.
    fn advance(
        &mut self,
        mut tokens: &[TokenId],
        marks: &[usize],
        after: &mut AfterChunk<'_>,
    ) -> Result<(), EngineError> {
        let engine = self.engine.clone();
        let core = &mut *engine.core();
        self.forget_mark();
        self.replay(core)?;
        let marks = if engine.shape().is_recurrent() { marks } else { &[] };
        while !tokens.is_empty() {
            let mark = marks.iter().find(|it| **it > self.n_cached).map(|it| it - self.n_cached);
            let n = engine.plan().chunk.min(tokens.len()).min(mark.unwrap_or(usize::MAX));
            let (chunk, rest) = tokens.split_at(n);
            let start = self.n_cached;
            self.step(core, chunk)?;
            self.tokens.extend_from_slice(chunk);
            let seen = after(core, chunk, rest.is_empty());
            let seen = seen.and_then(|()| self.see_step(core, start));
            let kept = seen.and_then(|()| self.snapshot_states(core, mark == Some(n)));
            self.catch_up_in_time(core);
            if kept.is_err() {
                self.undo(core, start, start);
                return kept;
            }
            tokens = rest;
        }
        Ok(())
    }

    /// Evaluates again what the caches lost to a step that failed.
    pub(super) fn replay(&mut self, core: &mut Core) -> Result<(), EngineError> {
        let chunk_rows = self.engine.plan().chunk;
        while self.n_cached < self.position() {
            let start = self.n_cached - self.n_unknown;
            let end = self.tokens.len().min(start + chunk_rows);
            let chunk = self.tokens[start..end].to_vec();
            let cached = self.n_cached;
            self.step(core, &chunk)?;
            if let Err(err) = self.see_step(core, cached) {
                self.rewind(core, self.nearest(cached));
                return Err(err);
            }
        }
        Ok(())
    }

    /// Evaluates one chunk behind what the caches hold.
    fn step(&mut self, core: &mut Core, chunk: &[TokenId]) -> Result<(), EngineError> {
        if let Err(err) = core.step(self.sequence, self.n_cached, chunk) {
            // Some layers have moved on and others have not.
            self.rewind(core, self.nearest(self.n_cached));
            return Err(err);
        }
        self.n_cached += chunk.len();
        if self.is_followed() {
            core.will_see(chunk.len());
        }
        Ok(())
    }

    /// Takes what the model made of the last step, which began at `start`.
    fn see_step(&mut self, core: &mut Core, start: usize) -> Result<(), EngineError> {
        if self.is_followed() {
            let rows = core.hidden(self.n_cached - start)?;
            self.note_hidden(start, &rows);
        }
        Ok(())
    }

    /// Makes a checkpoint here if there should be one.
    pub(super) fn snapshot_states(
        &mut self,
        core: &mut Core,
        is_mark: bool,
    ) -> Result<(), EngineError> {
        if !self.engine.shape().is_recurrent() {
            return Ok(());
        }
        let n_since = self.n_cached - self.checkpoints.nearest(self.n_cached);
        let keep = match is_mark {
            true => Keep::Asked,
            false if n_since >= PASSING_TOKENS => Keep::Passing,
            false => return Ok(()),
        };
        if self.checkpoints.would_keep(self.engine.plan().state_bytes, keep) {
            let states = self.read_states(core)?;
            self.checkpoints.insert(self.n_cached, states, keep);
        }
        Ok(())
    }
}
