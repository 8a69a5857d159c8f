//! The session itself, and how it is cut, rolled back and copied.

use std::path::PathBuf;

use moeflux_backend::Sequence;
use moeflux_core::TokenId;

use crate::engine::{Core, Engine};
use crate::error::EngineError;
use crate::rows::{RequestedRows, TableRows};
use crate::session::cache_copy::{read_states, write_states};
use crate::session::checkpoints::{Retention, StateCheckpoints};
use crate::session::timeline::Timeline;
use crate::session::windows::WindowCuts;
use crate::speculation::options::Speculation;
use crate::speculation::state::SpeculationState;

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
    pub(crate) sequence: Sequence,
    pub(crate) timeline: Timeline,
    pub(crate) checkpoints: StateCheckpoints,
    pub(crate) windows: WindowCuts,
    pub(crate) speculation: SpeculationState,
    /// Rows of tokens of the next step, requested before that begins.
    pub(crate) requested: Vec<RequestedRows>,
    /// The file of this session in the engine's prefix cache.
    pub(super) stored: Option<PathBuf>,
}

impl Engine {
    /// Begins an empty session.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }
}

impl Session {
    pub(crate) fn new(engine: Engine) -> Session {
        let sequence = engine.core().backend().new_sequence(&engine.shape().caches);
        let checkpoints = StateCheckpoints::new(engine.plan().checkpoint_bytes);
        let drafts = engine.speculation() != Speculation::Off;
        let speculation = SpeculationState::new(engine.shape(), drafts);
        let windows = WindowCuts::new(engine.shape().window());
        Session {
            engine,
            sequence,
            timeline: Timeline::default(),
            checkpoints,
            windows,
            speculation,
            requested: Vec::new(),
            stored: None,
        }
    }

    /// The tokens evaluated so far, without those of the first
    /// [`n_unknown`](Session::n_unknown) positions. [`EMBEDDED`](crate::EMBEDDED) stands for rows
    /// that were embeddings.
    pub fn tokens(&self) -> &[TokenId] {
        self.timeline.tokens()
    }

    /// Positions at the beginning whose tokens are not known. [`Session::state_load`] restores
    /// caches without the tokens that they were computed from.
    pub fn n_unknown(&self) -> usize {
        self.timeline.n_unknown()
    }

    /// The number of rows that a step has at most.
    pub(crate) fn chunk_rows(&self) -> usize {
        self.engine.plan().chunk
    }

    /// The number of logits of a token.
    pub(crate) fn vocab(&self) -> usize {
        self.engine.shape().vocab
    }

    /// The position of the next token.
    pub fn position(&self) -> usize {
        self.timeline.position()
    }

    /// Tokens that the caches do not hold and that the next step evaluates first.
    pub(crate) fn n_pending(&self) -> usize {
        self.timeline.pending().len()
    }

    /// Has rows of tables read for tokens that follow this session, as far as there is room for them;
    /// `None` where the model has no tables.
    pub(crate) fn request_rows(&self, tokens: &[TokenId]) -> Option<RequestedRows> {
        let rows = self.engine.rows()?;
        let before = self.timeline.tokens_before(self.position(), rows.context());
        Some(rows.request(before, tokens))
    }

    /// Has rows of tables read for tokens of the next step.
    pub(crate) fn request_next_rows(&mut self, tokens: &[TokenId]) {
        let requested = self.request_rows(tokens);
        self.requested.extend(requested);
    }

    /// The tokens in front of a position that rows of tables depend on.
    pub(super) fn tokens_before(&self, position: usize) -> Vec<TokenId> {
        let context = self.engine.rows().map_or(0, TableRows::context);
        self.timeline.tokens_before(position, context).to_vec()
    }

    /// How many more tokens the context has room for.
    pub(crate) fn n_free(&self) -> usize {
        self.engine.plan().ctx - self.position()
    }

    /// The earlier positions to which the session can return without evaluating tokens again;
    /// `None` where it can return to any.
    pub fn checkpoints(&self) -> Option<Vec<usize>> {
        match self.engine.shape().is_recurrent() {
            true => Some(self.checkpoints.positions()),
            false => self.windows.positions(),
        }
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
            self.windows.mark(position);
            return Ok(());
        }
        let (needed, budget) =
            (self.engine.plan().state_bytes, self.engine.plan().checkpoint_bytes);
        if !self.checkpoints.fits(needed, Retention::Requested) {
            return Err(EngineError::CheckpointBudget { needed, budget });
        }
        let engine = self.engine.clone();
        let core = &mut *engine.core();
        self.replay(core)?;
        let states = read_states(&engine, core, self.sequence)?;
        self.checkpoints.insert(position, states, Retention::Requested);
        Ok(())
    }

    /// Returns to a checkpoint and forgets the tokens after it. Position 0 always is one, and
    /// so is every position of a model without recurrent layers.
    ///
    /// # Errors
    /// Where there is no checkpoint at `position`; nothing has changed then.
    pub fn restore_to(&mut self, position: usize) -> Result<(), EngineError> {
        if position > self.position() || self.nearest(position) != position {
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
            self.go_back(self.nearest(position));
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

    /// The last position at or before `limit` to which the caches can be cut.
    pub(crate) fn nearest(&self, limit: usize) -> usize {
        match self.engine.shape().is_recurrent() {
            true => self.checkpoints.nearest(limit),
            false => self.windows.nearest(limit),
        }
    }

    /// Ends the session at a position to which the caches can be cut.
    pub(super) fn go_back(&mut self, position: usize) {
        let engine = self.engine.clone();
        self.checkpoints.truncate(position);
        self.rewind(&mut engine.core(), position.min(self.timeline.n_cached()));
        self.truncate_timeline(position);
    }

    /// Forgets the tokens from `position` on; the caches are cut apart from that.
    pub(crate) fn truncate_timeline(&mut self, position: usize) {
        self.timeline.truncate(position);
        self.speculation.truncate(position);
    }

    /// Cuts the caches at a position where they can be cut.
    pub(crate) fn rewind(&mut self, core: &mut Core, position: usize) {
        if position == 0 {
            core.backend().clear_sequence(self.sequence);
        } else {
            core.backend().truncate_sequence(self.sequence, position);
            if self.engine.shape().is_recurrent() {
                let states = self.checkpoints.get(position).expect("a checkpoint's position");
                // The sequence has held states before, so that they fit; a lost device is
                // reported by the next step.
                let _ = write_states(&self.engine, core, self.sequence, &states);
            }
        }
        self.windows.truncate(position);
        self.truncate_cached(position);
    }

    /// Whether the caches can be cut at certain positions only.
    pub(crate) fn has_cut_points(&self) -> bool {
        self.engine.shape().is_recurrent() || self.windows.from() > 0
    }

    /// Lets layers with a window forget what it has passed.
    pub(crate) fn forget_passed(&mut self, core: &mut Core) {
        if let Some(ends) = self.windows.advance(self.timeline.n_cached()) {
            core.backend().forget_passed(self.sequence, &ends);
        }
    }

    /// Records that the caches hold the first `n_cached` positions.
    pub(crate) fn truncate_cached(&mut self, n_cached: usize) {
        self.timeline.truncate_cached(n_cached);
        self.speculation.truncate_cached(n_cached);
    }

    /// Undoes a step that has failed: the session ends at `position` again. The caches held
    /// `n_cached` positions before the step; some layers may hold more.
    pub(super) fn undo(&mut self, core: &mut Core, position: usize, n_cached: usize) {
        self.checkpoints.truncate(n_cached);
        self.truncate_timeline(position);
        self.speculation.discard_rollback();
        self.rewind(core, self.nearest(n_cached));
    }

    /// Forgets everything, caches included.
    pub(super) fn empty(&mut self, core: &mut Core) {
        core.backend().clear_sequence(self.sequence);
        self.timeline = Timeline::default();
        self.checkpoints.clear();
        self.windows.truncate(0);
        self.speculation.resume_at(0);
    }

    /// Fills the caches of an empty session; where that fails, the session stays empty.
    pub(super) fn fill_or_clear<T>(
        &self,
        core: &mut Core,
        fill: impl FnOnce(&mut Core) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let filled = fill(core);
        #[cfg(test)]
        let filled = core.refuse().and(filled);
        if filled.is_err() {
            core.backend().clear_sequence(self.sequence);
        }
        filled
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut core = self.engine.core();
        core.backend().drop_sequence(self.sequence);
        if let Some(point) = &self.speculation.rollback {
            core.backend().drop_sequence(point.sequence);
        }
    }
}
