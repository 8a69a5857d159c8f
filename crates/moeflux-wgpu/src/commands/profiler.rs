//! Timestamps of the device.

use crate::commands::clock::Clock;
use crate::commands::command::Command;
use crate::commands::recording::Recording;

/// Timestamps of the device.
#[derive(Debug, Default)]
pub(super) struct Profiler {
    /// Of two moments.
    pub(super) stamps: Option<Clock>,
    /// Of all kernels, while they are timed.
    pub(super) clock: Option<Clock>,
}

impl Profiler {
    /// Notes that something ended, while kernels are timed; `is_first` where
    /// only the first of a submission does so.
    pub(super) fn stamp_end(
        &mut self,
        recording: &mut Recording,
        what: impl FnOnce() -> String,
        is_first: bool,
    ) {
        let Some(clock) = &mut self.clock else { return };
        if is_first && recording.n_dispatches > 0 {
            return;
        }
        let Some(nth) = clock.next(what) else { return };
        let (set, _) = clock.parts();
        recording.push(Command::Stamp(set, nth));
    }
}
