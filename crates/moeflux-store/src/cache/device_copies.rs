//! Experts of which a device has a copy: their slots here are the first to be
//! given to others, and nobody reads them ahead.

use std::collections::BTreeSet;

use crate::plan::Ordinal;

/// What devices have.
#[derive(Debug, Default)]
pub(super) struct DeviceCopies {
    pub(super) experts: BTreeSet<Ordinal>,
    /// Of these, the ones that are resident here too.
    pub(super) spare: BTreeSet<Ordinal>,
}

impl DeviceCopies {
    /// Takes note that an expert came into memory.
    pub(super) fn admit(&mut self, expert: Ordinal) {
        if self.experts.contains(&expert) {
            self.spare.insert(expert);
        }
    }

    /// Takes note that an expert left memory.
    pub(super) fn evict(&mut self, expert: Ordinal) {
        self.spare.remove(&expert);
    }

    /// Those that may leave before all others.
    pub(super) fn spare(&self) -> impl Iterator<Item = Ordinal> {
        self.spare.iter().copied()
    }
}
