//! The sessions of a scheduler, and which of them gets a prompt.

use moeflux_core::TokenId;

use super::answer::{Phase, Running};
use super::turns::Owner;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::session::{Session, reusable_end};

/// A session and its job.
pub(super) struct Slot {
    pub(super) session: Session,
    pub(super) running: Option<Running>,
    /// Whether the prefix cache has not been asked to write the session since its last job.
    pub(super) is_unsaved: bool,
    last_use: u64,
}

/// The shortest prefix for which a job waits while another job evaluates it.
const WORTH_WAITING: usize = 64;

/// The sessions of a scheduler.
pub(super) struct Pool {
    pub(super) slots: Vec<Slot>,
    /// Grows with every use of a session.
    clock: u64,
}

impl Pool {
    pub(super) fn new(engine: &Engine, n: usize) -> Pool {
        let slot =
            |_| Slot { session: engine.session(), running: None, is_unsaved: false, last_use: 0 };
        Pool { slots: (0..n).map(slot).collect(), clock: 0 }
    }

    pub(super) fn n_running(&self) -> usize {
        self.slots.iter().filter(|slot| slot.running.is_some()).count()
    }

    /// Whether a session has no job.
    pub(super) fn has_free(&self) -> bool {
        self.slots.iter().any(|slot| slot.running.is_none())
    }

    /// Jobs of an owner that have a session.
    pub(super) fn n_running_of(&self, owner: &Owner) -> usize {
        let running = self.slots.iter().filter_map(|slot| slot.running.as_ref());
        running.filter(|running| running.owner == *owner).count()
    }

    /// The free session for a prompt: the one that holds the longest prefix of it, unless that
    /// one would lose more tokens than it reuses, or lose any while another session is empty.
    /// Else the least recently used one.
    pub(super) fn choose(&self, tokens: &[TokenId]) -> Option<usize> {
        let free = || self.slots.iter().enumerate().filter(|(_, slot)| slot.running.is_none());
        let limit = reusable_end(tokens);
        let known = |slot: &Slot| slot.session.state.common_prefix(tokens, limit);
        let best = free().max_by_key(|(_, slot)| (known(slot), slot.last_use));
        let has_empty = free().any(|(_, slot)| slot.session.position() == 0);
        let fits = best.filter(|(_, slot)| match (known(slot), slot.session.position()) {
            (0, _) => false,
            (known, position) => known == position || (!has_empty && 2 * known >= position),
        });
        let oldest = || free().min_by_key(|(_, slot)| slot.last_use);
        fits.or_else(oldest).map(|(i, _)| i)
    }

    /// The session without a job that was used last.
    pub(super) fn newest_idle(&self) -> Option<usize> {
        let idle = self.slots.iter().enumerate().filter(|(_, slot)| slot.running.is_none());
        idle.max_by_key(|(_, slot)| slot.last_use).map(|(i, _)| i)
    }

    /// The least recently used of the sessions that have tokens and no job.
    pub(super) fn oldest_idle(&self) -> Option<usize> {
        let all = self.slots.iter().enumerate();
        let idle = all.filter(|(_, slot)| slot.running.is_none() && slot.session.position() > 0);
        idle.min_by_key(|(_, slot)| slot.last_use).map(|(i, _)| i)
    }

    /// Whether a running job is about to evaluate a long prefix of `tokens`, which can then be
    /// copied.
    pub(super) fn is_being_evaluated(&self, tokens: &[TokenId]) -> bool {
        self.slots.iter().any(|slot| {
            let Some(Running { phase: Phase::Prompt(n_done), prompt, .. }) = &slot.running else {
                return false;
            };
            let known = prompt.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            let n_common = known.min(reusable_end(tokens));
            // Recurrent states can only be copied at a checkpoint.
            let n_usable = match slot.session.checkpoints() {
                Some(_) => prompt
                    .checkpoints
                    .iter()
                    .copied()
                    .filter(|checkpoint| *checkpoint <= n_common)
                    .max(),
                None => Some(n_common),
            };
            n_usable.is_some_and(|n| n >= WORTH_WAITING && n > *n_done)
        })
    }

    /// Ends a session with the longest prefix of `tokens` that it, another session or the prefix
    /// cache holds, and returns the length of the prefix. What the session held and the prefix cache
    /// does not is put there before.
    pub(super) fn prepare(&mut self, i: usize, tokens: &[TokenId]) -> Result<usize, EngineError> {
        self.clock += 1;
        self.slots[i].last_use = self.clock;
        let others = self.slots.iter().enumerate().filter(|(other, _)| *other != i);
        let of_others = others.map(|(_, slot)| slot.session.copyable_prefix(tokens)).max();
        let session = &mut self.slots[i].session;
        let prefix = session.known_prefix(tokens, of_others.unwrap_or(0));
        if let Err(err) = session.set_aside(&prefix)
            && let Some(cache) = session.engine.prefix_cache()
        {
            // What is not kept is evaluated again.
            cache.note_failure(&err);
        }
        let mut n_known = session.go_on_from(prefix)?;
        for other in 0..self.slots.len() {
            if let Ok([own, other]) = self.slots.get_disjoint_mut([i, other]) {
                n_known = own.session.copy_prefix(&mut other.session, tokens, n_known)?;
            }
        }
        Ok(n_known)
    }
}
