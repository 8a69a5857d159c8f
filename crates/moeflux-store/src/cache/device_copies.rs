//! Experts of which a device has a copy. They are the first to be evicted from host memory, and
//! they are not prefetched into it.

use std::collections::BTreeSet;

use crate::plan::Ordinal;

/// The experts that devices have copies of.
#[derive(Debug, Default)]
pub(super) struct DeviceCopies {
    pub(super) experts: BTreeSet<Ordinal>,
    /// Those of `experts` that are resident in host memory too.
    pub(super) spare: BTreeSet<Ordinal>,
}

impl DeviceCopies {
    /// Records that an expert became resident in host memory.
    pub(super) fn admit(&mut self, expert: Ordinal) {
        if self.experts.contains(&expert) {
            self.spare.insert(expert);
        }
    }

    /// Records that an expert was evicted from host memory.
    pub(super) fn evict(&mut self, expert: Ordinal) {
        self.spare.remove(&expert);
    }

    /// The experts to evict before all others.
    pub(super) fn spare(&self) -> impl Iterator<Item = Ordinal> {
        self.spare.iter().copied()
    }
}
