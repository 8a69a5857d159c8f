//! Sessions as bytes: the wire format of the original system, and snapshot files.

use std::path::Path;

use moeflux_core::atomic_file::Durability;

use super::cache_copy::{read_states, write_states, zero_mtp_caches};
use super::evaluator::Evaluator;
use super::handle::Session;
use crate::error::{EngineError, SnapshotError, StateError};
use crate::positions::checkpoints::{Retention, StateCheckpoints, States};
use crate::positions::pictures::Pictures;
use crate::positions::timeline::Timeline;
use crate::positions::windows::WindowCuts;
use crate::snapshot::{self, Contents, Leaving, Loaded};

impl Session {
    /// The bytes that [`Session::state_save`] writes now. They grow with the position.
    ///
    /// # Errors
    /// Where the original system's format has no room for this model.
    pub fn state_size(&self) -> Result<usize, EngineError> {
        Ok(self.engine.wire()?.size(self.state.position())?)
    }

    /// Writes the caches in the original system's format and returns the number of bytes
    /// written. Keys and values become `f32`, whatever [`KvType`](crate::KvType) they have in
    /// the caches. Tokens are not part of it.
    ///
    /// # Errors
    /// Where `out` is too small, the format has no room for this model, or the
    /// device fails.
    pub fn state_save(&mut self, out: &mut [u8]) -> Result<usize, EngineError> {
        self.state.check_plain()?;
        let Session { engine, state, .. } = self;
        let wire = engine.wire()?;
        let need = wire.size(state.position())?;
        let have = out.len();
        let out = out.get_mut(..need).ok_or(StateError::BufferTooSmall { have, need })?;
        if state.windows.from() > 0 {
            return Err(StateError::Forgotten { end: state.position() }.into());
        }
        let core = &mut *engine.core();
        Evaluator { engine, core, state }.replay()?;
        wire.write(core.backend(), state.sequence, state.timeline.n_cached(), out)?;
        Ok(need)
    }

    /// Replaces the session by a state that [`Session::state_save`] or the original system has
    /// written. Checkpoints are dropped. The tokens are not known, so that no prompt has a
    /// prefix in common with them.
    ///
    /// # Errors
    /// Where the bytes are not the state of such a model; nothing has changed
    /// then. Where the device fails; then the session is empty.
    pub fn state_load(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        let Session { engine, state, .. } = self;
        let wire = engine.wire()?;
        let len = wire.check(bytes, engine.plan().ctx)?;
        let core = &mut *engine.core();
        Evaluator { engine, core, state }.empty();
        core.forget_predictions();
        let is_recurrent = engine.shape().is_recurrent() && len > 0;
        let sequence = state.sequence;
        let states = Evaluator { engine, core, state }.fill_or_clear(|core| {
            let states = wire.read(core.backend(), sequence, bytes)?;
            if is_recurrent {
                write_states(engine, core, sequence, &states)?;
            }
            zero_mtp_caches(engine, core, sequence, 0..len)?;
            Ok(states)
        })?;
        state.timeline = Timeline::cached(len, Vec::new(), Pictures::default());
        state.speculation.resume_at(len);
        if is_recurrent {
            state.checkpoints.insert(len, states, Retention::Base);
        }
        Ok(())
    }

    /// Writes the session to a file, whole or not at all: the caches in their own precision, the
    /// tokens, and the last requested checkpoint. Only the owner may read the file (mode 0600 on
    /// Unix).
    ///
    /// # Errors
    /// Where the file cannot be written or the device fails.
    pub fn save(&mut self, path: &Path) -> Result<(), EngineError> {
        self.state.check_plain()?;
        let end = self.state.position();
        let contents = contents(self, end, Extent::WithLast)?;
        snapshot::write(&self.engine, self.state.sequence, &contents, path, Durability::Synced)
    }

    /// Replaces the session by one that [`Session::save`] has written. Until the file is read,
    /// both are in memory.
    ///
    /// # Errors
    /// Where the file is no snapshot of this model under these options, or is damaged; nothing
    /// has changed then.
    pub fn load(&mut self, path: &Path) -> Result<(), EngineError> {
        load_until(self, path, None)
    }

    /// Reads from the header of a file of [`Session::save`] the family of its model and the
    /// model's [`Engine::identity`](crate::Engine::identity).
    ///
    /// # Errors
    /// Where the file is no snapshot.
    pub fn model_of(path: &Path) -> Result<(String, String), SnapshotError> {
        snapshot::model_of(path)
    }

    /// Stores the first `position` positions in the engine's prefix cache, if it has one and the
    /// positions hold tokens alone ([`Session::eval_rows`]). The session must end there or have a checkpoint there.
    ///
    /// # Errors
    /// As [`Session::save`], and where there is no checkpoint.
    pub fn store_prefix(&mut self, position: usize) -> Result<(), EngineError> {
        let end = self.state.position();
        if position > end || position != end && self.state.nearest(position) != position {
            return Err(EngineError::NoCheckpoint { position });
        }
        self.put(position, false)?;
        Ok(())
    }

    /// Stores the session in the engine's prefix cache, if it has one and the session holds tokens
    /// alone ([`Session::eval_rows`]), and removes the entry
    /// that this method stored before.
    ///
    /// # Errors
    /// As [`Session::save`].
    pub fn store(&mut self) -> Result<(), EngineError> {
        self.stored = self.put(self.state.position(), true)?;
        Ok(())
    }

    fn put(
        &mut self,
        position: usize,
        with_last_checkpoint: bool,
    ) -> Result<Option<String>, EngineError> {
        let engine = self.engine.clone();
        let Some(cache) = engine.prefix_cache().filter(|_| may_be_kept(self, position)) else {
            return Ok(None);
        };
        let extent = if with_last_checkpoint { Extent::WithLast } else { Extent::End };
        let contents = contents(self, position, extent)?;
        let previous = self.stored.as_deref().filter(|_| with_last_checkpoint);
        let sequence = self.state.sequence;
        cache.put(&engine, &Leaving { sequence, contents, turn_end: position, previous })
    }
}

/// The positions whose recurrent states a snapshot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// The end alone.
    End,
    /// And the last checkpoint that was asked for before it.
    WithLast,
    /// And all checkpoints before it, as far as a snapshot keeps them.
    Whole,
}

/// Whether the first `position` positions hold known tokens alone.
pub(super) fn may_be_kept(session: &Session, position: usize) -> bool {
    let timeline = &session.state.timeline;
    position > 0 && timeline.n_unknown() == 0 && position <= timeline.n_told()
}

/// The contents of a snapshot at `position`, apart from keys and values.
pub(super) fn contents(
    session: &mut Session,
    position: usize,
    extent: Extent,
) -> Result<Contents, EngineError> {
    let Session { engine, state, .. } = session;
    let core = &mut *engine.core();
    let mut evaluator = Evaluator { engine, core, state };
    evaluator.replay()?;
    evaluator.flush_mtp()?;
    let mut states = Vec::new();
    if engine.shape().is_recurrent() && position > 0 {
        let before = match extent {
            Extent::End => Vec::new(),
            // Later prompts may differ from the last requested checkpoint on.
            Extent::WithLast => state.checkpoints.last_requested(position).into_iter().collect(),
            Extent::Whole => state.checkpoints.positions(),
        };
        let before = before.into_iter().filter(|at| *at < position);
        states.extend(before.filter_map(|at| Some((at, state.checkpoints.get(at)?))));
        let at_end = match state.checkpoints.get(position) {
            Some(states) => states,
            None => read_states(engine, core, state.sequence)?,
        };
        states.push((position, at_end));
    } else if state.has_cut_points() && position > 0 {
        let before = match extent {
            Extent::End => Vec::new(),
            Extent::WithLast => state.windows.last_mark(position).into_iter().collect(),
            Extent::Whole => state.windows.positions().unwrap_or_default(),
        };
        let before = before.into_iter().filter(|at| *at < position);
        states.extend(before.chain([position]).map(|at| (at, States::default())));
    }
    // Smaller than all only where caches can be cut anywhere.
    let n_unknown = state.timeline.n_unknown().min(position);
    let tokens = state.timeline.tokens()[..position - n_unknown].to_vec();
    let pictures = state.timeline.pictures().until(position);
    let mut contents = Contents { n_unknown, tokens, pictures, states };
    contents.thin();
    Ok(contents)
}

/// Loads a snapshot as far as `position`, or all of it.
fn load_until(
    session: &mut Session,
    path: &Path,
    position: Option<usize>,
) -> Result<(), EngineError> {
    let loaded = snapshot::read(&session.engine, path, position)?;
    take_over(session, loaded);
    Ok(())
}

/// Replaces a session by what was loaded.
pub(super) fn take_over(session: &mut Session, loaded: Loaded) {
    let Session { engine, state, .. } = session;
    let core = &mut *engine.core();
    core.backend().drop_sequence(std::mem::replace(&mut state.sequence, loaded.sequence));
    core.forget_predictions();
    let Contents { n_unknown, tokens, pictures, states } = loaded.contents;
    state.timeline = Timeline::cached(n_unknown, tokens, pictures);
    let end = state.position();
    state.speculation.resume_at(end);
    state.checkpoints = StateCheckpoints::new(engine.plan().checkpoint_bytes);
    let cuts: Vec<usize> = states.iter().map(|(position, _)| *position).collect();
    state.windows = WindowCuts::filled(engine.shape().window(), &cuts);
    if !engine.shape().is_recurrent() {
        return;
    }
    for (position, states) in states {
        let is_base = n_unknown > 0 && position == end;
        let retention = if is_base { Retention::Base } else { Retention::Requested };
        state.checkpoints.insert(position, states, retention);
    }
}
