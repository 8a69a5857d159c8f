//! Sessions as bytes: the original system's wire format, and files of our own.

use std::path::{Path, PathBuf};

use moeflux_core::atomic_file::Durability;

use super::{Checkpoints, Keep, Session, write_states};
use crate::error::EngineError;
use crate::snapshot::{self, Contents, SnapshotError, StateError, WireShape};

impl Session {
    /// Bytes that [`state_save`](Session::state_save) writes now; they grow
    /// with the position.
    ///
    /// # Errors
    /// Where the original system's format has no room for this model.
    pub fn state_size(&self) -> Result<usize, EngineError> {
        Ok(self.wire()?.size(self.position())?)
    }

    /// Writes what the model remembers in the original system's format, and
    /// says how many bytes that took. Keys and values become `f32`, whatever
    /// [`KvType`](crate::KvType) they are kept as; tokens are not part of it.
    ///
    /// # Errors
    /// Where `out` is too small, the format has no room for this model, or the
    /// device fails.
    pub fn state_save(&mut self, out: &mut [u8]) -> Result<usize, EngineError> {
        let engine = self.engine.clone();
        let wire = engine.wire()?;
        let need = wire.size(self.position())?;
        let have = out.len();
        let out = out.get_mut(..need).ok_or(StateError::BufferTooSmall { have, need })?;
        let core = &mut *engine.core();
        self.replay(core)?;
        wire.write(core.backend(), self.sequence, self.n_cached, out)?;
        Ok(need)
    }

    /// Replaces what the session holds by what
    /// [`state_save`](Session::state_save) or the original system wrote.
    /// Checkpoints are forgotten, and the tokens are unknown from now on: a
    /// prompt shares nothing with them.
    ///
    /// # Errors
    /// Where the bytes are not the state of such a model; nothing has changed
    /// then. Where the device fails; then the session is empty.
    pub fn state_load(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        let engine = self.engine.clone();
        let wire = engine.wire()?;
        let len = wire.check(bytes, engine.plan().ctx)?;
        let core = &mut *engine.core();
        self.empty(core);
        core.forget_predictions();
        let is_recurrent = engine.shape().is_recurrent() && len > 0;
        let states = self.or_empty(core, |core, sequence| {
            let states = wire.read(core.backend(), sequence, bytes)?;
            if is_recurrent {
                write_states(&engine, core, sequence, &states)?;
            }
            self.fill_entries(core, 0, len)?;
            Ok(states)
        })?;
        (self.n_unknown, self.n_cached) = (len, len);
        self.trail.iter_mut().for_each(|it| it.resume_at(len));
        if is_recurrent {
            self.checkpoints.insert(len, states, Keep::Base);
        }
        Ok(())
    }

    fn wire(&self) -> Result<&WireShape, StateError> {
        self.engine.wire()
    }

    /// Writes the session to a file, whole or not at all: what the model
    /// remembers, as it is kept; the tokens; and the last checkpoint. Only its
    /// owner may read the file (mode 0600 on Unix).
    ///
    /// # Errors
    /// Where the file cannot be written or the device fails.
    pub fn save(&mut self, path: &Path) -> Result<(), EngineError> {
        let contents = self.contents(self.position(), true)?;
        let (engine, sequence) = (self.engine.clone(), self.sequence);
        snapshot::write(&engine, sequence, &contents, path, Durability::Synced)
    }

    /// Replaces what the session holds by what [`save`](Session::save) wrote.
    /// Until that is done, the old and the new are both in memory.
    ///
    /// # Errors
    /// Where the file is no snapshot of this model under these options, or is
    /// damaged; nothing has changed then.
    pub fn load(&mut self, path: &Path) -> Result<(), EngineError> {
        self.load_until(path, None)
    }

    /// The family of the model that a file of [`save`](Session::save) belongs
    /// to, and its [`Engine::identity`](crate::Engine::identity), as the file's
    /// header says.
    ///
    /// # Errors
    /// Where the file is no snapshot.
    pub fn model_of(path: &Path) -> Result<(String, String), SnapshotError> {
        snapshot::model_of(path)
    }

    /// Keeps the first `position` positions in the engine's prompt cache, if it
    /// has one. The session must stand there or have a checkpoint there.
    ///
    /// # Errors
    /// As [`Session::save`], and where there is no checkpoint.
    pub fn store_prefix(&mut self, position: usize) -> Result<(), EngineError> {
        let stands_there = position == self.position();
        if position > self.position() || !stands_there && self.nearest(position) != position {
            return Err(EngineError::NoCheckpoint { position });
        }
        self.put(position, false)?;
        Ok(())
    }

    /// Keeps the session in the engine's prompt cache, if it has one, in place
    /// of what it kept of itself before.
    ///
    /// # Errors
    /// As [`Session::save`].
    pub fn store(&mut self) -> Result<(), EngineError> {
        self.stored = self.put(self.position(), true)?;
        Ok(())
    }

    /// Keeps what was read of a prompt in the engine's prompt cache, if it has
    /// one: the places where other prompts may part from it, ascending, and
    /// where more will follow, the end.
    ///
    /// # Errors
    /// As [`Session::save`].
    pub fn store_turn(&mut self, marks: &[usize], has_end: bool) -> Result<(), EngineError> {
        let before_end = if has_end { marks.len().saturating_sub(1) } else { marks.len() };
        // Without recurrent layers, the longest holds all shorter ones.
        let first = match self.engine.shape().is_recurrent() {
            true => 0,
            false if has_end => before_end,
            false => before_end.saturating_sub(1),
        };
        for mark in &marks[first..before_end] {
            match self.store_prefix(*mark) {
                // The budget of checkpoints is too small to remember that place.
                Err(EngineError::NoCheckpoint { .. }) => {}
                result => result?,
            }
        }
        if has_end { self.store() } else { Ok(()) }
    }

    fn put(
        &mut self,
        position: usize,
        with_last_checkpoint: bool,
    ) -> Result<Option<PathBuf>, EngineError> {
        let engine = self.engine.clone();
        let Some(store) = engine.prompt_cache() else { return Ok(None) };
        if position == 0 || self.n_unknown > 0 {
            return Ok(None);
        }
        let contents = self.contents(position, with_last_checkpoint)?;
        let previous = self.stored.as_deref().filter(|_| with_last_checkpoint);
        store.put(&engine, self.sequence, &contents, previous)
    }

    /// Loads a snapshot as far as `position`, or all of it.
    pub(super) fn load_until(
        &mut self,
        path: &Path,
        position: Option<usize>,
    ) -> Result<(), EngineError> {
        let engine = self.engine.clone();
        let loaded = snapshot::read(&engine, path, position)?;
        let core = &mut *engine.core();
        core.backend().drop_sequence(std::mem::replace(&mut self.sequence, loaded.sequence));
        core.forget_predictions();
        let Contents { n_unknown, tokens, states } = loaded.contents;
        (self.n_unknown, self.tokens) = (n_unknown, tokens);
        self.n_cached = self.position();
        let n_cached = self.n_cached;
        self.trail.iter_mut().for_each(|it| it.resume_at(n_cached));
        self.checkpoints = Checkpoints::new(engine.plan().checkpoint_bytes);
        for (position, states) in states {
            let is_base = n_unknown > 0 && position == self.n_cached;
            let keep = if is_base { Keep::Base } else { Keep::Asked };
            self.checkpoints.insert(position, states, keep);
        }
        Ok(())
    }

    /// What a snapshot at `position` holds beside keys and values.
    fn contents(
        &mut self,
        position: usize,
        with_last_checkpoint: bool,
    ) -> Result<Contents, EngineError> {
        let engine = self.engine.clone();
        let core = &mut *engine.core();
        self.replay(core)?;
        self.settle(core)?;
        let mut states = Vec::new();
        if engine.shape().is_recurrent() && position > 0 {
            // What follows may part from this at the mark before the end.
            let before = self.checkpoints.last_asked(position).filter(|_| with_last_checkpoint);
            states.extend(before.and_then(|it| Some((it, self.checkpoints.get(it)?))));
            let at_end = match self.checkpoints.get(position) {
                Some(states) => states,
                None => self.read_states(core)?,
            };
            states.push((position, at_end));
        }
        // Only where layers can be cut anywhere.
        let n_unknown = self.n_unknown.min(position);
        let tokens = self.tokens[..position - n_unknown].to_vec();
        Ok(Contents { n_unknown, tokens, states })
    }
}
