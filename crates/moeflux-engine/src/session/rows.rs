//! Evaluating rows that are tokens or embeddings, at positions of their own.

use super::batch::{SequenceChunk, eval_batch};
use super::checks::check_input;
use super::handle::Session;
use crate::engine::Engine;
use crate::error::{EngineError, RowError};
use crate::positions::input::{ChunkInput, InputRow};
use crate::step::Logits;

impl Session {
    /// Evaluates rows in chunks and returns the logits after the last. Tokens that are evaluated
    /// afterwards stand at the positions after the greatest one of these rows, as transformers'
    /// `rope_deltas` has it. Embeddings without a token between them are one picture.
    ///
    /// The prefix cache and prompts that are matched with this session use its rows only up to the
    /// first that is an embedding or stands at another position than its own; such a session cannot
    /// be saved.
    ///
    /// ```no_run
    /// # use moeflux_engine::sampler::{Sampler, SamplerOptions};
    /// # use moeflux_engine::{Engine, EngineError, InputRow, RowPosition, TokenId};
    /// # fn describe(engine: &Engine, patches: &[Vec<f32>], text: &[TokenId]) -> Result<(), EngineError> {
    /// // An image of 3 rows with 4 patches each, then text.
    /// let mut rows: Vec<InputRow<'_>> = Vec::new();
    /// for (nth, patch) in (0..).zip(patches) {
    ///     let position = RowPosition { temporal: 0, height: nth / 4, width: nth % 4 };
    ///     rows.push(InputRow::embedding(patch, position));
    /// }
    /// rows.extend(text.iter().map(|token| InputRow::token(*token)));
    /// let mut session = engine.session();
    /// let logits = session.eval_rows(&rows)?;
    /// // Tokens follow as after any prompt.
    /// let token = Sampler::new(SamplerOptions::default())?.sample(&logits, session.tokens())?;
    /// let logits = session.eval_token(token)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Session::eval_prompt`], and those of [`RowError`](crate::RowError); the session is
    /// unchanged then.
    pub fn eval_rows(&mut self, rows: &[InputRow<'_>]) -> Result<Logits, EngineError> {
        check_input(&self.engine, &self.state, ChunkInput::Rows(rows))?;
        let chunks = chunks(&self.engine, rows)?;
        let (n_chunks, mut last) = (chunks.len(), None);
        for (nth, rows) in chunks.into_iter().enumerate() {
            let (input, checkpoint_after) = (ChunkInput::Rows(rows), false);
            let wants_logits = nth + 1 == n_chunks;
            let chunk = SequenceChunk { session: self, input, wants_logits, checkpoint_after };
            last = eval_batch(&mut [chunk])?.pop().flatten();
        }
        Ok(last.expect("logits of the last row are wanted"))
    }
}

/// The rows of each step.
fn chunks<'a, 'b>(
    engine: &Engine,
    rows: &'a [InputRow<'b>],
) -> Result<Vec<&'a [InputRow<'b>]>, EngineError> {
    let most = engine.plan().chunk;
    if !engine.shape().sees_pictures_whole {
        return Ok(rows.chunks(most).collect());
    }
    let (mut chunks, mut row) = (Vec::new(), 0);
    for alike in rows.chunk_by(|a, b| a.is_embedding() == b.is_embedding()) {
        let n = alike.len();
        if alike[0].is_embedding() && n > most {
            return Err(RowError::PictureTooLong { row, n, most }.into());
        }
        chunks.extend(alike.chunks(most));
        row += n;
    }
    Ok(chunks)
}
