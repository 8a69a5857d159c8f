//! Tokens that are evaluated before it is known whether they come.

use std::sync::MutexGuard;

use moeflux_backend::StateSnapshot;
use moeflux_core::TokenId;

use super::{Guessed, Next, Part, Session, eval_next_together};
use crate::draft::{Drafts, Learned};
use crate::engine::Core;
use crate::error::EngineError;
use crate::session::Mark;

impl Session {
    /// Tokens that the caches do not hold, which the next step evaluates first.
    pub(crate) fn n_pending(&self) -> usize {
        self.position() - self.n_cached
    }

    /// These tokens.
    pub(super) fn pending(&self) -> &[TokenId] {
        &self.tokens[self.tokens.len() - self.n_pending()..]
    }

    /// Tokens that fit behind those that the session holds.
    pub(crate) fn n_free(&self) -> usize {
        self.engine.plan().ctx - self.position()
    }

    /// Tokens of a guess that there is room for behind the next token.
    pub(crate) fn guess_room(&self) -> usize {
        self.n_free().saturating_sub(1)
    }

    /// What the engine has learned of steps and guesses.
    pub(crate) fn learned(&self) -> MutexGuard<'_, Learned> {
        self.engine.learned()
    }

    /// Whether tokens are guessed.
    pub(crate) fn drafts(&self) -> Drafts {
        self.engine.drafts()
    }

    /// Whether tokens of a guess that are right are evaluated again where one behind them is
    /// taken back.
    pub(crate) fn evaluates_again(&self) -> bool {
        self.engine.shape().is_recurrent()
    }

    /// Has room for what is needed to take back guesses of the next step. False where there
    /// is no memory for that.
    pub(crate) fn mark(&mut self) -> bool {
        if !self.engine.shape().is_recurrent() {
            return true;
        }
        // The states lie where a checkpoint would.
        if self.mark.is_none() && !self.checkpoints.lend(self.engine.plan().state_bytes) {
            return false;
        }
        let engine = self.engine.clone();
        let core = &mut *engine.core();
        let mark = self.mark.get_or_insert_with(|| Mark {
            sequence: core.backend().new_sequence(&engine.shape().caches),
            position: None,
        });
        mark.position = None;
        core.backend().reserve_states(mark.sequence)
    }

    /// What is kept of a step whose first rows are no guess.
    pub(super) fn keep(&self, rows: usize) -> Option<StateSnapshot> {
        let mark = self.mark.as_ref().filter(|_| self.engine.shape().is_recurrent())?;
        Some(StateSnapshot { sequence: self.sequence, rows, to: mark.sequence })
    }

    /// The step has kept that, at a position.
    pub(super) fn has_kept(&mut self, position: usize) {
        self.mark.iter_mut().for_each(|it| it.position = Some(position));
    }

    /// Evaluates a token and a guess of what follows it, after [`mark`](Session::mark) where
    /// there is one: gives what may follow the token, and each of the guess.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`]; the session then ends where it did.
    pub(crate) fn eval_guess(
        &mut self,
        token: TokenId,
        guess: &[TokenId],
        n_leaders: Option<usize>,
    ) -> Result<Vec<Next>, EngineError> {
        let tokens = &[&[token], guess].concat();
        let part = Part { session: self, tokens, wants_logits: true, is_mark: false };
        let parts = &mut [Guessed { part, n_guessed: guess.len() }];
        Ok(eval_next_together(parts, n_leaders)?.pop().unwrap_or_default())
    }

    /// Ends the session before the last `n` tokens, guesses of the step before. Of a model
    /// with recurrent layers the next step then evaluates those that were right again.
    ///
    /// # Errors
    /// The device's, where a checkpoint is due.
    ///
    /// # Panics
    /// Where there was no room for states before the step.
    pub(crate) fn take_back(&mut self, n: usize) -> Result<(), EngineError> {
        let engine = self.engine.clone();
        let core = &mut *engine.core();
        if n == 0 {
            self.forget_mark();
            return self.snapshot_states(core, false);
        }
        self.tokens.truncate(self.tokens.len() - n);
        self.cut_trail();
        if engine.shape().is_recurrent() {
            self.return_to_mark(core);
        } else {
            self.rewind(core, self.position());
        }
        Ok(())
    }

    /// Nobody is going to return to it.
    pub(super) fn forget_mark(&mut self) {
        if let Some(mark) = &mut self.mark {
            mark.position = None;
        }
    }

    /// Sets the caches back to the mark, which is gone then.
    fn return_to_mark(&mut self, core: &mut Core) {
        let kept = self.mark.as_mut().and_then(|it| Some((it.position.take()?, it.sequence)));
        let (position, states) = kept.expect("states were kept in a step with a guess");
        core.backend().truncate_sequence(self.sequence, position);
        core.backend().swap_states(self.sequence, states);
        self.n_cached = position;
        self.trail.iter_mut().for_each(|it| it.cut_caches(position));
    }
}
