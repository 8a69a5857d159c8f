//! The session itself, and how it is cut and rolled back.

use moeflux_core::TokenId;

use super::cache_copy::read_states;
use super::checks::check_prompt;
use super::evaluator::Evaluator;
use super::state::SessionState;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::positions::checkpoints::Retention;
use crate::positions::pictures::{Pictures, PromptPicture};
use crate::rows::RequestedRows;

/// A sequence of tokens and the model's caches for it. Sessions of an engine are isolated from
/// each other.
///
/// Caches of keys and values can be cut at any position, except that layers with a window forget
/// what it has passed: their sessions return to any of the last 512 positions and to the last two
/// that checkpoints were asked for. Recurrent states cannot be cut. Sessions of
/// models that have any keep copies of them, called checkpoints, within
/// [`Plan::checkpoint_bytes`](crate::Plan): those asked for with [`Session::checkpoint`] or
/// listed in a [`Prompt`](crate::Prompt), and some at regular distances in long evaluations.
pub struct Session {
    pub(crate) engine: Engine,
    pub(crate) state: SessionState,
    /// The name under which the engine's prefix cache has this conversation.
    pub(super) stored: Option<String>,
    /// What the prefix cache is to keep of it.
    pub(super) turn: KeptTurn,
}

/// What the prefix cache keeps of the last turn of a session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeptTurn {
    /// Where the next turn parts from this one; nothing is kept where that is 0.
    pub(crate) end: usize,
    /// Whether the answer is kept, too.
    pub(crate) has_answer: bool,
}

impl Engine {
    /// Begins an empty session.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }
}

impl Session {
    pub(crate) fn new(engine: Engine) -> Session {
        let state = SessionState::new(&engine);
        Session { engine, state, stored: None, turn: KeptTurn::default() }
    }

    /// The tokens evaluated so far, without those of the first
    /// [`n_unknown`](Session::n_unknown) positions. Rows of pictures are among them
    /// ([`PictureRows`](crate::PictureRows)), and [`EMBEDDED`](crate::EMBEDDED) stands for other rows
    /// that were embeddings.
    pub fn tokens(&self) -> &[TokenId] {
        self.state.timeline.tokens()
    }

    /// Positions at the beginning whose tokens are not known. [`Session::state_load`] restores
    /// caches without the tokens that they were computed from.
    pub fn n_unknown(&self) -> usize {
        self.state.timeline.n_unknown()
    }

    /// The position of the next token.
    pub fn position(&self) -> usize {
        self.state.timeline.position()
    }

    /// Names the pictures of a prompt that this session begins, before tokens that stand for their rows
    /// are evaluated. All that the session holds are among them. The caller keeps them in memory until then.
    ///
    /// # Errors
    /// Where they do not stand in `tokens`, which is the prompt from its first position on, or are not
    /// this model's.
    pub fn expect_pictures(
        &mut self,
        tokens: &[TokenId],
        pictures: &[PromptPicture],
    ) -> Result<(), EngineError> {
        check_prompt(&self.engine, tokens, pictures)?;
        let pictures = Pictures::of(pictures, self.engine.shape());
        self.state.timeline.expect(pictures);
        Ok(())
    }

    /// Has rows of tables read for tokens that follow this session, as far as there is room for them;
    /// `None` where the model has no tables.
    pub(crate) fn request_rows(&self, tokens: &[TokenId]) -> Option<RequestedRows> {
        let rows = self.engine.rows()?;
        let (timeline, position) = (&self.state.timeline, self.position());
        let before = timeline.vocabulary_before(position, rows.context());
        Some(rows.request(&before, &timeline.pictures().in_vocabulary(position, tokens)))
    }

    /// Has rows of tables read for tokens of the next step.
    pub(crate) fn request_next_rows(&mut self, tokens: &[TokenId]) {
        let requested = self.request_rows(tokens);
        self.state.requested.extend(requested);
    }

    /// The earlier positions to which the session can return without evaluating tokens again;
    /// `None` where it can return to any.
    pub fn checkpoints(&self) -> Option<Vec<usize>> {
        self.state.cut_points()
    }

    /// Makes a checkpoint at `position`, which must be [`Session::position`].
    ///
    /// # Errors
    /// Where `position` is another one, the device fails, or the budget does not allow for the
    /// copy; nothing has changed then.
    pub fn checkpoint(&mut self, position: usize) -> Result<(), EngineError> {
        if position != self.position() {
            return Err(EngineError::WrongPosition { position, actual: self.position() });
        }
        if position == 0 || !self.engine.shape().is_recurrent() {
            self.state.windows.mark(position);
            return Ok(());
        }
        let (needed, budget) =
            (self.engine.plan().state_bytes, self.engine.plan().checkpoint_bytes);
        if !self.state.checkpoints.fits(needed, Retention::Requested) {
            return Err(EngineError::CheckpointBudget { needed, budget });
        }
        let Session { engine, state, .. } = self;
        let core = &mut *engine.core();
        Evaluator { engine, core, state }.replay()?;
        let states = read_states(engine, core, state.sequence)?;
        state.checkpoints.insert(position, states, Retention::Requested);
        Ok(())
    }

    /// Returns to a checkpoint and forgets the tokens after it. Position 0 always is one, and
    /// so is every position of a model without recurrent layers.
    ///
    /// # Errors
    /// Where there is no checkpoint at `position`; nothing has changed then.
    pub fn restore_to(&mut self, position: usize) -> Result<(), EngineError> {
        if position > self.position() || self.state.nearest(position) != position {
            return Err(EngineError::NoCheckpoint { position });
        }
        self.go_back(position);
        Ok(())
    }

    /// Forgets the tokens from `position` on. Where recurrent states have to return to an
    /// earlier checkpoint, the session ends there. Returns how many tokens before `position`
    /// the caller has to evaluate again.
    ///
    /// # Errors
    /// Where the session ends before `position`; nothing has changed then.
    pub fn truncate(&mut self, position: usize) -> Result<usize, EngineError> {
        if position > self.position() {
            return Err(EngineError::BeyondEnd { position, end: self.position() });
        }
        if position < self.position() {
            self.go_back(self.state.nearest(position));
        }
        Ok(position - self.position())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.go_back(0);
        self.engine.core().forget_predictions();
    }

    /// Hits and misses of the prediction of experts, one each for every expert that a decoded
    /// token used.
    pub fn prefetch_stats(&self) -> (u64, u64) {
        let stats = self.engine.stats();
        (stats.prefetch_hits, stats.prefetch_misses)
    }

    /// Ends the session at a position to which the caches can be cut.
    fn go_back(&mut self, position: usize) {
        let Session { engine, state, .. } = self;
        Evaluator { engine, core: &mut engine.core(), state }.go_back(position);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut core = self.engine.core();
        core.backend().drop_sequence(self.state.sequence);
        if let Some(point) = &self.state.speculation.rollback {
            core.backend().drop_sequence(point.sequence);
        }
    }
}
