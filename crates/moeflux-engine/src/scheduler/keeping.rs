//! What goes from sessions to the prefix cache: between jobs, at the end, and what is said of a job that
//! begins.

use super::job::Job;
use super::pool::Slot;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::session::{KeptTurn, Session};
use crate::snapshot::Occasion;

/// The copies of the recurrent state that a session needs for a checkpoint where its turn begins: one
/// lent to drafts, one at the end of its first messages, one behind the question, and that one.
const STATES_FOR_BEGINNINGS: u64 = 4;

/// Tokens that are evaluated again rather than made a step of their own for.
const NEAR: usize = 32;

/// Has a session written, if enough of it is new, while nothing else is to be done.
pub(super) fn write_behind(slot: &mut Slot) {
    slot.is_unsaved = false;
    let done = slot.session.write_behind();
    note(&slot.session.engine, done);
}

/// Writes a session before others see it, or it ends.
pub(super) fn write_out(slot: &mut Slot) {
    slot.is_unsaved = false;
    let done = slot.session.write_out();
    note(&slot.session.engine, done);
}

/// Has what left sessions written, if enough of it is new.
pub(super) fn write_images(engine: &Engine) {
    if let Some(cache) = engine.prefix_cache() {
        cache.write_images(Occasion::Pause);
    }
}

/// Writes all that left sessions, and waits for it.
pub(super) fn finish(engine: &Engine) {
    if let Some(cache) = engine.prefix_cache() {
        cache.write_images(Occasion::Leaving);
        cache.wait_for_writer();
    }
}

/// Says what is kept of a job that begins, of whose prompt the session has `n_reused` tokens, and
/// which of its checkpoints are made.
pub(super) fn begin_turn(slot: &mut Slot, job: &mut Job, n_reused: usize) {
    let prompt = &mut job.prompt;
    let is_scored = job.prompt_logprobs.is_some();
    let end = prompt.checkpoints.last().copied().unwrap_or(prompt.tokens.len());
    let end = if is_scored { 0 } else { end };
    slot.session.begin_turn(KeptTurn { end, has_answer: job.keeps_answer });
    slot.is_unsaved = !is_scored;
    keep_beginning(&mut slot.session, n_reused);
    let made = slot.session.checkpoints();
    let is_near = |at: usize| match &made {
        // Where caches can be cut anywhere a checkpoint would be a step for nothing.
        None => !slot.session.engine.shape().has_cut_points(),
        Some(made) => made.iter().any(|other| *other <= at && at < *other + NEAR),
    };
    let last = prompt.checkpoints.last().copied();
    prompt.checkpoints.retain(|at| !is_near(*at) || Some(*at) == last && made.is_some());
}

/// Makes a checkpoint where a turn begins, to which a client returns that changes its question: where
/// the answer before it ended, or its first message did.
fn keep_beginning(session: &mut Session, n_reused: usize) {
    let plan = session.engine.plan();
    let has_room =
        plan.state_bytes > 0 && plan.checkpoint_bytes / plan.state_bytes >= STATES_FOR_BEGINNINGS;
    let is_made = session.checkpoints().is_some_and(|made| made.contains(&n_reused));
    if has_room && n_reused > 0 && session.position() == n_reused && !is_made {
        // One that cannot be made costs an evaluation at most.
        let _ = session.checkpoint(n_reused);
    }
}

/// A job that failed leaves nothing to keep.
pub(super) fn forget_turn(slot: &mut Slot) {
    slot.session.begin_turn(KeptTurn::default());
    slot.is_unsaved = false;
}

/// A session that is not stored is evaluated again.
fn note(engine: &Engine, stored: Result<(), EngineError>) {
    if let (Err(err), Some(cache)) = (stored, engine.prefix_cache()) {
        cache.note_failure(&err);
    }
}
