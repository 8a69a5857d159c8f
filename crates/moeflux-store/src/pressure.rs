//! A budget that follows the memory that is free.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::memory::{stalled, usable_memory};

/// How often memory is looked at.
const TICK: Duration = Duration::from_millis(250);

/// Ticks without pressure before the budget grows: five seconds.
const QUIET_TICKS: u32 = 20;

/// Tasks that stall for this share of a tick, waiting for memory, mean pressure.
const STALLED_SHARE: f64 = 0.1;

/// What the controller looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Bytes that are free or can be reclaimed.
    pub(crate) available: u64,
    /// Bytes that the cache has taken.
    pub(crate) used: u64,
    /// Whether tasks had to wait for memory.
    pub(crate) is_stalled: bool,
}

/// Decides what the cache may take.
///
/// It shrinks when less than `low` is available, so far that `mid` is, and
/// grows again by steps as long as `high` stays available: its own growth can
/// never make it shrink.
#[derive(Debug)]
pub(crate) struct Controller {
    /// Bounds of the budget.
    min: u64,
    planned: u64,
    budget: u64,
    step: u64,
    low: u64,
    mid: u64,
    high: u64,
    n_quiet: u32,
}

impl Controller {
    /// For a cache planned with `available` bytes there: the plan leaves a
    /// tenth of them.
    pub(crate) fn new(min: u64, planned: u64, available: u64) -> Controller {
        let tenth = available / 10;
        Controller {
            min: min.min(planned),
            planned,
            budget: planned,
            step: (planned / 32).max(1),
            low: tenth / 4 * 3,
            mid: tenth / 8 * 7,
            high: tenth,
            n_quiet: 0,
        }
    }

    /// The budget from here on.
    pub(crate) fn next(&mut self, now: Reading) -> u64 {
        let low = if now.is_stalled { self.mid } else { self.low };
        if now.available < low {
            self.n_quiet = 0;
            let room = now.used.saturating_sub(self.mid - now.available);
            self.budget = self.budget.min(room).max(self.min);
        } else if now.available <= self.high || now.is_stalled {
            self.n_quiet = 0;
        } else if self.n_quiet < QUIET_TICKS {
            self.n_quiet += 1;
        } else {
            let room = now.used.saturating_add(now.available - self.high);
            let grown = self.budget.saturating_add(self.step).min(room).min(self.planned);
            self.budget = self.budget.max(grown);
        }
        self.budget
    }
}

/// Looks at memory until `closing` is dropped. `used` tells what the cache has
/// taken, `resize` tells it what it may take.
pub(crate) fn watch(
    mut controller: Controller,
    closing: &Receiver<()>,
    used: impl Fn() -> u64,
    resize: impl Fn(u64),
) {
    let mut before = stalled();
    while closing.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        let after = stalled();
        let waited = after.zip(before).map(|(after, before)| after.saturating_sub(before));
        let is_stalled = waited.is_some_and(|it| it > TICK.mul_f64(STALLED_SHARE));
        before = after;
        let available = usable_memory().available;
        resize(controller.next(Reading { available, used: used(), is_stalled }));
    }
}
