//! Which models are loaded, who uses them, and who waits for which: decided here, carried out
//! elsewhere.
//!
//! Requests for a model that is loaded use it at once. Where one waits for a model that is not, and
//! those that are loaded have to leave for it, each of them still takes requests until its turn is
//! over; then it takes none, becomes idle, and leaves. So models whose requests mix are switched in
//! batches, and none waits without end.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::error::ApiError;

/// The shortest turn of a model while requests wait for another.
const SHORTEST_TURN: Duration = Duration::from_secs(1);

/// A turn, as a multiple of the time that loading took: a third of the time is spent on it at most.
const TURN_PER_LOAD: u32 = 2;

/// How long a model stays loaded without requests; `None` as long as the server runs.
pub(crate) type Keep = Option<Duration>;

/// A model that is loaded.
pub(super) struct Resident<T> {
    pub(super) name: Arc<str>,
    pub(super) served: Arc<T>,
    pub(super) keep: Keep,
    pub(super) last_use: Instant,
    turn_ends: Instant,
    n_leases: usize,
    /// Whether it takes no more requests, because it is to be unloaded.
    is_leaving: bool,
}

impl<T> Resident<T> {
    fn has_expired(&self, now: Instant) -> bool {
        let is_over = |keep| now.saturating_duration_since(self.last_use) >= keep;
        self.n_leases == 0 && (self.is_leaving || self.keep.is_some_and(is_over))
    }
}

/// A request that waits for a model.
struct Waiting {
    ticket: u64,
    name: Arc<str>,
    owner: Option<Arc<str>>,
    /// Why it will not come.
    failure: Option<ApiError>,
}

/// What comes of a request that waits.
pub(super) enum Turn<T> {
    /// It has the model.
    Comes(Arc<T>),
    /// The model cannot be loaded.
    Fails(ApiError),
    /// It goes on waiting.
    Waits,
}

/// The models that are loaded, and the requests that wait.
pub(super) struct State<T> {
    residents: Vec<Resident<T>>,
    /// In the order of their arrival.
    waiting: Vec<Waiting>,
    /// The model that is being loaded, or waits for others to leave.
    coming: Option<Arc<str>>,
    next_ticket: u64,
    /// Models that were taken out and still have their memory.
    pub(super) n_unloading: usize,
    /// Those of them whose counts are not kept yet.
    uncounted: Vec<Weak<T>>,
    pub(super) is_closed: bool,
}

impl<T> State<T> {
    pub(super) fn new() -> State<T> {
        State {
            residents: Vec::new(),
            waiting: Vec::new(),
            coming: None,
            next_ticket: 0,
            n_unloading: 0,
            uncounted: Vec::new(),
            is_closed: false,
        }
    }

    pub(super) fn residents(&self) -> &[Resident<T>] {
        &self.residents
    }

    pub(super) fn resident_mut(&mut self, name: &str) -> Option<&mut Resident<T>> {
        self.residents.iter_mut().find(|resident| *resident.name == *name)
    }

    pub(super) fn is_loaded(&self, name: &str) -> bool {
        self.residents.iter().any(|resident| *resident.name == *name)
    }

    /// The model that was used last.
    pub(super) fn newest(&self) -> Option<&Resident<T>> {
        self.residents.iter().max_by_key(|resident| resident.last_use)
    }

    /// Uses a model, where it is loaded and takes requests.
    pub(super) fn admit(&mut self, name: &str, now: Instant) -> Option<Arc<T>> {
        let other_waits = self.waiting.iter().any(|waiting| !self.is_loaded(&waiting.name));
        let resident = self.resident_mut(name)?;
        if resident.is_leaving || (other_waits && now >= resident.turn_ends) {
            return None;
        }
        resident.n_leases += 1;
        resident.last_use = now;
        Some(Arc::clone(&resident.served))
    }

    /// Ends a use of a model.
    pub(super) fn release(&mut self, name: &str, now: Instant) {
        if let Some(resident) = self.resident_mut(name) {
            resident.n_leases = resident.n_leases.saturating_sub(1);
            resident.last_use = now;
        }
    }

    /// Requests that wait.
    pub(super) fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Queues a request of an owner among `most`; `None` where there is no room. An owner leaves as
    /// many places free as it takes.
    pub(super) fn enter(
        &mut self,
        name: &Arc<str>,
        owner: Option<Arc<str>>,
        most: usize,
    ) -> Option<u64> {
        let free = most.saturating_sub(self.waiting.len());
        let of_owner = |waiting: &&Waiting| owner.is_some() && waiting.owner == owner;
        if free == 0 || (owner.is_some() && self.waiting.iter().filter(of_owner).count() >= free) {
            return None;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.push(Waiting { ticket, name: Arc::clone(name), owner, failure: None });
        Some(ticket)
    }

    /// Ends the wait of a request.
    pub(super) fn leave(&mut self, ticket: u64) {
        self.waiting.retain(|waiting| waiting.ticket != ticket);
    }

    /// What comes of a request that waits.
    pub(super) fn turn(&mut self, ticket: u64, now: Instant) -> Turn<T> {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.ticket == ticket) else {
            return Turn::Waits;
        };
        if let Some(failure) = self.waiting[at].failure.take() {
            self.waiting.remove(at);
            return Turn::Fails(failure);
        }
        let name = Arc::clone(&self.waiting[at].name);
        match self.admit(&name, now) {
            Some(served) => {
                self.waiting.remove(at);
                Turn::Comes(served)
            }
            None => Turn::Waits,
        }
    }

    /// The model that is to be loaded next: that of the request that waits longest for one that is not
    /// loaded. It is coming from now on; `None` while another one is.
    pub(super) fn begin_next(&mut self) -> Option<Arc<str>> {
        if self.coming.is_some() || self.is_closed {
            return None;
        }
        let is_missing =
            |waiting: &&Waiting| waiting.failure.is_none() && !self.is_loaded(&waiting.name);
        self.coming = self.waiting.iter().find(is_missing).map(|waiting| Arc::clone(&waiting.name));
        self.coming.clone()
    }

    /// Whether a request waits for the model.
    pub(super) fn is_wanted(&self, name: &str) -> bool {
        self.waiting.iter().any(|waiting| *waiting.name == *name)
    }

    /// Adds a model that took `loading` to load. Those who wait for it now have it in any case.
    pub(super) fn arrive(&mut self, name: &Arc<str>, served: Arc<T>, keep: Keep, times: Arrival) {
        self.coming.take_if(|coming| coming == name);
        let turn = (times.loading * TURN_PER_LOAD).max(SHORTEST_TURN);
        self.residents.push(Resident {
            name: Arc::clone(name),
            served,
            keep,
            last_use: times.now,
            turn_ends: times.now + turn,
            n_leases: 0,
            is_leaving: false,
        });
    }

    /// Notes for those who wait for a model that it does not come.
    pub(super) fn fail(&mut self, name: &Arc<str>, failure: &ApiError) {
        self.coming.take_if(|coming| coming == name);
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.name == *name) {
            waiting.failure = Some(failure.clone());
        }
    }

    /// Notes for all who wait that nothing comes any more.
    pub(super) fn close(&mut self, failure: &ApiError) {
        self.is_closed = true;
        self.waiting.iter_mut().for_each(|waiting| waiting.failure = Some(failure.clone()));
    }

    /// Takes the model out that was used least recently of those that are not in use.
    pub(super) fn take_idle(&mut self) -> Option<Resident<T>> {
        let idle = self.residents.iter().enumerate().filter(|(_, one)| one.n_leases == 0);
        let at = idle.min_by_key(|(_, one)| one.last_use).map(|(at, _)| at)?;
        Some(self.take(at))
    }

    /// Takes a model out that has not been used for as long as it is kept.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<Resident<T>> {
        let at = self.residents.iter().position(|resident| resident.has_expired(now))?;
        Some(self.take(at))
    }

    fn take(&mut self, at: usize) -> Resident<T> {
        self.n_unloading += 1;
        let resident = self.residents.remove(at);
        self.uncounted.push(Arc::downgrade(&resident.served));
        resident
    }

    /// Notes that the counts of a model that was taken out are kept.
    pub(super) fn counted(&mut self, served: &Arc<T>) {
        self.uncounted.retain(|one| one.as_ptr() != Arc::as_ptr(served));
    }

    /// The models whose counts are not kept yet: those that are loaded or being unloaded.
    pub(super) fn counting(&self) -> Vec<Arc<T>> {
        let loaded = self.residents.iter().map(|resident| Arc::clone(&resident.served));
        loaded.chain(self.uncounted.iter().filter_map(Weak::upgrade)).collect()
    }

    /// Lets a model take no more requests, so that it leaves once the last has ended; whether it is
    /// loaded.
    pub(super) fn dismiss(&mut self, name: &str) -> bool {
        let resident = self.resident_mut(name);
        resident.map(|resident| resident.is_leaving = true).is_some()
    }
}

/// When a model was loaded, and how long it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) now: Instant,
    pub(super) loading: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state at a time that passes as a test says.
    struct Bench {
        state: State<()>,
        now: Instant,
    }

    impl Bench {
        fn new(most_loaded: &[&str]) -> Bench {
            let mut bench = Bench { state: State::new(), now: Instant::now() };
            most_loaded.iter().for_each(|name| bench.arrive(name, None));
            bench
        }

        fn arrive(&mut self, name: &str, keep: Keep) {
            let times = Arrival { now: self.now, loading: Duration::from_secs(2) };
            self.state.arrive(&name.into(), Arc::new(()), keep, times);
        }

        fn pass(&mut self, seconds: u64) {
            self.now += Duration::from_secs(seconds);
        }

        fn admits(&mut self, name: &str) -> bool {
            self.state.admit(name, self.now).is_some()
        }

        fn wait(&mut self, name: &str) -> u64 {
            self.state.enter(&name.into(), None, 10).unwrap()
        }

        fn comes(&mut self, ticket: u64) -> bool {
            matches!(self.state.turn(ticket, self.now), Turn::Comes(_))
        }
    }

    #[test]
    fn a_model_that_is_loaded_is_used_at_once_and_by_many() {
        let mut bench = Bench::new(&["a"]);
        bench.pass(3600);
        assert!((0..100).all(|_| bench.admits("a")));
        assert!(!bench.admits("b"));
        assert!(bench.state.take_idle().is_none(), "it is in use");
    }

    #[test]
    fn a_turn_ends_while_another_model_is_waited_for_and_only_then() {
        let mut bench = Bench::new(&["a"]);
        assert!(bench.admits("a"));
        let waits_for_b = bench.wait("b");
        assert_eq!(bench.state.begin_next().as_deref(), Some("b"));
        // Loading took two seconds, so the turn takes four.
        bench.pass(3);
        assert!(bench.admits("a"));
        bench.pass(1);
        assert!(!bench.admits("a"));
        let waits_for_a = bench.wait("a");
        assert!(!bench.comes(waits_for_a));
        for _ in 0..2 {
            assert!(bench.state.take_idle().is_none());
            bench.state.release("a", bench.now);
        }
        assert_eq!(&*bench.state.take_idle().unwrap().name, "a");
        bench.arrive("b", None);
        assert!(bench.comes(waits_for_b));
        // Now `a` is next, and `b` has its turn.
        assert_eq!(bench.state.begin_next().as_deref(), Some("a"));
        bench.pass(3);
        assert!(bench.admits("b"));
        bench.pass(1);
        assert!(!bench.admits("b"));
    }

    #[test]
    fn a_request_that_stops_waiting_ends_no_turn() {
        let mut bench = Bench::new(&["a"]);
        bench.pass(100);
        let ticket = bench.wait("b");
        assert!(!bench.admits("a"));
        bench.state.leave(ticket);
        assert!(bench.admits("a"));
        assert_eq!(bench.state.begin_next(), None);
    }

    #[test]
    fn the_longest_wait_is_over_first_and_one_model_comes_at_a_time() {
        let mut bench = Bench::new(&[]);
        let tickets = ["b", "c", "b"].map(|name| bench.wait(name));
        assert_eq!(bench.state.begin_next().as_deref(), Some("b"));
        assert_eq!(bench.state.begin_next(), None);
        bench.arrive("b", None);
        assert!(bench.comes(tickets[0]) && bench.comes(tickets[2]) && !bench.comes(tickets[1]));
        assert_eq!(bench.state.begin_next().as_deref(), Some("c"));
    }

    #[test]
    fn a_failure_reaches_those_who_wait_for_the_model_and_no_others() {
        let mut bench = Bench::new(&[]);
        let (first, second, other) = (bench.wait("b"), bench.wait("b"), bench.wait("c"));
        let name = bench.state.begin_next().unwrap();
        bench.state.fail(&name, &ApiError::internal("no room"));
        for ticket in [first, second] {
            assert!(matches!(bench.state.turn(ticket, bench.now), Turn::Fails(_)));
        }
        assert!(matches!(bench.state.turn(other, bench.now), Turn::Waits));
        assert_eq!(bench.state.begin_next().as_deref(), Some("c"));
    }

    #[test]
    fn models_leave_when_nobody_has_used_them_for_as_long_as_they_are_kept() {
        let mut bench = Bench::new(&["forever"]);
        bench.arrive("a", Some(Duration::from_secs(10)));
        assert!(bench.admits("a"));
        bench.pass(60);
        assert!(bench.state.take_expired(bench.now).is_none(), "it is in use");
        bench.state.release("a", bench.now);
        bench.pass(9);
        assert!(bench.state.take_expired(bench.now).is_none());
        bench.pass(1);
        let taken = bench.state.take_expired(bench.now).unwrap();
        assert_eq!(&*taken.name, "a");
        assert_eq!(bench.state.counting().len(), 2, "its counts stay until they are kept");
        bench.state.counted(&taken.served);
        assert_eq!(bench.state.counting().len(), 1);
        bench.pass(1 << 30);
        assert!(bench.state.take_expired(bench.now).is_none());
        assert_eq!(bench.state.n_unloading, 1);
    }

    #[test]
    fn a_model_that_is_dismissed_takes_nobody_and_leaves_when_its_last_request_ends() {
        let mut bench = Bench::new(&["a"]);
        assert!(bench.admits("a"));
        assert!(bench.state.dismiss("a") && !bench.state.dismiss("b"));
        assert!(!bench.admits("a"));
        assert!(bench.state.take_expired(bench.now).is_none());
        bench.state.release("a", bench.now);
        assert!(bench.state.take_expired(bench.now).is_some());
    }

    #[test]
    fn an_owner_leaves_as_many_places_as_it_takes() {
        let mut bench = Bench::new(&[]);
        let mut enter = |owner: &str| bench.state.enter(&"a".into(), Some(owner.into()), 8);
        let n_of_one = (0..8).filter(|_| enter("one").is_some()).count();
        assert_eq!(n_of_one, 4);
        assert!(enter("two").is_some());
    }

    #[test]
    fn nothing_is_loaded_after_the_end() {
        let mut bench = Bench::new(&[]);
        let ticket = bench.wait("a");
        bench.state.close(&ApiError::shutting_down());
        assert_eq!(bench.state.begin_next(), None);
        assert!(matches!(bench.state.turn(ticket, bench.now), Turn::Fails(_)));
    }
}
