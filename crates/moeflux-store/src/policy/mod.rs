//! Which resident expert leaves when a slot is needed.

mod frequency;
mod lru;

use std::fmt::Debug;

use crate::CachePolicy;
use crate::plan::Ordinal;
use frequency::Frequency;
use lru::Lru;

/// An order of leaving.
pub(crate) trait Policy: Debug + Send {
    /// The expert was asked for by so many rows, resident or not.
    fn touched(&mut self, expert: Ordinal, n_uses: f32);

    /// Routers considered the expert: the sum of its scores over the rows of a
    /// step, whether they chose it or not.
    fn scored(&mut self, _expert: Ordinal, _score: f32) {}

    /// Whether scores are of use.
    fn wants_scores(&self) -> bool {
        false
    }

    /// How much each expert is worth keeping, by ordinal; nothing where the
    /// policy learns nothing that lasts.
    fn weights(&self) -> Option<Vec<f32>> {
        None
    }

    /// Takes up what [`Policy::weights`] gave in an earlier life.
    fn restore(&mut self, _weights: &[f32]) {}

    /// The expert became resident.
    fn inserted(&mut self, expert: Ordinal);

    /// The expert has left.
    fn removed(&mut self, expert: Ordinal);

    /// The first to leave of those resident experts that may.
    fn victim(&self, may_leave: &dyn Fn(Ordinal) -> bool) -> Option<Ordinal>;
}

/// How much a score of one weighs beside a use.
const SCORE_SHARE: f32 = 1.0;

/// Makes a policy for a bank of `n_experts`.
pub(crate) fn policy(choice: CachePolicy, n_experts: usize) -> Box<dyn Policy> {
    match choice {
        CachePolicy::Lru => Box::new(Lru::new(n_experts)),
        CachePolicy::Frequency => Box::new(Frequency::new(n_experts, None)),
        CachePolicy::Score => Box::new(Frequency::new(n_experts, Some(SCORE_SHARE))),
    }
}

/// Counts the hits that a cache of `n_slots` would have had on a trace of
/// requested experts, one after another.
#[cfg(test)]
pub(crate) fn replay(
    trace: &[moeflux_core::ExpertKey],
    n_slots: usize,
    choice: CachePolicy,
) -> u64 {
    let mut ordinals = std::collections::HashMap::new();
    for &key in trace {
        let next = u32::try_from(ordinals.len()).expect("experts should fit 32 bits");
        ordinals.entry(key).or_insert(Ordinal(next));
    }
    let mut cache = crate::replay::Cache::new(choice, ordinals.len(), n_slots);
    trace.iter().map(|key| u64::from(cache.request(ordinals[key]))).sum()
}

#[cfg(test)]
mod tests;
