//! The models that are loaded, the requests that use them, and those that wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use moeflux_engine::{Plan, SubmitError};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::figures::Figures;
use super::memory::may_join;
use super::state::{Arrival, Keep, Resident, State, Turn};
use crate::error::{ApiError, ApiResult};
use crate::served::Served;

/// After this time a request may find room among those that wait for a model.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Requests that may wait, and models that may be loaded at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_waiting: usize,
    pub(super) max_loaded: usize,
}

/// The models that are loaded.
pub(crate) struct Roster {
    limits: Limits,
    state: Mutex<State<Served>>,
    /// Notified when a model comes or becomes idle, and when a request stops waiting.
    changed: Notify,
    /// Bytes that models may take: what was free while none was loaded.
    room: Mutex<Option<u64>>,
    /// What models counted that were unloaded.
    gone: Mutex<Figures>,
}

/// A model that is loaded.
pub(crate) struct Loaded {
    pub(crate) served: Arc<Served>,
    /// When it is unloaded unless it is used before; `None` for never.
    pub(crate) expires_in: Option<Duration>,
}

impl Roster {
    pub(super) fn new(limits: Limits) -> Roster {
        Roster {
            limits,
            state: Mutex::new(State::new()),
            changed: Notify::new(),
            room: Mutex::default(),
            gone: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<Served>> {
        // Each change is whole wherever a panic came from.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room(&self) -> MutexGuard<'_, Option<u64>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self) -> MutexGuard<'_, Figures> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready at the next change, once it is enabled.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Adds a model that took `loading` to load.
    pub(super) fn arrive(&self, served: Served, keep: Keep, loading: Duration) {
        let name: Arc<str> = served.model_name().into();
        let times = Arrival { now: Instant::now(), loading };
        {
            let mut state = self.state();
            if state.residents().is_empty() {
                *self.room() = Some(served.loaded.engine().plan().memory.available);
            }
            state.arrive(&name, Arc::new(served), keep, times);
        }
        self.changed.notify_waiters();
    }

    /// Reports to those who wait for a model that it does not come.
    pub(super) fn fail(&self, name: &Arc<str>, failure: &ApiError) {
        self.state().fail(name, failure);
        self.changed.notify_waiters();
    }

    /// Refuses all requests from now on.
    pub(super) fn close(&self, failure: &ApiError) {
        self.state().close(failure);
        self.changed.notify_waiters();
    }

    /// Uses a model that is loaded and takes requests.
    pub(super) fn admit(&self, name: &str) -> Option<Arc<Served>> {
        self.state().admit(name, Instant::now())
    }

    /// Ends a use of a model.
    pub(super) fn release(&self, name: &str) {
        self.state().release(name, Instant::now());
        self.changed.notify_waiters();
    }

    /// Lets a request wait for a model.
    ///
    /// # Errors
    /// Where too many wait, and where the server ends.
    pub(super) fn enter(&self, name: &Arc<str>, owner: Option<Arc<str>>) -> ApiResult<u64> {
        let mut state = self.state();
        if state.is_closed {
            return Err(ApiError::shutting_down());
        }
        let number = state.enter(name, owner, self.limits.max_waiting);
        let n_waiting = state.n_waiting();
        let full = || SubmitError::QueueFull { n_waiting, retry_after: RETRY_AFTER };
        Ok(number.ok_or_else(full)?)
    }

    /// Ends the wait of a request.
    pub(super) fn leave(&self, ticket: u64) {
        self.state().leave(ticket);
        self.changed.notify_waiters();
    }

    /// What comes of a request that waits.
    pub(super) fn turn(&self, ticket: u64) -> Turn<Served> {
        self.state().turn(ticket, Instant::now())
    }

    /// The model that is to be loaded now.
    pub(super) fn begin_next(&self) -> Option<Arc<str>> {
        self.state().begin_next()
    }

    /// Whether a request waits for a model.
    pub(super) fn is_wanted(&self, name: &str) -> bool {
        self.state().is_wanted(name)
    }

    /// Takes out a model that is not in use.
    pub(super) fn take_idle(&self) -> Option<Resident<Served>> {
        self.state().take_idle()
    }

    /// Takes out a model that has not been used for as long as it is kept.
    pub(super) fn take_expired(&self) -> Option<Resident<Served>> {
        self.state().take_expired(Instant::now())
    }

    /// Keeps what a model counted, before its memory is given back.
    pub(super) fn keep_figures(&self, served: &Arc<Served>) {
        let mut state = self.state();
        *self.gone() += Figures::of(served);
        state.counted(served);
    }

    /// Notes that a model that was taken out has given back its memory.
    pub(super) fn gave_back(&self) {
        self.state().n_unloading -= 1;
        self.changed.notify_waiters();
    }

    /// Lets a model take no more requests, so that it leaves when the last has ended; whether it is
    /// loaded.
    pub(super) fn dismiss(&self, name: &str) -> bool {
        self.state().dismiss(name)
    }

    /// Whether a model is neither loaded nor being unloaded.
    pub(super) fn is_gone(&self, name: &str) -> bool {
        let state = self.state();
        !state.is_loaded(name) && state.n_unloading == 0
    }

    /// Whether a model may be loaded with those that are.
    pub(super) fn has_room(&self, plan: &Plan) -> bool {
        let state = self.state();
        if state.n_unloading > 0 {
            return false;
        }
        let residents = state.residents().iter();
        let others: Vec<&Plan> =
            residents.map(|resident| resident.served.loaded.engine().plan()).collect();
        let has_place = others.is_empty() || others.len() < self.limits.max_loaded;
        has_place && may_join(plan, &others, self.room().unwrap_or(0))
    }

    /// Whether no model has memory.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state();
        state.residents().is_empty() && state.n_unloading == 0
    }

    /// Bytes that models may take; not known before the first is loaded.
    pub(super) fn room_bytes(&self) -> Option<u64> {
        *self.room()
    }

    /// Sets how long a model stays loaded without requests.
    pub(super) fn set_keep(&self, name: &str, keep: Keep) {
        if let Some(resident) = self.state().resident_mut(name) {
            resident.keep = keep;
        }
    }

    /// The models that are loaded, that of the last request first.
    pub(crate) fn loaded(&self) -> Vec<Loaded> {
        let state = self.state();
        let mut residents: Vec<_> = state.residents().iter().collect();
        residents.sort_by_key(|resident| std::cmp::Reverse(resident.last_use));
        let loaded = residents.into_iter().map(|resident| Loaded {
            served: Arc::clone(&resident.served),
            expires_in: resident.keep.map(|keep| keep.saturating_sub(resident.last_use.elapsed())),
        });
        loaded.collect()
    }

    /// The model that a request used last, where it is loaded.
    pub(crate) fn current(&self) -> Option<Arc<Served>> {
        self.state().newest().map(|resident| Arc::clone(&resident.served))
    }

    /// Whether a model is loaded.
    pub(crate) fn is_loaded(&self, name: &str) -> bool {
        self.state().is_loaded(name)
    }

    /// Whether requests are answered.
    pub(crate) fn is_running(&self) -> bool {
        let state = self.state();
        let mut residents = state.residents().iter();
        !state.is_closed
            && residents.all(|resident| resident.served.loaded.scheduler().is_running())
    }

    /// Whether a device was lost: its models answer no more.
    pub(crate) fn is_device_lost(&self) -> bool {
        let state = self.state();
        let mut residents = state.residents().iter();
        residents.any(|resident| resident.served.loaded.scheduler().is_device_lost())
    }

    /// Requests that wait for a model.
    pub(crate) fn n_waiting(&self) -> usize {
        self.state().n_waiting()
    }

    /// What the engines of all models counted since the start, those that are being unloaded
    /// included: no count ever falls.
    pub(crate) fn figures(&self) -> Figures {
        let (mut sum, counting) = {
            let state = self.state();
            (*self.gone(), state.counting())
        };
        counting.iter().for_each(|served| sum += Figures::of(served));
        sum
    }
}
