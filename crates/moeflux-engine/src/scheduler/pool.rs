//! The sessions of a scheduler, and which of them a prompt is best given to.

use moeflux_core::TokenId;

use super::answer::{Phase, Running};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::session::Session;

/// A session, and the job that it is busy with.
pub(super) struct Slot {
    pub(super) session: Session,
    pub(super) running: Option<Running>,
    /// Marks of what it holds and the prompt cache does not have yet.
    pub(super) unsaved: Option<Vec<usize>>,
    last_use: u64,
}

/// Tokens that are worth waiting for while another job reads them.
const WORTH_WAITING: usize = 64;

/// All of them.
pub(super) struct Pool {
    pub(super) slots: Vec<Slot>,
    clock: u64,
}

impl Pool {
    pub(super) fn new(engine: &Engine, n: usize) -> Pool {
        let slot =
            |_| Slot { session: engine.session(), running: None, unsaved: None, last_use: 0 };
        Pool { slots: (0..n).map(slot).collect(), clock: 0 }
    }

    pub(super) fn n_running(&self) -> usize {
        self.slots.iter().filter(|it| it.running.is_some()).count()
    }

    /// The free session that a prompt is best given to: the one that holds most
    /// of it, unless it would forget more than that, or forget at all while
    /// another is empty; else the one unused for longest.
    pub(super) fn choose(&self, tokens: &[TokenId]) -> Option<usize> {
        let free = || self.slots.iter().enumerate().filter(|(_, it)| it.running.is_none());
        let limit = tokens.len().saturating_sub(1);
        let known = |slot: &Slot| slot.session.own_prefix(tokens, limit);
        let best = free().max_by_key(|(_, it)| (known(it), it.last_use));
        let has_empty = free().any(|(_, it)| it.session.position() == 0);
        let fits = best.filter(|(_, it)| match (known(it), it.session.position()) {
            (0, _) => false,
            (known, position) => known == position || (!has_empty && 2 * known >= position),
        });
        let oldest = || free().min_by_key(|(_, it)| it.last_use);
        fits.or_else(oldest).map(|(i, _)| i)
    }

    /// The session that holds something, runs nothing, and was unused for longest.
    pub(super) fn oldest_idle(&self) -> Option<usize> {
        let all = self.slots.iter().enumerate();
        let idle = all.filter(|(_, it)| it.running.is_none() && it.session.position() > 0);
        idle.min_by_key(|(_, it)| it.last_use).map(|(i, _)| i)
    }

    /// Whether a running job is about to read what another prompt begins with,
    /// so that waiting for it saves reading that twice.
    pub(super) fn is_being_read(&self, tokens: &[TokenId]) -> bool {
        self.slots.iter().any(|slot| {
            let Some(Running { phase: Phase::Prompt(n_done), job, .. }) = &slot.running else {
                return false;
            };
            let known = job.prompt.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            let n_common = known.min(tokens.len().saturating_sub(1));
            // Recurrent states can only be taken over where there is a checkpoint.
            let n_usable = match slot.session.checkpoints() {
                Some(_) => job.prompt.marks.iter().copied().filter(|it| *it <= n_common).max(),
                None => Some(n_common),
            };
            n_usable.is_some_and(|it| it >= WORTH_WAITING && it > *n_done)
        })
    }

    /// Brings a session to the end of the longest prefix of `tokens` that needs
    /// no evaluation, whichever session or file holds it; gives its length.
    pub(super) fn prepare(&mut self, i: usize, tokens: &[TokenId]) -> Result<usize, EngineError> {
        self.clock += 1;
        self.slots[i].last_use = self.clock;
        let mut n_known = self.slots[i].session.reuse(tokens)?;
        for other in 0..self.slots.len() {
            if let Ok([own, other]) = self.slots.get_disjoint_mut([i, other]) {
                n_known = own.session.adopt(&mut other.session, tokens, n_known)?;
            }
        }
        Ok(n_known)
    }
}
