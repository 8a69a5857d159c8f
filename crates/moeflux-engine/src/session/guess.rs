//! Tokens that are evaluated before it is known whether they come.

use std::sync::MutexGuard;

use moeflux_backend::Sequence;
use moeflux_core::TokenId;

use super::{Guessed, Next, Part, Session, eval_next_together};
use crate::draft::{Drafts, Learned};
use crate::engine::Core;
use crate::error::EngineError;

/// Recurrent states at a position, in a sequence of their own.
pub(super) struct Mark {
    pub(super) sequence: Sequence,
    /// `None` where they are of no use any more.
    position: Option<usize>,
}

/// Tokens behind the mark with which another guess is made.
const MOST_PENDING: usize = 2;

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

    /// Tokens of a guess that there is room for behind the next token. None where too many
    /// are pending: with every further guess that is wrong they would be evaluated once more.
    pub(crate) fn guess_room(&self) -> usize {
        if self.n_pending() > MOST_PENDING { 0 } else { self.n_free().saturating_sub(1) }
    }

    /// What the engine has learned of steps and guesses.
    pub(crate) fn learned(&self) -> MutexGuard<'_, Learned> {
        self.engine.learned()
    }

    /// Whether tokens are guessed.
    pub(crate) fn drafts(&self) -> Drafts {
        self.engine.drafts()
    }

    /// Rows of a step of one token that are evaluated again where something behind them is
    /// taken back; `None` where none are.
    pub(crate) fn rows_again(&self) -> Option<usize> {
        self.engine.shape().is_recurrent().then_some(1 + self.n_pending())
    }

    /// Keeps what is needed to take back tokens of the next step. False where there is no
    /// memory for that.
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
        let is_kept = core.backend().copy_states(self.sequence, mark.sequence);
        mark.position = is_kept.then_some(self.n_cached);
        is_kept
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
    /// Where states were not marked before the step.
    pub(crate) fn take_back(&mut self, n: usize) -> Result<(), EngineError> {
        let engine = self.engine.clone();
        let core = &mut *engine.core();
        if n == 0 {
            self.forget_mark();
            return self.keep_states(core, false);
        }
        self.tokens.truncate(self.tokens.len() - n);
        self.cut_trail();
        if engine.shape().is_recurrent() {
            let marked = self.mark.as_ref().and_then(|it| it.position);
            self.return_to_mark(core, marked.expect("states are marked before a guess"));
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

    /// Sets the caches back to the mark, if there is one at that position, which is gone
    /// then.
    pub(super) fn return_to_mark(&mut self, core: &mut Core, position: usize) -> bool {
        let Some(mark) = self.mark.as_mut().filter(|it| it.position == Some(position)) else {
            return false;
        };
        mark.position = None;
        core.backend().truncate_sequence(self.sequence, position);
        core.backend().swap_states(self.sequence, mark.sequence);
        self.n_cached = position;
        self.trail.iter_mut().for_each(|it| it.cut_caches(position));
        true
    }
}
