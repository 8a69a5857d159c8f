//! One timeline of tokens and what the model remembers of it.

mod batch;
pub(crate) mod checkpoints;
mod eval;
mod foresight;
mod guess;
mod persist;
mod reuse;
#[cfg(test)]
mod tests;
mod trail;

use std::path::PathBuf;

use moeflux_backend::{Cache, Sequence};
use moeflux_core::TokenId;

pub(crate) use self::batch::{Guessed, eval_next_together};
pub use self::batch::{Part, eval_together};
pub(crate) use self::checkpoints::{Checkpoints, Keep, States};
pub(crate) use self::eval::Next;
pub use self::eval::{Logits, LogitsSink};
pub(crate) use self::foresight::{Foreseeing, foresee_together};
pub use self::reuse::{Prompt, Read};
use crate::draft::Drafts;
use crate::engine::{Core, Engine};
use crate::error::EngineError;
use crate::session::checkpoints::Mark;
use crate::session::trail::Trail;

/// One mutable timeline. Sessions of an engine are isolated from each other.
///
/// Caches of keys and values can be cut at any position. Recurrent states
/// cannot, so sessions of models that have any keep copies of them, called
/// checkpoints, within [`Plan::checkpoint_bytes`](crate::Plan): those asked for
/// with [`Session::checkpoint`] or marked in a [`Prompt`], and in long
/// evaluations some in between.
pub struct Session {
    engine: Engine,
    sequence: Sequence,
    /// Positions at the beginning whose tokens are not known.
    n_unknown: usize,
    /// Everything evaluated behind them.
    tokens: Vec<TokenId>,
    /// How many positions the caches hold. Less than all after a step that
    /// failed half-way: the next step evaluates the rest again first.
    ///
    /// Invariant: no checkpoint is behind it, and where tokens are unknown it
    /// is not before their end.
    n_cached: usize,
    checkpoints: Checkpoints,
    /// The recurrent states before a guess.
    mark: Option<Mark>,
    /// What multi-token prediction goes by, where the model has it.
    trail: Option<Trail>,
    /// What this session keeps of itself in the prompt cache.
    stored: Option<PathBuf>,
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
        let checkpoints = Checkpoints::new(engine.plan().checkpoint_bytes);
        let (shape, is_followed) = (engine.shape(), engine.drafts() != Drafts::Off);
        let trail = shape.has_mtp().then(|| Trail::new(shape, is_followed));
        Session {
            engine,
            sequence,
            n_unknown: 0,
            tokens: Vec::new(),
            n_cached: 0,
            checkpoints,
            mark: None,
            trail,
            stored: None,
        }
    }

    /// The tokens evaluated so far, those of the first
    /// [`n_unknown`](Session::n_unknown) positions left out.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Positions at the beginning whose tokens nobody knows:
    /// [`state_load`](Session::state_load) brings what the model remembers of
    /// tokens, without the tokens.
    pub fn n_unknown(&self) -> usize {
        self.n_unknown
    }

    /// Rows that a step has at most.
    pub(crate) fn chunk_rows(&self) -> usize {
        self.engine.plan().chunk
    }

    /// How many logits a token has.
    pub(crate) fn vocab(&self) -> usize {
        self.engine.shape().vocab
    }

    /// The position of the next token.
    pub fn position(&self) -> usize {
        self.n_unknown + self.tokens.len()
    }

    /// The positions before this one that the session can go back to at no
    /// cost; `None` where it can go back to any.
    pub fn checkpoints(&self) -> Option<Vec<usize>> {
        self.engine.shape().is_recurrent().then(|| self.checkpoints.positions())
    }

    /// Remembers how things are at `position`, which must be the session's.
    ///
    /// # Errors
    /// Where the session is elsewhere, the device fails, or the budget does not
    /// allow for the copy; nothing has changed then.
    pub fn checkpoint(&mut self, position: usize) -> Result<(), EngineError> {
        if position != self.position() {
            return Err(EngineError::WrongPosition { position, actual: self.position() });
        }
        if position == 0 || !self.engine.shape().is_recurrent() {
            return Ok(());
        }
        let (needed, budget) =
            (self.engine.plan().state_bytes, self.engine.plan().checkpoint_bytes);
        if !self.checkpoints.would_keep(needed, Keep::Asked) {
            return Err(EngineError::CheckpointBudget { needed, budget });
        }
        let engine = self.engine.clone();
        let core = &mut *engine.core();
        self.replay(core)?;
        let states = self.read_states(core)?;
        self.checkpoints.insert(position, states, Keep::Asked);
        Ok(())
    }

    /// Goes back to a checkpoint and forgets all behind it. Position 0 always
    /// is one, and so is every position of a model without recurrent layers.
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

    /// Forgets all behind `position`, and says how many tokens before it have
    /// to be evaluated again: recurrent states go back to the nearest
    /// checkpoint at or before `position`, and so does the session.
    ///
    /// # Errors
    /// Where the session does not reach that far; nothing has changed then.
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

    /// Hits and misses of the prediction of experts, one each for every expert
    /// that a decoded token used.
    pub fn prefetch_stats(&self) -> (u64, u64) {
        let stats = self.engine.stats();
        (stats.prefetch_hits, stats.prefetch_misses)
    }

    /// The last position at or before `limit` that the caches can stand at.
    fn nearest(&self, limit: usize) -> usize {
        if self.engine.shape().is_recurrent() { self.checkpoints.nearest(limit) } else { limit }
    }

    /// Ends the timeline at a position that the caches can stand at.
    fn go_back(&mut self, position: usize) {
        let engine = self.engine.clone();
        self.checkpoints.forget_beyond(position);
        self.rewind(&mut engine.core(), position.min(self.n_cached));
        self.n_unknown = self.n_unknown.min(position);
        self.tokens.truncate(position - self.n_unknown);
        self.cut_trail();
    }

    /// The text ends here now.
    fn cut_trail(&mut self) {
        let position = self.position();
        self.trail.iter_mut().for_each(|it| it.cut(position));
    }

    /// Sets the caches back to a position that they can stand at.
    fn rewind(&mut self, core: &mut Core, position: usize) {
        if position == 0 {
            core.backend().clear_sequence(self.sequence);
        } else {
            core.backend().truncate_sequence(self.sequence, position);
            if self.engine.shape().is_recurrent() {
                let states = self.checkpoints.get(position).expect("a checkpoint's position");
                // There is memory for the states of a sequence that has stood there;
                // a device that is lost says so at the next step.
                let _ = write_states(&self.engine, core, self.sequence, &states);
            }
        }
        self.n_cached = position;
        self.trail.iter_mut().for_each(|it| it.cut_caches(position));
    }

    /// Takes back a step to `position`, all of which or some layers of which the
    /// caches hold; they held `n_cached` positions before.
    fn undo(&mut self, core: &mut Core, position: usize, n_cached: usize) {
        self.checkpoints.forget_beyond(n_cached);
        self.tokens.truncate(position - self.n_unknown);
        self.cut_trail();
        self.forget_mark();
        self.rewind(core, self.nearest(n_cached));
    }

    /// Forgets everything, caches included.
    fn empty(&mut self, core: &mut Core) {
        core.backend().clear_sequence(self.sequence);
        (self.n_cached, self.n_unknown) = (0, 0);
        self.tokens.clear();
        self.checkpoints.clear();
        self.trail.iter_mut().for_each(|it| it.resume_at(0));
    }

    /// Fills the caches of a session that is empty, and stays so where that fails.
    fn or_empty<T>(
        &self,
        core: &mut Core,
        fill: impl FnOnce(&mut Core, Sequence) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let filled = fill(core, self.sequence);
        #[cfg(test)]
        let filled = core.refuse().and(filled);
        if filled.is_err() {
            core.backend().clear_sequence(self.sequence);
        }
        filled
    }

    /// Copies the recurrent states.
    fn read_states(&self, core: &mut Core) -> Result<States, EngineError> {
        let read = |cache| core.backend().save_cache(self.sequence, cache, 0..0);
        let states: Result<Vec<Vec<u8>>, _> = recurrent(&self.engine).map(read).collect();
        Ok(States::from(states?))
    }
}

/// Overwrites the recurrent states of a sequence.
fn write_states(
    engine: &Engine,
    core: &mut Core,
    sequence: Sequence,
    states: &States,
) -> Result<(), EngineError> {
    for (cache, bytes) in recurrent(engine).zip(&**states) {
        core.backend().load_cache(sequence, cache, 0..0, bytes)?;
    }
    Ok(())
}

/// Positions of a cache that are copied at once.
const COPIED_POSITIONS: usize = 1024;

/// Copies the first `end` keys and values of one sequence to another, which
/// is empty.
fn copy_keys_and_values(
    engine: &Engine,
    core: &mut Core,
    from: Sequence,
    to: Sequence,
    end: usize,
) -> Result<(), EngineError> {
    let caches = engine.shape().caches.iter().zip(0..).filter(|(it, _)| !it.is_recurrent());
    for cache in caches.map(|(_, i)| Cache(i)) {
        for start in (0..end).step_by(COPIED_POSITIONS) {
            let positions = start..end.min(start + COPIED_POSITIONS);
            let bytes = core.backend().save_cache(from, cache, positions.clone())?;
            core.backend().load_cache(to, cache, positions, &bytes)?;
        }
    }
    Ok(())
}

/// The recurrent caches of a model.
fn recurrent(engine: &Engine) -> impl Iterator<Item = Cache> {
    let caches = engine.shape().caches.iter().zip(0..);
    caches.filter(|(it, _)| it.is_recurrent()).map(|(_, i)| Cache(i))
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut core = self.engine.core();
        core.backend().drop_sequence(self.sequence);
        if let Some(mark) = &self.mark {
            core.backend().drop_sequence(mark.sequence);
        }
    }
}
