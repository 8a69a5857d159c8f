//! Devices that record commands before they run them.

use moeflux_core::TokenId;

use crate::DeviceError;

/// Kernels of one kind that a device ran.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// The kernel and its number of workgroups.
    pub name: String,
    /// How many ran.
    pub n: usize,
    /// Their time together, in seconds.
    pub seconds: f64,
}

/// Controls the commands that a device has recorded and not yet run.
pub trait Recording {
    /// Submits the commands recorded so far, before the host waits for something else.
    fn flush(&mut self);
    /// Runs the step that was recorded as a [`PrerecordedStep`](crate::PrerecordedStep), with
    /// these tokens. Returns false where there is none.
    ///
    /// Between recording and replay, no call but
    /// [`discard_prerecorded`](Recording::discard_prerecorded) may record, read or write.
    fn replay_step(&mut self, tokens: &[TokenId]) -> bool;
    /// Drops the step that was recorded in advance, if there is one.
    fn discard_prerecorded(&mut self);
    /// Switches the timing of kernels on or off. Returns the kernels timed since the last
    /// call, summed by name; an empty list where the device has no clock.
    ///
    /// # Errors
    /// A failure of any op since the last read-back.
    fn time_kernels(&mut self, is_on: bool) -> Result<Vec<KernelTime>, DeviceError>;
}
