//! What the device's clock says of commands.

use moeflux_backend::{DeviceError, KernelTime};
use wgpu::QuerySet;

use crate::commands::clock::Clock;
use crate::commands::command::Command;
use crate::commands::encoder::Encoder;
use crate::device::buffer::Mem;

impl Encoder {
    /// Notes the time when the device has done what is recorded; false where it
    /// has no clock.
    pub(crate) fn stamp(&mut self, nth: u32) -> bool {
        if self.profiler.stamps.is_none() {
            self.profiler.stamps = Clock::of_two(&self.context);
        }
        let Some((set, _)) = self.profiler.stamps.as_ref().map(Clock::parts) else { return false };
        self.record(Command::Stamp(set, nth));
        true
    }

    /// Seconds between the two times that were noted.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back.
    pub(crate) fn seconds_between(&mut self) -> Result<f64, DeviceError> {
        let Some((set, buffer)) = self.profiler.stamps.as_ref().map(Clock::parts) else {
            return Ok(0.0);
        };
        let bytes = self.moments(&set, &buffer, 2)?;
        let tick = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let ticks: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(tick).collect();
        Ok(ticks[1].saturating_sub(ticks[0]) as f64 * self.period() / 1e9)
    }

    /// Nanoseconds of a tick.
    fn period(&self) -> f64 {
        f64::from(self.context.queue.get_timestamp_period())
    }

    fn moments(&mut self, set: &QuerySet, buffer: &Mem, n: u32) -> Result<Vec<u8>, DeviceError> {
        self.record(Command::Resolve(set.clone(), n, buffer.buffer.clone()));
        self.read(&[buffer.range(0, 8 * u64::from(n))])
    }

    /// Times kernels, or does not any more; gives those of until then.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back.
    pub(crate) fn time_kernels(&mut self, is_on: bool) -> Result<Vec<KernelTime>, DeviceError> {
        self.commit_last();
        let times = match self.profiler.clock.take() {
            Some(clock) if clock.len() > 1 && !self.is_out_of_memory() => {
                let (set, buffer) = clock.parts();
                let bytes = self.moments(&set, &buffer, clock.len())?;
                clock.times(&bytes, self.period())
            }
            _ => Vec::new(),
        };
        if is_on {
            self.profiler.clock = Clock::of_kernels(&self.context);
        }
        Ok(times)
    }

    /// Notes that something ended, while kernels are timed; `is_first` where
    /// only the first of a submission does so.
    pub(super) fn stamp_end(&mut self, what: impl FnOnce() -> String, is_first: bool) {
        let Some(clock) = &mut self.profiler.clock else { return };
        if is_first && self.recording.n_dispatches > 0 {
            return;
        }
        let Some(nth) = clock.next(what) else { return };
        let (set, _) = clock.parts();
        self.recording.batch.commands.push(Command::Stamp(set, nth));
    }
}
