//! Experts of which a device has a copy. They are the first to be evicted from host memory, and
//! they are not prefetched into it.

use std::collections::BTreeSet;

use super::plan::Ordinal;

/// The experts that devices have copies of.
#[derive(Debug, Default)]
pub(super) struct DeviceCopies {
    experts: BTreeSet<Ordinal>,
    /// Those of `experts` that are resident in host memory too.
    spare: BTreeSet<Ordinal>,
}

impl DeviceCopies {
    /// Records that a device got a copy of an expert, or dropped it.
    pub(super) fn set(&mut self, expert: Ordinal, is_there: bool, is_resident: bool) {
        if is_there {
            self.experts.insert(expert);
            if is_resident {
                self.spare.insert(expert);
            }
        } else {
            self.experts.remove(&expert);
            self.spare.remove(&expert);
        }
    }

    /// Whether a device has a copy.
    pub(super) fn has(&self, expert: Ordinal) -> bool {
        self.experts.contains(&expert)
    }

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
