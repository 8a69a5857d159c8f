//! Copies of recurrent states, by position: where a session can go back to.

use std::sync::Arc;

use moeflux_backend::Sequence;

/// What every recurrent cache of a sequence holds at one position, in the
/// order of the caches.
pub(crate) type States = Arc<[Vec<u8>]>;

/// Who wants a checkpoint to stay; the least go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keep {
    /// Nobody in particular: it shortens replays.
    Passing,
    /// Someone who will come back to it.
    Asked,
    /// The session itself: the tokens before are not known, so that nothing
    /// could be evaluated again. Never leaves.
    Base,
}

/// The checkpoints of one session, ascending by position, within a budget.
/// Position 0, where all states are zero, needs none.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    entries: Vec<Checkpoint>,
    budget: u64,
    /// Grows with every use.
    clock: u64,
}

#[derive(Debug)]
struct Checkpoint {
    position: usize,
    states: States,
    keep: Keep,
    last_use: u64,
}

impl Checkpoint {
    fn bytes(&self) -> u64 {
        self.states.iter().map(|it| it.len() as u64).sum()
    }
}

impl Checkpoints {
    pub(crate) fn new(budget: u64) -> Checkpoints {
        Checkpoints { entries: Vec::new(), budget, clock: 0 }
    }

    pub(crate) fn positions(&self) -> Vec<usize> {
        self.entries.iter().map(|it| it.position).collect()
    }

    /// The states at exactly this position; counts as a use.
    pub(crate) fn get(&mut self, position: usize) -> Option<States> {
        self.clock += 1;
        let found = self.entries.iter_mut().find(|it| it.position == position)?;
        found.last_use = self.clock;
        Some(found.states.clone())
    }

    /// The last position at or before `limit` that can be gone back to.
    pub(crate) fn nearest(&self, limit: usize) -> usize {
        let before = self.entries.iter().rev().find(|it| it.position <= limit);
        before.map_or(0, |it| it.position)
    }

    /// The last position before `limit` that somebody asked for.
    pub(crate) fn last_asked(&self, limit: usize) -> Option<usize> {
        let asked = |it: &&Checkpoint| it.position < limit && it.keep >= Keep::Asked;
        self.entries.iter().rev().find(asked).map(|it| it.position)
    }

    /// Whether a checkpoint of that size would stay: others make room, unless
    /// somebody wants them more.
    pub(crate) fn would_keep(&self, bytes: u64, keep: Keep) -> bool {
        let firm = self.entries.iter().filter(|it| it.keep > keep);
        keep == Keep::Base || firm.map(Checkpoint::bytes).sum::<u64>() + bytes <= self.budget
    }

    /// Keeps a checkpoint, replacing one at the same position; the least
    /// wanted and then the least recently used leave for it.
    pub(crate) fn insert(&mut self, position: usize, states: States, keep: Keep) {
        self.clock += 1;
        let mut new = Checkpoint { position, states, keep, last_use: self.clock };
        if let Some(i) = self.entries.iter().position(|it| it.position == position) {
            new.keep = new.keep.max(self.entries.remove(i).keep);
        }
        if !self.would_keep(new.bytes(), new.keep) {
            return;
        }
        let at = self.entries.partition_point(|it| it.position < position);
        self.entries.insert(at, new);
        self.leave(Some(position));
    }

    /// Gives a part of the budget away for good, where as much is left.
    pub(crate) fn lend(&mut self, bytes: u64) -> bool {
        let has_enough = self.budget >= bytes.saturating_mul(2);
        if has_enough {
            self.budget -= bytes;
            self.leave(None);
        }
        has_enough
    }

    /// Has checkpoints leave until the budget holds, but for the one at `position`.
    fn leave(&mut self, position: Option<usize>) {
        while self.entries.iter().map(Checkpoint::bytes).sum::<u64>() > self.budget {
            let may_leave =
                |it: &&Checkpoint| Some(it.position) != position && it.keep != Keep::Base;
            let leaves = self.entries.iter().filter(may_leave);
            let Some(first) = leaves.min_by_key(|it| (it.keep, it.last_use)) else { break };
            let first = first.position;
            self.entries.retain(|it| it.position != first);
        }
    }

    /// Forgets all behind `position`.
    pub(crate) fn forget_beyond(&mut self, position: usize) {
        self.entries.retain(|it| it.position <= position);
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

/// Recurrent states at a position, in a sequence of their own: those behind the last token
/// of a step that is no guess.
pub(crate) struct Mark {
    pub(super) sequence: Sequence,
    /// `None` where they are of no use any more.
    pub(super) position: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(bytes: usize) -> States {
        Arc::from(vec![vec![7; bytes]])
    }

    #[test]
    fn the_least_wanted_then_the_least_recently_used_leave() {
        let mut all = Checkpoints::new(30);
        all.insert(5, states(10), Keep::Asked);
        all.insert(2, states(10), Keep::Passing);
        all.insert(9, states(10), Keep::Asked);
        assert_eq!(all.positions(), [2, 5, 9]);
        all.insert(12, states(10), Keep::Asked);
        assert_eq!(all.positions(), [5, 9, 12]);
        assert!(all.get(5).is_some());
        all.insert(20, states(10), Keep::Asked);
        assert_eq!(all.positions(), [5, 12, 20]);
        // Nobody in particular wants this one.
        assert!(!all.would_keep(10, Keep::Passing));
        all.insert(30, states(10), Keep::Passing);
        assert_eq!(all.positions(), [5, 12, 20]);
    }

    #[test]
    fn a_part_of_the_budget_is_lent_where_as_much_is_left() {
        let mut all = Checkpoints::new(25);
        all.insert(4, states(10), Keep::Asked);
        all.insert(8, states(10), Keep::Asked);
        assert!(!all.lend(13));
        assert_eq!(all.positions(), [4, 8]);
        assert!(all.lend(12));
        assert_eq!(all.positions(), [8]);
        all.insert(9, states(13), Keep::Asked);
        assert_eq!(all.positions(), [9]);
    }

    #[test]
    fn the_base_stays_whatever_the_budget() {
        let mut all = Checkpoints::new(15);
        all.insert(4, states(100), Keep::Base);
        all.insert(6, states(10), Keep::Asked);
        assert_eq!(all.positions(), [4]);
        assert!(all.get(4).is_some() && all.get(6).is_none());
        all.forget_beyond(3);
        assert_eq!(all.nearest(10), 0);
    }

    #[test]
    fn too_large_a_checkpoint_replaces_nothing() {
        let mut all = Checkpoints::new(15);
        all.insert(4, states(10), Keep::Asked);
        assert!(!all.would_keep(16, Keep::Asked));
        all.insert(6, states(16), Keep::Asked);
        assert_eq!(all.positions(), [4]);
    }

    #[test]
    fn finds_the_nearest_and_the_last_that_was_asked_for() {
        let mut all = Checkpoints::new(100);
        all.insert(4, states(1), Keep::Asked);
        all.insert(8, states(1), Keep::Passing);
        assert_eq!([3, 4, 7, 8, 9].map(|it| all.nearest(it)), [0, 4, 4, 8, 8]);
        assert_eq!([4, 9].map(|it| all.last_asked(it)), [None, Some(4)]);
    }
}
