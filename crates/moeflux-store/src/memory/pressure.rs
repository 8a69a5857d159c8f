//! A budget that follows the memory that is free.
//!
//! Other processes take memory as fast as the kernel can clear pages. Without swap, the kernel ends
//! a process as soon as a control group is full. Pressure-stall events come too late for that:
//! nothing stalls before the memory is gone. So free memory is measured regularly, and the less
//! there is, the sooner it is measured again.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::gauge::Gauge;
use super::limit::stalled;

/// The highest rate at which other processes are assumed to take memory, in bytes per second: two
/// cores that fault in huge pages.
const BURST_RATE: f64 = 8e9;

/// The longest time until slots have been freed, with all cores busy.
const REACTION: Duration = Duration::from_millis(30);

/// The headroom for a burst, in bytes: what one process fills in the time between two readings and
/// `REACTION`.
const BURST_BYTES: u64 = 256 << 20;

/// Bounds of the time between two readings.
const SHORTEST: Duration = Duration::from_millis(if cfg!(target_os = "linux") { 2 } else { 20 });
const LONGEST: Duration = Duration::from_millis(250);

/// Time without pressure before the budget grows.
const QUIET: Duration = Duration::from_secs(5);

/// Time between two steps of growth.
const GROWTH: Duration = Duration::from_millis(250);

/// Memory is under pressure if tasks wait for it in more than this share of the time.
const STALLED_SHARE: f64 = 0.1;

/// Bytes that a cache leaves free if `available` bytes were free when it was planned. This is a
/// tenth of them or, if that is more, 256 MiB but at most a sixth of them.
pub fn headroom(available: u64) -> u64 {
    (available / 10).max(BURST_BYTES.min(available / 6))
}

/// A measurement of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Bytes that are free or can be reclaimed.
    pub(crate) available: u64,
    /// Bytes that the cache has taken.
    pub(crate) used: u64,
    /// Whether tasks waited for memory.
    pub(crate) is_stalled: bool,
    /// Time since the last reading.
    pub(crate) elapsed: Duration,
}

/// Decides the budget of the cache, in bytes.
///
/// The budget shrinks when less than `low` is available, so far that `mid` is available after the
/// memory has been freed. It grows again by steps as long as more than `high` is available, and
/// takes nothing of `high`. So its growth never makes it shrink.
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
    /// Time since pressure was last seen.
    quiet: Duration,
    /// Time since the budget last grew.
    since_growth: Duration,
    /// Bytes that the cache could take at the last reading: its bytes and the available ones.
    reachable: Option<u64>,
}

impl Controller {
    /// Creates a controller for a cache that was planned to leave `headroom` bytes free.
    pub(crate) fn new(min: u64, planned: u64, headroom: u64) -> Controller {
        Controller {
            min: min.min(planned),
            planned,
            budget: planned,
            step: (planned / 32).max(1),
            low: headroom / 4 * 3,
            mid: headroom / 8 * 7,
            high: headroom,
            quiet: Duration::ZERO,
            since_growth: Duration::ZERO,
            reachable: None,
        }
    }

    /// The budget from now on, in bytes.
    pub(crate) fn next(&mut self, now: Reading) -> u64 {
        let low = if now.is_stalled { self.mid } else { self.low };
        let ahead = self.growth_ahead(now);
        if now.available < low {
            self.quiet = Duration::ZERO;
            let wanted = (self.mid - now.available).saturating_add(ahead);
            let reduced = now.used.saturating_sub(wanted);
            self.budget = self.budget.min(reduced).max(self.min);
        } else if now.available <= self.high || now.is_stalled {
            self.quiet = Duration::ZERO;
        } else if self.quiet < QUIET {
            self.quiet += now.elapsed;
            self.since_growth = GROWTH;
        } else {
            self.since_growth += now.elapsed;
            if self.since_growth >= GROWTH {
                self.since_growth = Duration::ZERO;
                let limit = now.used.saturating_add(now.available - self.high);
                let grown = self.budget.saturating_add(self.step).min(limit).min(self.planned);
                self.budget = self.budget.max(grown);
            }
        }
        self.budget
    }

    /// Bytes that other processes will take while slots are freed, at their rate since the last
    /// reading.
    fn growth_ahead(&mut self, now: Reading) -> u64 {
        let reachable = now.available.saturating_add(now.used);
        let before = self.reachable.replace(reachable);
        let taken = before.map_or(0, |before| before.saturating_sub(reachable));
        let rate = taken as f64 / now.elapsed.max(SHORTEST).as_secs_f64();
        (rate.min(BURST_RATE) * REACTION.as_secs_f64()) as u64
    }

    /// Time until the next reading. Before that, other processes cannot have filled the memory
    /// above `low`.
    pub(crate) fn pause(&self, available: u64, used: u64) -> Duration {
        if used <= self.min {
            // The cache has its smallest size, so it cannot free memory.
            return LONGEST / 5;
        }
        let spare = available.saturating_sub(self.low);
        Duration::from_secs_f64(spare as f64 / BURST_RATE).clamp(SHORTEST, LONGEST)
    }
}

/// The thread that lets a budget follow free memory, until this is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    /// The thread ends when this is dropped.
    closing: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts the thread. `used` returns the bytes that the cache has taken; `resize` sets the bytes
    /// that it may take.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn start(
        controller: Controller,
        used: impl Fn() -> u64 + Send + 'static,
        resize: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Watcher> {
        let (sender, closing) = channel();
        let thread = thread::Builder::new().name("expert-cache".to_owned());
        let thread = thread.spawn(move || watch(controller, &closing, used, resize))?;
        Ok(Watcher { closing: Some(sender), thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.closing = None;
        // The message of a panic has already been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn watch(
    mut controller: Controller,
    closing: &Receiver<()>,
    used: impl Fn() -> u64,
    resize: impl Fn(u64),
) {
    let mut gauge = Gauge::open();
    let mut stalls = Stalls::new();
    let mut last = Instant::now();
    let mut pause = SHORTEST;
    while closing.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let elapsed = last.elapsed();
        last = Instant::now();
        let (available, used) = (gauge.available(), used());
        let is_stalled = stalls.are_many();
        resize(controller.next(Reading { available, used, is_stalled, elapsed }));
        pause = controller.pause(available, used);
    }
}

/// Whether tasks waited long for memory, measured over windows of at least `LONGEST`.
struct Stalls {
    since: Instant,
    before: Option<Duration>,
    are_many: bool,
}

impl Stalls {
    fn new() -> Stalls {
        Stalls { since: Instant::now(), before: stalled(), are_many: false }
    }

    fn are_many(&mut self) -> bool {
        let window = self.since.elapsed();
        if window >= LONGEST {
            let after = stalled();
            let waited = after.zip(self.before).map(|(after, before)| after.saturating_sub(before));
            self.are_many = waited.is_some_and(|waited| waited > window.mul_f64(STALLED_SHARE));
            (self.since, self.before) = (Instant::now(), after);
        }
        self.are_many
    }
}
