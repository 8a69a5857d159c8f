//! Experts of which a device has a copy: their slots here are the first to be
//! given to others, and nobody reads them ahead.

use std::collections::BTreeSet;

use super::{Desk, Entry};
use crate::plan::{Ordinal, Target};

/// What devices have.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    experts: BTreeSet<Ordinal>,
    /// Of these, the ones that are resident here too.
    spare: BTreeSet<Ordinal>,
}

impl Elsewhere {
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

impl Desk {
    /// Takes note that a device has an expert now, or has it no more.
    pub(crate) fn note_elsewhere(&mut self, target: Target, is_there: bool) {
        let Elsewhere { experts, spare } = &mut self.elsewhere;
        if is_there {
            experts.insert(target.ordinal);
            if matches!(self.entries[target.ordinal.idx()], Entry::Resident { .. }) {
                spare.insert(target.ordinal);
            }
        } else {
            experts.remove(&target.ordinal);
            spare.remove(&target.ordinal);
        }
    }

    /// Whether a device has the expert.
    pub(super) fn is_elsewhere(&self, target: Target) -> bool {
        self.elsewhere.experts.contains(&target.ordinal)
    }
}
