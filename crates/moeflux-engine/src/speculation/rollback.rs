//! Evaluating drafts, and rolling a session back where they are rejected.

use std::sync::MutexGuard;

use moeflux_backend::StateSnapshot;
use moeflux_core::TokenId;

use crate::engine::Core;
use crate::engine::step::RowLogits;
use crate::error::EngineError;
use crate::session::batch::{DraftChunk, SequenceChunk, eval_draft_batch};
use crate::session::handle::Session;
use crate::session::input::ChunkInput;
use crate::speculation::limits::MAX_STEP_ROWS;
use crate::speculation::rates::SpeculationRates;
use crate::speculation::state::RollbackPoint;

impl Session {
    /// The measurements of the engine that decide how much is drafted.
    pub(crate) fn speculation_rates(&self) -> MutexGuard<'_, SpeculationRates> {
        self.engine.speculation_rates()
    }

    /// How many tokens can be drafted in a step that has `rows` rows without them.
    pub(crate) fn max_draft(&self, rows: usize) -> usize {
        let n_rows = self.chunk_rows().min(MAX_STEP_ROWS).saturating_sub(rows);
        n_rows.min(self.n_free().saturating_sub(1))
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
        if self.speculation.rollback.is_none() && !self.checkpoints.reserve(state_bytes) {
            return false;
        }
        let engine = self.engine.clone();
        let core = &mut *engine.core();
        let point = self.speculation.rollback.get_or_insert_with(|| RollbackPoint {
            sequence: core.backend().new_sequence(&engine.shape().caches),
            position: None,
        });
        point.position = None;
        core.backend().reserve_states(point.sequence)
    }

    /// The copy of recurrent states that a step makes after the first `rows` rows of this
    /// session, where drafts begin; `None` where the model has no recurrent states.
    pub(crate) fn rollback_snapshot(&self, rows: usize) -> Option<StateSnapshot> {
        let point = self.speculation.rollback.as_ref()?;
        let is_recurrent = self.engine.shape().is_recurrent();
        is_recurrent.then_some(StateSnapshot { sequence: self.sequence, rows, to: point.sequence })
    }

    /// Records the position of the states that a step has copied.
    pub(crate) fn set_rollback_position(&mut self, position: usize) {
        if let Some(point) = &mut self.speculation.rollback {
            point.position = Some(position);
        }
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
        let chunks = &mut [DraftChunk { chunk, n_drafted: draft.len() }];
        Ok(eval_draft_batch(chunks, n_top)?.pop().unwrap_or_default())
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
        let engine = self.engine.clone();
        let core = &mut *engine.core();
        if n_rejected == 0 {
            self.speculation.discard_rollback();
            return self.checkpoint_if_due(core, false);
        }
        self.truncate_timeline(self.position() - n_rejected);
        if engine.shape().is_recurrent() {
            self.restore_rollback_point(core);
        } else {
            self.rewind(core, self.position());
            self.forget_passed(core);
        }
        Ok(())
    }

    /// Cuts the caches at the rollback point, which is not valid after that.
    fn restore_rollback_point(&mut self, core: &mut Core) {
        let point = self.speculation.rollback.as_mut();
        let (position, states) = point
            .and_then(|point| Some((point.position.take()?, point.sequence)))
            .expect("a step with drafts has copied the states");
        core.backend().truncate_sequence(self.sequence, position);
        core.backend().swap_states(self.sequence, states);
        self.truncate_cached(position);
    }
}
