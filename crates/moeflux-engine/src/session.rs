//! One timeline of tokens and what the model remembers of it.

use std::ops::Deref;

use moeflux_backend::Sequence;
use moeflux_core::TokenId;

use crate::engine::{Core, Engine};
use crate::error::EngineError;

/// Rows whose logits are read back together; bounds their memory.
const LOGIT_ROWS: usize = 16;

/// One score for every entry of the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits(Vec<f32>);

impl Deref for Logits {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

/// Takes the logits of a token, by its position.
pub type LogitsSink<'a> = dyn FnMut(usize, &[f32]) -> Result<(), EngineError> + 'a;

/// Sees each chunk evaluated, and whether it is the last.
type AfterChunk<'a> = dyn FnMut(&mut Core, &[TokenId], bool) -> Result<(), EngineError> + 'a;

/// One mutable timeline. Sessions of an engine are isolated from each other.
pub struct Session {
    engine: Engine,
    sequence: Sequence,
    /// Everything evaluated.
    tokens: Vec<TokenId>,
    /// How many of them the caches hold. Less than all after a step that
    /// failed half-way: the next step evaluates the rest again first.
    n_cached: usize,
}

impl Session {
    pub(crate) fn new(engine: Engine) -> Session {
        let sequence = engine.core().backend.new_sequence(&engine.shape().caches);
        Session { engine, sequence, tokens: Vec::new(), n_cached: 0 }
    }

    /// The tokens evaluated so far.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The position of the next token.
    pub fn position(&self) -> usize {
        self.tokens.len()
    }

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
        self.check(tokens)?;
        let mut last = Vec::new();
        let mut n_done = 0;
        self.advance(tokens, &mut |core, chunk, is_last| {
            n_done += chunk.len();
            progress(n_done);
            if is_last {
                last = core.logits(&[chunk.len() - 1])?;
            }
            Ok(())
        })?;
        Ok(Logits(last))
    }

    /// Evaluates one token.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`].
    pub fn eval_token(&mut self, token: TokenId) -> Result<Logits, EngineError> {
        self.eval_prompt(&[token])
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
        self.check(tokens)?;
        let vocab = self.engine.shape().vocab;
        let mut position = self.position();
        self.advance(tokens, &mut |core, chunk, _| {
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

    /// Forgets everything.
    pub fn clear(&mut self) {
        let core = &mut *self.engine.core();
        core.backend.clear_sequence(self.sequence);
        core.forget_predictions();
        self.tokens.clear();
        self.n_cached = 0;
    }

    /// Hits and misses of the prediction of experts, one each for every expert
    /// that a decoded token used.
    pub fn prefetch_stats(&self) -> (u64, u64) {
        let stats = self.engine.stats();
        (stats.prefetch_hits, stats.prefetch_misses)
    }

    fn check(&self, tokens: &[TokenId]) -> Result<(), EngineError> {
        let vocab = self.engine.shape().vocab;
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if let Some(token) = tokens.iter().find(|it| it.0 as usize >= vocab) {
            return Err(EngineError::TokenOutOfRange { token: *token, vocab });
        }
        let (wanted, limit) = (self.tokens.len() + tokens.len(), self.engine.plan().ctx);
        if wanted > limit {
            return Err(EngineError::ContextFull { wanted, limit });
        }
        Ok(())
    }

    /// Evaluates chunk by chunk; `after` sees each chunk and whether it is the
    /// last.
    fn advance(
        &mut self,
        tokens: &[TokenId],
        after: &mut AfterChunk<'_>,
    ) -> Result<(), EngineError> {
        let engine = self.engine.clone();
        let core = &mut *engine.core();
        let chunk_rows = engine.plan().chunk;
        while self.n_cached < self.tokens.len() {
            let end = self.tokens.len().min(self.n_cached + chunk_rows);
            let chunk = self.tokens[self.n_cached..end].to_vec();
            self.step(core, &chunk)?;
        }
        let n_chunks = tokens.len().div_ceil(chunk_rows);
        for (i, chunk) in tokens.chunks(chunk_rows).enumerate() {
            self.step(core, chunk)?;
            self.tokens.extend_from_slice(chunk);
            after(core, chunk, i + 1 == n_chunks)?;
        }
        Ok(())
    }

    /// Evaluates one chunk behind what the caches hold.
    fn step(&mut self, core: &mut Core, chunk: &[TokenId]) -> Result<(), EngineError> {
        let stepped = core.step(self.sequence, self.n_cached, chunk);
        match &stepped {
            Ok(()) => self.n_cached += chunk.len(),
            // Some layers have moved on and others have not. Positions of keys
            // and values can be written again, a recurrent state cannot.
            Err(_) if self.engine.shape().is_recurrent() => {
                core.backend.clear_sequence(self.sequence);
                self.n_cached = 0;
            }
            Err(_) => {}
        }
        stepped
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.core().backend.drop_sequence(self.sequence);
    }
}
