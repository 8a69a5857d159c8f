//! The part of the prefix cache that is in memory: images of sessions that others took, and what of
//! them is still to be written.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use moeflux_core::TokenId;

use super::drive::reusable;
use super::host::ModelCard;
use super::image::{Image, n_common};
use super::lock::locked;

/// How long a session that is taken waits for the writer to make room for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Images within a budget of bytes; the least recently used leave.
#[derive(Debug)]
pub(super) struct Shelf {
    budget: u64,
    model: ModelCard,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    /// Grows with every use.
    clock: u64,
    is_closed: bool,
}

#[derive(Debug)]
struct Entry {
    name: String,
    image: Arc<Image>,
    /// The file that this one replaces on the drive.
    previous: Option<String>,
    last_use: u64,
    stage: Stage,
    life: Life,
}

/// What becomes of an image on the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is not there.
    Fresh,
    /// It is to be written next.
    Queued,
    Writing,
    /// It is there, or is not wanted there.
    Settled,
}

/// How long an image stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Until others need its room.
    Kept,
    /// Until it is written: its session is still there.
    Written,
}

/// An image that comes.
pub(super) struct Arrival {
    pub(super) name: String,
    pub(super) image: Image,
    /// The name of an earlier one of the same conversation.
    pub(super) previous: Option<String>,
    pub(super) life: Life,
}

/// An image that begins like a prompt.
#[derive(Clone, Debug)]
pub(crate) struct Shelved {
    pub(super) name: String,
    pub(super) image: Arc<Image>,
    pub(super) n_reusable: usize,
}

/// An image that is to be written.
pub(super) struct Task {
    pub(super) name: String,
    pub(super) image: Arc<Image>,
    pub(super) previous: Option<String>,
}

impl Shelf {
    pub(super) fn new(budget: u64, model: ModelCard) -> Shelf {
        Shelf { budget, model, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Whether an image of this size may be kept: others make room for it.
    pub(super) fn takes(&self, n_bytes: u64) -> bool {
        n_bytes <= self.budget
    }

    /// Whether one fits without another that leaves.
    pub(super) fn has_room_for(&self, n_bytes: u64) -> bool {
        locked(&self.state).n_bytes().saturating_add(n_bytes) <= self.budget
    }

    /// The images that share a prefix with the first `limit` of `tokens`.
    pub(super) fn candidates(&self, tokens: &[TokenId], limit: usize) -> Vec<Shelved> {
        let state = locked(&self.state);
        let of = |entry: &Entry| {
            let contents = entry.image.contents();
            let n_common = n_common(&contents.tokens, tokens).min(limit);
            let states: Vec<usize> = contents.states.iter().map(|(at, _)| *at).collect();
            let n_reusable = reusable(&self.model, &states, n_common);
            let (name, image) = (entry.name.clone(), Arc::clone(&entry.image));
            (n_reusable > 0).then_some(Shelved { name, image, n_reusable })
        };
        state.entries.iter().filter_map(of).collect()
    }

    /// Marks an image as recently used.
    pub(super) fn touch(&self, name: &str) {
        let mut state = locked(&self.state);
        state.clock += 1;
        let now = state.clock;
        if let Some(entry) = state.entries.iter_mut().find(|entry| entry.name == name) {
            entry.last_use = now;
        }
    }

    /// Adds an image that the shelf [takes](Shelf::takes). `expendable` may go first: its session
    /// comes back. What has to leave is queued for the drive where `is_worth_writing`, and is
    /// waited for.
    pub(super) fn insert(
        &self,
        arrival: Arrival,
        expendable: Option<&str>,
        is_worth_writing: &dyn Fn(&Image) -> bool,
    ) {
        let Arrival { name, mut image, mut previous, life } = arrival;
        let mut state = locked(&self.state);
        state.entries.retain(|entry| entry.name != name);
        let at = previous.as_deref().and_then(|name| state.position(name));
        if let Some(earlier) = at.map(|at| state.entries.remove(at)) {
            image.inherit(&self.model, &earlier.image);
            if matches!(earlier.stage, Stage::Fresh | Stage::Queued) {
                previous = earlier.previous;
            }
        }
        state.entries.retain(|entry| !is_superseded(&entry.image, &image));
        let deadline = Instant::now() + PATIENCE;
        while state.n_bytes().saturating_add(image.n_bytes()) > self.budget {
            if let Some(at) = expendable.and_then(|name| state.position(name)) {
                state.entries.remove(at);
                continue;
            }
            let Some(at) = state.next_to_leave() else { break };
            let entry = &mut state.entries[at];
            if entry.stage == Stage::Fresh && is_worth_writing(&entry.image) {
                entry.stage = Stage::Queued;
                self.changed.notify_all();
            }
            let is_late = Instant::now() >= deadline;
            if is_late || matches!(entry.stage, Stage::Fresh | Stage::Settled) {
                state.entries.remove(at);
            } else {
                state = self.wait_until(state, deadline);
            }
        }
        state.clock += 1;
        let last_use = state.clock;
        let stage = if life == Life::Written { Stage::Queued } else { Stage::Fresh };
        let image = Arc::new(image);
        state.entries.push(Entry { name, image, previous, last_use, stage, life });
        state.write_ahead(self.budget / 2, is_worth_writing);
        self.changed.notify_all();
    }

    /// Queues those that are not on the drive and that `is_worth_writing`.
    pub(super) fn queue(&self, is_worth_writing: &dyn Fn(&Image) -> bool) {
        let mut state = locked(&self.state);
        for entry in &mut state.entries {
            if entry.stage == Stage::Fresh && is_worth_writing(&entry.image) {
                entry.stage = Stage::Queued;
            }
        }
        self.changed.notify_all();
    }

    /// Waits until all that is queued is written.
    pub(super) fn wait_for_writer(&self) {
        let mut state = locked(&self.state);
        let is_busy = |entry: &Entry| matches!(entry.stage, Stage::Queued | Stage::Writing);
        while !state.is_closed && state.entries.iter().any(is_busy) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next image to write, once there is one; `None` after [`Shelf::close`].
    pub(super) fn next_task(&self) -> Option<Task> {
        let mut state = locked(&self.state);
        loop {
            if state.is_closed {
                return None;
            }
            let queued = state.entries.iter_mut().filter(|entry| entry.stage == Stage::Queued);
            if let Some(entry) = queued.min_by_key(|entry| entry.last_use) {
                entry.stage = Stage::Writing;
                let (name, image) = (entry.name.clone(), Arc::clone(&entry.image));
                return Some(Task { name, image, previous: entry.previous.clone() });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The drive has an image. What another prompt may have counted on stays otherwise.
    pub(super) fn settle(&self, name: &str, is_written: bool) {
        let mut state = locked(&self.state);
        if let Some(at) = state.position(name) {
            state.entries[at].stage = Stage::Settled;
            if is_written && state.entries[at].life == Life::Written {
                state.entries.remove(at);
            }
        }
        self.changed.notify_all();
    }

    /// Ends the writer after what it writes now.
    pub(super) fn close(&self) {
        locked(&self.state).is_closed = true;
        self.changed.notify_all();
    }

    fn wait_until<'a>(
        &self,
        state: MutexGuard<'a, State>,
        deadline: Instant,
    ) -> MutexGuard<'a, State> {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout(state, left);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl State {
    fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name == name)
    }

    fn n_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.image.n_bytes()).sum()
    }

    /// The least recently used of those that can leave at once, else of all.
    fn next_to_leave(&self) -> Option<usize> {
        let entries = self.entries.iter().enumerate();
        let first =
            entries.min_by_key(|(_, entry)| (entry.stage != Stage::Settled, entry.last_use));
        first.map(|(at, _)| at)
    }

    /// Queues the least recently used until no more than `n_bytes` are not on the drive, so that room
    /// is made without waiting.
    fn write_ahead(&mut self, n_bytes: u64, is_worth_writing: &dyn Fn(&Image) -> bool) {
        let mut fresh: Vec<&mut Entry> =
            self.entries.iter_mut().filter(|entry| entry.stage == Stage::Fresh).collect();
        fresh.sort_by_key(|entry| entry.last_use);
        let mut n_fresh: u64 = fresh.iter().map(|entry| entry.image.n_bytes()).sum();
        for entry in fresh {
            if n_fresh <= n_bytes {
                break;
            }
            n_fresh -= entry.image.n_bytes();
            let is_worth_it = is_worth_writing(&entry.image);
            entry.stage = if is_worth_it { Stage::Queued } else { Stage::Settled };
        }
    }
}

/// Whether an image has nothing that a later one lacks.
fn is_superseded(old: &Image, new: &Image) -> bool {
    let (old, new) = (old.contents(), new.contents());
    let has_state = |(at, _): &(usize, _)| new.states.iter().any(|(position, _)| position == at);
    new.tokens.starts_with(&old.tokens) && old.states.iter().all(has_state)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use moeflux_backend::{CacheSpec, KvType};
    use moeflux_model::ModelShape;

    use super::*;
    use crate::options::Activations;

    /// A model of keys and values alone.
    fn card() -> ModelCard {
        let cache =
            CacheSpec::Pages { n_heads: 1, k_dim: 4, v_dim: 4, dtype: KvType::F32, window: None };
        let shape = ModelShape {
            vocab: 100,
            hidden: 4,
            n_layers: 1,
            n_moe_layers: 1,
            n_experts: 2,
            n_eligible: 2,
            top_k: 1,
            config_top_k: 1,
            max_positions: 100,
            caches: vec![cache],
            n_mtp_caches: 0,
            mtp_width: 0,
            has_position_parts: false,
            rotary_before: 0,
            sees_pictures_whole: false,
        };
        let identity = String::from("x");
        let activations = Activations::Full;
        ModelCard { family: "x", identity, activations, shape, max_positions: 100 }
    }

    fn arrival(name: &str, tokens: &[u32], n_bytes: u64) -> Arrival {
        let image = Image::of(tokens, &[], n_bytes);
        Arrival { name: name.to_owned(), image, previous: None, life: Life::Kept }
    }

    fn names(shelf: &Shelf) -> Vec<String> {
        let state = locked(&shelf.state);
        state.entries.iter().map(|entry| entry.name.clone()).collect()
    }

    fn found(shelf: &Shelf, tokens: &[u32]) -> Vec<(String, usize)> {
        let tokens: Vec<TokenId> = tokens.iter().copied().map(TokenId).collect();
        let found = shelf.candidates(&tokens, tokens.len()).into_iter();
        found.map(|found| (found.name, found.n_reusable)).collect()
    }

    #[test]
    fn the_least_recently_used_leave_and_the_budget_holds() {
        let shelf = Shelf::new(30, card());
        for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
            shelf.insert(arrival(name, &[i as u32, 5], 10), None, &|_| false);
        }
        shelf.touch("a");
        shelf.insert(arrival("d", &[7], 10), None, &|_| false);
        assert_eq!(names(&shelf), ["a", "c", "d"]);
        assert_eq!(found(&shelf, &[0, 5, 6]), [(String::from("a"), 2)]);
        // What comes back goes first.
        shelf.insert(arrival("e", &[8], 10), Some("d"), &|_| false);
        assert_eq!(names(&shelf), ["a", "c", "e"]);
        assert!(shelf.takes(30) && !shelf.takes(31));
        assert!(!shelf.has_room_for(1));
    }

    #[test]
    fn a_longer_one_takes_the_place_of_its_beginning() {
        let shelf = Shelf::new(100, card());
        shelf.insert(arrival("a", &[1, 2], 10), None, &|_| false);
        shelf.insert(arrival("b", &[1, 2, 3], 10), None, &|_| false);
        assert_eq!(names(&shelf), ["b"]);
        // Another answer follows in the same conversation.
        let next = Arrival { previous: Some(String::from("b")), ..arrival("c", &[1, 2, 4], 10) };
        shelf.insert(next, None, &|_| false);
        assert_eq!(names(&shelf), ["c"]);
    }

    #[test]
    fn states_of_the_same_tokens_are_taken_over_and_the_first_and_last_stay() {
        let mut image = Image::of(&[1, 2, 3, 4, 5, 6, 7, 8], &[6, 8], 1);
        image.inherit(&card(), &Image::of(&[1, 2, 3, 4, 9, 9], &[1, 2, 3, 4, 5, 6], 1));
        let states: Vec<usize> = image.contents().states.iter().map(|(at, _)| *at).collect();
        assert_eq!(states, [1, 4, 6, 8]);
    }

    #[test]
    fn what_has_to_leave_is_written_first() {
        let shelf = Arc::new(Shelf::new(25, card()));
        let writer = Arc::clone(&shelf);
        let written = thread::spawn(move || {
            let mut written = Vec::new();
            while let Some(task) = writer.next_task() {
                written.push(task.name.clone());
                writer.settle(&task.name, true);
            }
            written
        });
        for (i, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            shelf.insert(arrival(name, &[i as u32], 10), None, &|_| true);
        }
        assert_eq!(names(&shelf), ["c", "d"]);
        shelf.queue(&|_| true);
        shelf.wait_for_writer();
        let passing = Arrival { life: Life::Written, ..arrival("e", &[9], 5) };
        shelf.insert(passing, None, &|_| true);
        shelf.wait_for_writer();
        assert_eq!(names(&shelf), ["c", "d"]);
        shelf.close();
        assert_eq!(written.join().unwrap(), ["a", "b", "c", "d", "e"]);
    }

    #[test]
    fn a_writer_that_does_nothing_holds_no_session_up_for_long() {
        let shelf = Shelf::new(10, card());
        shelf.insert(arrival("a", &[1], 10), None, &|_| true);
        let began = Instant::now();
        shelf.insert(arrival("b", &[2], 10), None, &|_| true);
        assert_eq!(names(&shelf), ["b"]);
        assert!(began.elapsed() < PATIENCE + Duration::from_secs(30));
    }
}
