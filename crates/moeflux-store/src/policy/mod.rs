//! Which resident expert leaves when a slot is needed.

mod frequency;
mod lru;

use std::collections::HashMap;
use std::fmt::Debug;

use moeflux_core::ExpertKey;

use crate::CachePolicy;
use crate::plan::Ordinal;
use frequency::Frequency;
use lru::Lru;

/// An order of leaving.
pub(crate) trait Policy: Debug + Send {
    /// The expert was asked for, resident or not.
    fn touched(&mut self, expert: Ordinal);

    /// The expert became resident.
    fn inserted(&mut self, expert: Ordinal);

    /// The expert has left.
    fn removed(&mut self, expert: Ordinal);

    /// The first to leave of those resident experts that may.
    fn victim(&self, may_leave: &dyn Fn(Ordinal) -> bool) -> Option<Ordinal>;
}

/// Makes a policy for a bank of `n_experts`.
pub(crate) fn policy(choice: CachePolicy, n_experts: usize) -> Box<dyn Policy> {
    match choice {
        CachePolicy::Lru => Box::new(Lru::new(n_experts)),
        CachePolicy::Frequency => Box::new(Frequency::new(n_experts)),
    }
}

/// Counts the hits that a cache of `n_slots` would have had on a trace of
/// requested experts, one after another.
pub fn replay(trace: &[ExpertKey], n_slots: usize, choice: CachePolicy) -> u64 {
    let mut ordinals = HashMap::new();
    for &key in trace {
        let next = u32::try_from(ordinals.len()).expect("experts should fit 32 bits");
        ordinals.entry(key).or_insert(Ordinal(next));
    }
    let mut policy = policy(choice, ordinals.len());
    let mut resident = vec![false; ordinals.len()];
    let mut n_resident = 0;
    let mut n_hits = 0;
    for expert in trace.iter().map(|key| ordinals[key]) {
        policy.touched(expert);
        if resident[expert.idx()] {
            n_hits += 1;
            continue;
        }
        if n_resident == n_slots {
            let Some(victim) = policy.victim(&|_| true) else { continue };
            policy.removed(victim);
            resident[victim.idx()] = false;
            n_resident -= 1;
        }
        policy.inserted(expert);
        resident[expert.idx()] = true;
        n_resident += 1;
    }
    n_hits
}

#[cfg(test)]
mod tests;
