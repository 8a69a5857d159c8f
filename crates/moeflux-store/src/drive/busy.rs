//! How long the drive had work.

use std::time::{Duration, Instant};

/// The reads in progress, and the time in which there was at least one.
#[derive(Debug, Default)]
pub(crate) struct BusyTime {
    n_reading: usize,
    /// When the drive last became busy; `None` while it is idle.
    since: Option<Instant>,
    before: Duration,
}

impl BusyTime {
    /// Counts a read that begins.
    pub(crate) fn begin(&mut self) {
        if self.n_reading == 0 {
            self.since = Some(Instant::now());
        }
        self.n_reading += 1;
    }

    /// Counts a read that has ended.
    pub(crate) fn end(&mut self) {
        self.n_reading -= 1;
        if self.n_reading == 0 {
            self.before += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        }
    }

    pub(crate) fn n_reading(&self) -> usize {
        self.n_reading
    }

    /// Time in which at least one read was in progress.
    pub(crate) fn total(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    pub(crate) fn reset(&mut self) {
        self.before = Duration::ZERO;
        self.since = self.since.map(|_| Instant::now());
    }
}
