//! Whose turn it is: owners of jobs get sessions in turns, and share the places of the queue.

use std::collections::HashMap;
use std::sync::Arc;

/// Whose job it is; jobs without an owner are of one.
pub(super) type Owner = Option<Arc<str>>;

/// The jobs that wait, by owner.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    n: usize,
    by_owner: HashMap<Owner, usize>,
}

impl Waiting {
    /// Jobs of all owners.
    pub(super) fn n(&self) -> usize {
        self.n
    }

    /// Lets `n` jobs of an owner wait if there is room among `most`. An owner leaves as many places
    /// free as it takes, so that one alone never fills the queue.
    pub(super) fn enter(&mut self, owner: &Owner, n: usize, most: usize) -> bool {
        let free = most.saturating_sub(self.n);
        let own = self.by_owner.get(owner).copied().unwrap_or(0);
        let wanted = if owner.is_some() { own + n } else { n };
        if wanted > free {
            return false;
        }
        self.n += n;
        *self.by_owner.entry(owner.clone()).or_default() += n;
        true
    }

    /// A job of an owner waits no more.
    pub(super) fn leave(&mut self, owner: &Owner) {
        self.n -= 1;
        if let Some(own) = self.by_owner.get_mut(owner) {
            *own -= 1;
            if *own == 0 {
                self.by_owner.remove(owner);
            }
        }
    }
}

/// When owners were served.
#[derive(Debug, Default)]
pub(super) struct Turns {
    last: HashMap<Owner, u64>,
    clock: u64,
}

impl Turns {
    /// Which of the waiting jobs, given with their owners in the order of their arrival, is next:
    /// one of the owner with the fewest running jobs, of these the one that was served longest ago.
    pub(super) fn next<'a>(
        &self,
        waiting: impl Iterator<Item = (usize, &'a Owner)>,
        n_running: impl Fn(&Owner) -> usize,
    ) -> Option<usize> {
        let last = |owner: &Owner| self.last.get(owner).copied().unwrap_or(0);
        let next = waiting.min_by_key(|(i, owner)| (n_running(owner), last(owner), *i));
        next.map(|(i, _)| i)
    }

    /// A job of an owner has got a session.
    pub(super) fn took(&mut self, owner: &Owner) {
        self.clock += 1;
        self.last.insert(owner.clone(), self.clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> Owner {
        Some(name.into())
    }

    #[test]
    fn owners_take_turns_and_keep_their_order() {
        let mut turns = Turns::default();
        let mut waiting: Vec<Owner> = ["a", "a", "a", "a", "b", "c", "b"].map(owner).to_vec();
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let next = turns.next(waiting.iter().enumerate(), |_| 0).unwrap();
            let taken = waiting.remove(next);
            turns.took(&taken);
            order.push(taken.unwrap().to_string());
        }
        assert_eq!(order, ["a", "b", "c", "a", "b", "a", "a"]);
    }

    #[test]
    fn who_has_fewer_sessions_is_next() {
        let turns = Turns::default();
        let waiting = ["a", "b"].map(owner);
        let next = turns.next(waiting.iter().enumerate(), |name| usize::from(*name == owner("a")));
        assert_eq!(next, Some(1));
        assert_eq!(turns.next(std::iter::empty(), |_| 0), None);
    }

    #[test]
    fn one_owner_leaves_room_for_others() {
        let mut waiting = Waiting::default();
        let n = (0..20).filter(|_| waiting.enter(&owner("a"), 1, 16)).count();
        assert_eq!(n, 8);
        let n = (0..20).filter(|_| waiting.enter(&owner("b"), 1, 16)).count();
        assert_eq!(n, 4);
        assert!(waiting.enter(&owner("c"), 2, 16) && !waiting.enter(&owner("c"), 1, 16));
        assert_eq!(waiting.n(), 14);
        waiting.leave(&owner("a"));
        assert!(waiting.enter(&owner("c"), 1, 16));
        // Without owners all places are for all.
        let mut waiting = Waiting::default();
        assert!(waiting.enter(&None, 16, 16) && !waiting.enter(&None, 1, 16));
    }
}
