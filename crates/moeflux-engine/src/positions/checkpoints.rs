//! Copies of recurrent states by position, to which a session can return.

use std::sync::Arc;

/// The contents of every recurrent cache of a sequence at one position, in the order of the
/// caches.
pub(crate) type States = Arc<[Vec<u8>]>;

/// Why a checkpoint is kept. The lowest are evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Retention {
    /// It bounds how many tokens are evaluated again after a return to an earlier position.
    Periodic,
    /// The caller has asked for it and will return to it.
    Requested,
    /// The tokens before it are not known, so that they cannot be evaluated again. Never
    /// evicted.
    Base,
}

/// The checkpoints of one session within a budget of bytes.
///
/// Invariants: positions ascend and are at most the number of positions that the session's
/// caches hold. Position 0, where all states are zero, needs no checkpoint.
#[derive(Debug)]
pub(crate) struct StateCheckpoints {
    entries: Vec<Checkpoint>,
    budget: u64,
    /// Grows with every use.
    clock: u64,
}

#[derive(Debug)]
struct Checkpoint {
    position: usize,
    states: States,
    retention: Retention,
    last_use: u64,
}

impl Checkpoint {
    fn bytes(&self) -> u64 {
        self.states.iter().map(|state| state.len() as u64).sum()
    }
}

impl StateCheckpoints {
    pub(crate) fn new(budget: u64) -> StateCheckpoints {
        StateCheckpoints { entries: Vec::new(), budget, clock: 0 }
    }

    pub(crate) fn positions(&self) -> Vec<usize> {
        self.entries.iter().map(|entry| entry.position).collect()
    }

    /// The states at exactly this position; counts as a use.
    pub(crate) fn get(&mut self, position: usize) -> Option<States> {
        self.clock += 1;
        let found = self.entries.iter_mut().find(|entry| entry.position == position)?;
        found.last_use = self.clock;
        Some(found.states.clone())
    }

    /// The last position at or before `limit` that has a checkpoint, or 0.
    pub(crate) fn nearest(&self, limit: usize) -> usize {
        let before = self.entries.iter().rev().find(|entry| entry.position <= limit);
        before.map_or(0, |entry| entry.position)
    }

    /// The last position before `limit` whose checkpoint the caller has asked for.
    pub(crate) fn last_requested(&self, limit: usize) -> Option<usize> {
        let requested =
            |entry: &&Checkpoint| entry.position < limit && entry.retention >= Retention::Requested;
        self.entries.iter().rev().find(requested).map(|entry| entry.position)
    }

    /// Whether a checkpoint of that size would be kept: those of the same or a lower retention
    /// are evicted for it.
    pub(crate) fn fits(&self, bytes: u64, retention: Retention) -> bool {
        let firm = self.entries.iter().filter(|entry| entry.retention > retention);
        retention == Retention::Base
            || firm.map(Checkpoint::bytes).sum::<u64>() + bytes <= self.budget
    }

    /// Adds a checkpoint or replaces the one at the same position. Where the budget is exceeded,
    /// those of the lowest retention are evicted, the least recently used first.
    pub(crate) fn insert(&mut self, position: usize, states: States, retention: Retention) {
        self.clock += 1;
        let mut new = Checkpoint { position, states, retention, last_use: self.clock };
        if let Some(i) = self.entries.iter().position(|entry| entry.position == position) {
            new.retention = new.retention.max(self.entries.remove(i).retention);
        }
        if !self.fits(new.bytes(), new.retention) {
            return;
        }
        let at = self.entries.partition_point(|entry| entry.position < position);
        self.entries.insert(at, new);
        self.evict(Some(position));
    }

    /// Takes `bytes` out of the budget for good, if at least as much is left. Returns whether
    /// it was.
    pub(crate) fn reserve(&mut self, bytes: u64) -> bool {
        let has_enough = self.budget >= bytes.saturating_mul(2);
        if has_enough {
            self.budget -= bytes;
            self.evict(None);
        }
        has_enough
    }

    /// Evicts checkpoints until the budget holds, except the one at `protected`.
    fn evict(&mut self, protected: Option<usize>) {
        while self.entries.iter().map(Checkpoint::bytes).sum::<u64>() > self.budget {
            let is_evictable = |entry: &&Checkpoint| {
                Some(entry.position) != protected && entry.retention != Retention::Base
            };
            let evictable = self.entries.iter().filter(is_evictable);
            let Some(first) = evictable.min_by_key(|entry| (entry.retention, entry.last_use))
            else {
                break;
            };
            let first = first.position;
            self.entries.retain(|entry| entry.position != first);
        }
    }

    /// Drops the checkpoints after `position`.
    pub(crate) fn truncate(&mut self, position: usize) {
        self.entries.retain(|entry| entry.position <= position);
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(bytes: usize) -> States {
        Arc::from(vec![vec![7; bytes]])
    }

    #[test]
    fn the_lowest_retention_then_the_least_recently_used_is_evicted() {
        let mut all = StateCheckpoints::new(30);
        all.insert(5, states(10), Retention::Requested);
        all.insert(2, states(10), Retention::Periodic);
        all.insert(9, states(10), Retention::Requested);
        assert_eq!(all.positions(), [2, 5, 9]);
        all.insert(12, states(10), Retention::Requested);
        assert_eq!(all.positions(), [5, 9, 12]);
        assert!(all.get(5).is_some());
        all.insert(20, states(10), Retention::Requested);
        assert_eq!(all.positions(), [5, 12, 20]);
        assert!(!all.fits(10, Retention::Periodic));
        all.insert(30, states(10), Retention::Periodic);
        assert_eq!(all.positions(), [5, 12, 20]);
    }

    #[test]
    fn a_part_of_the_budget_is_reserved_where_as_much_is_left() {
        let mut all = StateCheckpoints::new(25);
        all.insert(4, states(10), Retention::Requested);
        all.insert(8, states(10), Retention::Requested);
        assert!(!all.reserve(13));
        assert_eq!(all.positions(), [4, 8]);
        assert!(all.reserve(12));
        assert_eq!(all.positions(), [8]);
        all.insert(9, states(13), Retention::Requested);
        assert_eq!(all.positions(), [9]);
    }

    #[test]
    fn the_base_stays_whatever_the_budget() {
        let mut all = StateCheckpoints::new(15);
        all.insert(4, states(100), Retention::Base);
        all.insert(6, states(10), Retention::Requested);
        assert_eq!(all.positions(), [4]);
        assert!(all.get(4).is_some() && all.get(6).is_none());
        all.truncate(3);
        assert_eq!(all.nearest(10), 0);
    }

    #[test]
    fn too_large_a_checkpoint_replaces_nothing() {
        let mut all = StateCheckpoints::new(15);
        all.insert(4, states(10), Retention::Requested);
        assert!(!all.fits(16, Retention::Requested));
        all.insert(6, states(16), Retention::Requested);
        assert_eq!(all.positions(), [4]);
    }

    #[test]
    fn finds_the_nearest_and_the_last_requested() {
        let mut all = StateCheckpoints::new(100);
        all.insert(4, states(1), Retention::Requested);
        all.insert(8, states(1), Retention::Periodic);
        assert_eq!([3, 4, 7, 8, 9].map(|limit| all.nearest(limit)), [0, 4, 4, 8, 8]);
        assert_eq!([4, 9].map(|limit| all.last_requested(limit)), [None, Some(4)]);
    }
}
