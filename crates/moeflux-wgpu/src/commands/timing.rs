//! What the device's clock says of commands.

use moeflux_backend::{DeviceError, KernelTime};
use wgpu::QuerySet;

use crate::commands::clock::Clock;
use crate::commands::command::Command;
use crate::commands::encoder::Encoder;
use crate::commands::read::read;
use crate::device::buffer::Mem;

/// Notes the time when the device has done what is recorded; false where it
/// has no clock.
pub(crate) fn stamp(encoder: &mut Encoder, nth: u32) -> bool {
    if encoder.profiler.stamps.is_none() {
        encoder.profiler.stamps = Clock::of_two(encoder.context());
    }
    let Some((set, _)) = encoder.profiler.stamps.as_ref().map(Clock::parts) else { return false };
    encoder.record(Command::Stamp(set, nth));
    true
}

/// Seconds between the two times that were noted.
///
/// # Errors
/// Whatever went wrong since the last read-back.
pub(crate) fn seconds_between(encoder: &mut Encoder) -> Result<f64, DeviceError> {
    let Some((set, buffer)) = encoder.profiler.stamps.as_ref().map(Clock::parts) else {
        return Ok(0.0);
    };
    let bytes = moments(encoder, &set, &buffer, 2)?;
    let tick = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let ticks: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(tick).collect();
    Ok(ticks[1].saturating_sub(ticks[0]) as f64 * period(encoder) / 1e9)
}

/// Nanoseconds of a tick.
fn period(encoder: &Encoder) -> f64 {
    f64::from(encoder.context().queue.get_timestamp_period())
}

fn moments(
    encoder: &mut Encoder,
    set: &QuerySet,
    buffer: &Mem,
    n: u32,
) -> Result<Vec<u8>, DeviceError> {
    encoder.record(Command::Resolve(set.clone(), n, buffer.buffer.clone()));
    read(encoder, &[buffer.range(0, 8 * u64::from(n))])
}

/// Times kernels, or does not any more; gives those of until then.
///
/// # Errors
/// Whatever went wrong since the last read-back.
pub(crate) fn time_kernels(
    encoder: &mut Encoder,
    is_on: bool,
) -> Result<Vec<KernelTime>, DeviceError> {
    encoder.commit_last();
    let times = match encoder.profiler.clock.take() {
        Some(clock) if clock.len() > 1 && !encoder.buffers.is_out_of_memory() => {
            let (set, buffer) = clock.parts();
            let bytes = moments(encoder, &set, &buffer, clock.len())?;
            clock.times(&bytes, period(encoder))
        }
        _ => Vec::new(),
    };
    if is_on {
        encoder.profiler.clock = Clock::of_kernels(encoder.context());
    }
    Ok(times)
}
