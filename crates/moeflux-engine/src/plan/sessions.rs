//! How many sessions memory has room for, where their number is left open.

use super::MemoryPlanner;
use super::planner::Sizes;

/// The part of the memory that weights and program leave which sessions may take where the expert
/// cache cannot have all experts: its slots decide the speed.
const SHARE: u64 = 4;

impl MemoryPlanner {
    /// The context that one session would have, and as many sessions of it as memory has room for:
    /// one, or up to `most` that leave the cache its room.
    pub(super) fn sizes_of_up_to(&self, most: usize) -> Sizes {
        let one = self.sizes_of(1);
        let of = |n_sessions: usize| Sizes {
            n_sessions,
            // A step has a row for every session.
            chunk: one.chunk.max(n_sessions),
            checkpoint_bytes: one.checkpoint_bytes.min(self.checkpoint_bytes(n_sessions)),
            ..one
        };
        let more = (2..=most).map(of).take_while(|sizes| self.leaves_room(sizes));
        more.last().unwrap_or(one)
    }

    /// Whether the cache still has all experts with these sessions, or the sessions take no more
    /// than their share.
    fn leaves_room(&self, sizes: &Sizes) -> bool {
        let own_memory = self.limits.memory_bytes.filter(|_| !self.limits.shares_memory);
        let (memory, others) = match own_memory {
            // Of a device the weights and sessions are there.
            Some(bytes) => (bytes / 10 * 9, self.model.resident_bytes),
            None => (self.spendable(), self.model.resident_bytes + self.model.program_bytes),
        };
        let share = memory.saturating_sub(others) / SHARE;
        let caches_all = own_memory.is_none() && self.may_cache_all(sizes);
        caches_all || self.sessions_bytes(sizes) <= share
    }
}
