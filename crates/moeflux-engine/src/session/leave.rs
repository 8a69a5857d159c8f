//! What the prefix cache keeps of a session: before another prompt takes it, and between prompts.

use super::handle::{KeptTurn, Session};
use super::persist::{Extent, contents, may_be_kept};
use super::prefix::KnownPrefix;
use crate::error::EngineError;
use crate::snapshot::{Leaving, Occasion};

impl Session {
    /// Says what the prefix cache is to keep of the turn that begins.
    pub(crate) fn begin_turn(&mut self, turn: KeptTurn) {
        self.turn = turn;
    }

    /// Puts the session into the prefix cache before it goes on from `next`, unless that has its
    /// last prompt, or the cache does: in memory, else on the drive.
    ///
    /// # Errors
    /// Where the file cannot be written or the device fails; the session is as before then.
    pub(crate) fn set_aside(&mut self, next: &KnownPrefix) -> Result<(), EngineError> {
        let engine = self.engine.clone();
        let Some(cache) = engine.prefix_cache() else { return Ok(()) };
        let Some((end, turn_end)) = self.kept_positions() else { return Ok(()) };
        let tokens = &self.state.timeline.tokens()[..end];
        let n_known = || cache.n_known(tokens, turn_end).max(next.own);
        if turn_end < next.own + cache.min_tokens() || turn_end < n_known() + cache.min_tokens() {
            return Ok(());
        }
        let is_worth_writing = cache.is_worth_writing(tokens, turn_end, Occasion::Leaving);
        let contents = contents(self, end, Extent::Whole)?;
        let in_memory = cache.takes(&engine, &contents);
        if !in_memory && !is_worth_writing {
            return Ok(());
        }
        let (sequence, previous) = (self.state.sequence, self.stored.as_deref());
        let leaving = Leaving { sequence, contents, turn_end, previous };
        if in_memory {
            cache.keep(&engine, leaving, next.found.first())?;
        } else {
            cache.put(&engine, &leaving)?;
        }
        Ok(())
    }

    /// Has the prefix cache write the session to the drive while it pauses, if enough of it is new:
    /// without waiting where there is memory for that.
    ///
    /// # Errors
    /// As [`Session::set_aside`].
    pub(crate) fn write_behind(&mut self) -> Result<(), EngineError> {
        let engine = self.engine.clone();
        let Some(leaving) = self.worth_writing(Occasion::Pause)? else { return Ok(()) };
        let Some(cache) = engine.prefix_cache() else { return Ok(()) };
        let name = if cache.has_room_for(&engine, &leaving.contents) {
            Some(cache.write_behind(&engine, leaving)?)
        } else {
            cache.put(&engine, &leaving)?
        };
        self.stored = name;
        Ok(())
    }

    /// Writes the session to the drive, if enough of it is new.
    ///
    /// # Errors
    /// As [`Session::set_aside`].
    pub(crate) fn write_out(&mut self) -> Result<(), EngineError> {
        let engine = self.engine.clone();
        let Some(leaving) = self.worth_writing(Occasion::Leaving)? else { return Ok(()) };
        let Some(cache) = engine.prefix_cache() else { return Ok(()) };
        self.stored = cache.put(&engine, &leaving)?;
        Ok(())
    }

    /// What is to be written of the session, if anything.
    fn worth_writing(&mut self, occasion: Occasion) -> Result<Option<Leaving<'_>>, EngineError> {
        let engine = self.engine.clone();
        let Some(cache) = engine.prefix_cache() else { return Ok(None) };
        let Some((end, turn_end)) = self.kept_positions() else { return Ok(None) };
        let tokens = &self.state.timeline.tokens()[..end];
        if !cache.is_worth_writing(tokens, turn_end, occasion) {
            return Ok(None);
        }
        let contents = contents(self, end, Extent::Whole)?;
        if !cache.may_write(&contents) {
            return Ok(None);
        }
        let (sequence, previous) = (self.state.sequence, self.stored.as_deref());
        Ok(Some(Leaving { sequence, contents, turn_end, previous }))
    }

    /// The end of what is kept, and where the next turn parts from it; `None` where nothing is.
    fn kept_positions(&self) -> Option<(usize, usize)> {
        let KeptTurn { end: turn_end, has_answer } = self.turn;
        let position = self.state.position();
        let turn_end = turn_end.min(position);
        let end = if has_answer { position } else { turn_end };
        let can_end = end == position || self.state.nearest(end) == end;
        (turn_end > 0 && can_end && may_be_kept(self, end)).then_some((end, turn_end))
    }
}
