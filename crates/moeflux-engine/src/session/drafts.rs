//! Evaluating drafts, and rolling a session back where they are rejected.

use std::sync::MutexGuard;

use moeflux_core::TokenId;

use super::batch::{DraftChunk, SequenceChunk, eval_draft_batch};
use super::checks::check_input;
use super::eval::advance;
use super::evaluator::{Evaluator, Read};
use super::handle::Session;
use crate::error::EngineError;
use crate::positions::input::ChunkInput;
use crate::speculation::limits::MAX_STEP_ROWS;
use crate::speculation::rates::SpeculationRates;
use crate::speculation::state::RollbackPoint;
use crate::step::RowLogits;

impl Session {
    /// The measurements of the engine that decide how much is drafted.
    pub(crate) fn speculation_rates(&self) -> MutexGuard<'_, SpeculationRates> {
        self.engine.speculation_rates()
    }

    /// How many tokens can be drafted in a step that has `rows` rows without them.
    pub(crate) fn max_draft(&self, rows: usize) -> usize {
        let plan = self.engine.plan();
        let n_rows = plan.chunk.min(MAX_STEP_ROWS).saturating_sub(rows);
        n_rows.min((plan.ctx - self.state.position()).saturating_sub(1))
    }

    /// Whether accepted drafts are evaluated again where a later draft of the step is rejected:
    /// recurrent states return to before the drafts.
    pub(crate) fn reevaluates_accepted(&self) -> bool {
        self.engine.shape().is_recurrent()
    }

    /// Allocates a rollback point for drafts of the next step, where the model needs one.
    /// Returns false where there is no memory for it.
    pub(crate) fn prepare_rollback(&mut self) -> bool {
        if !self.engine.shape().is_recurrent() {
            return true;
        }
        // Its memory is part of the budget of checkpoints.
        let state_bytes = self.engine.plan().state_bytes;
        if self.state.speculation.rollback.is_none() && !self.state.checkpoints.reserve(state_bytes)
        {
            return false;
        }
        let core = &mut *self.engine.core();
        let point = self.state.speculation.rollback.get_or_insert_with(|| RollbackPoint {
            sequence: core.backend().new_sequence(&self.engine.shape().caches),
            position: None,
        });
        point.position = None;
        core.backend().reserve_states(point.sequence)
    }

    /// Evaluates a token and drafts of the tokens after it. The caller has called
    /// [`Session::prepare_rollback`] if there are any drafts. Returns the logits after the token
    /// and after each draft: the `n_top` highest where the device selects them, else all.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`]; the session is as before then.
    pub(crate) fn eval_draft(
        &mut self,
        token: TokenId,
        draft: &[TokenId],
        n_top: Option<usize>,
    ) -> Result<Vec<RowLogits>, EngineError> {
        let tokens = &[&[token], draft].concat();
        let (input, wants_logits, checkpoint_after) = (ChunkInput::Tokens(tokens), true, false);
        let chunk = SequenceChunk { session: self, input, wants_logits, checkpoint_after };
        let chunks = &mut [DraftChunk { chunk, n_drafted: draft.len(), n_scored: 0 }];
        Ok(eval_draft_batch(chunks, n_top)?.pop().unwrap_or_default())
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
        if self.state.n_pending() > 0 {
            let logits = self.eval_draft(token, &[], n_top)?.pop();
            return Ok(logits.expect("a token was evaluated"));
        }
        check_input(&self.engine, &self.state, ChunkInput::Tokens(&[token]))?;
        let mut logits = None;
        advance(self, &[token], &[], &mut |evaluator, chunk, _| {
            logits = evaluator.step(chunk, Read::Last(n_top))?.logits.pop();
            Ok(())
        })?;
        Ok(logits.expect("a token was evaluated"))
    }

    /// Removes the last `n_rejected` tokens, drafts of the last step. With recurrent layers, the
    /// accepted drafts of the step become pending tokens if any was rejected.
    ///
    /// # Errors
    /// Where a checkpoint is due and the device fails.
    ///
    /// # Panics
    /// Where the model needs a rollback point and the last step had none.
    pub(crate) fn roll_back(&mut self, n_rejected: usize) -> Result<(), EngineError> {
        let Session { engine, state, .. } = self;
        Evaluator { engine, core: &mut engine.core(), state }.roll_back(n_rejected)
    }
}
