//! The interface of eviction policies.

use std::fmt::Debug;

use crate::experts::plan::Ordinal;

/// Chooses which resident expert is evicted.
pub(crate) trait Policy: Debug + Send {
    /// `n_uses` rows requested the expert, whether it was resident or not.
    fn touched(&mut self, expert: Ordinal, n_uses: f32);

    /// The request ends: all experts of a layer's rows have been passed to [`Policy::touched`].
    fn asked(&mut self) {}

    /// How much each expert is worth keeping, indexed by ordinal; `None` if the policy has nothing
    /// to save.
    fn weights(&self) -> Option<Vec<f32>> {
        None
    }

    /// Starts with weights that [`Policy::weights`] returned in an earlier process.
    fn restore(&mut self, _weights: &[f32]) {}

    /// The expert became resident, or its protection from eviction ended.
    fn inserted(&mut self, expert: Ordinal);

    /// The expert was evicted, or is protected from eviction.
    fn removed(&mut self, expert: Ordinal);

    /// The first expert to evict among the resident ones for which `may_leave` is true.
    fn victim(&self, may_leave: &dyn Fn(Ordinal) -> bool) -> Option<Ordinal>;
}
