//! What the device has written for the host.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use moeflux_backend::DeviceError;
use moeflux_core::threads::yield_briefly;
use wgpu::{MapMode, PollType};

use crate::commands::encoder::Encoder;
use crate::commands::readback::{TALLY_BYTES, Tally};
use crate::commands::serials::{self, NUMBER_BYTES, Serials};
use crate::commands::upload::{on_idle, wait_for_device};
use crate::device::buffer::{Mem, MemRange};
use crate::device::context::Context;

/// How long the host asks again and again before it sleeps until the device is
/// done: a thread that sleeps wakes tens of microseconds too late, and a layer of
/// a decoded token takes less than this.
const POLLING: Duration = Duration::from_millis(1);

/// Longest time between the end of a wait and the word of it.
const CALLBACK: Duration = Duration::from_secs(10);

/// What was asked for; nothing where it is empty.
#[derive(Debug)]
pub(crate) struct PendingRead(Option<ReadInFlight>);

#[derive(Debug)]
struct ReadInFlight {
    target: Mem,
    len: u64,
    /// With a serial number, and what the device counts.
    total: u64,
    /// The serial number where all commands ran.
    serial: u32,
    /// Whether it is there.
    word: Receiver<bool>,
}

/// Waits for everything recorded, then reads parts of buffers, one after the other; offsets
/// and lengths are whole words.
///
/// # Errors
/// Whatever went wrong since the last read-back.
pub(crate) fn read(encoder: &mut Encoder, parts: &[MemRange<'_>]) -> Result<Vec<u8>, DeviceError> {
    let reading = begin_read(encoder, parts)?;
    finish_read(encoder, reading, <[u8]>::to_vec)
}

/// Has parts of buffers on their way, as [`read`] does.
///
/// # Errors
/// As [`read`].
pub(crate) fn begin_read(
    encoder: &mut Encoder,
    parts: &[MemRange<'_>],
) -> Result<PendingRead, DeviceError> {
    assert!(!encoder.prerecording.is_active(), "what is recorded prerecorded reads nothing back");
    encoder.prerecording.assert_may_record();
    let len: u64 = parts.iter().map(|part| part.bytes).sum();
    if len == 0 {
        encoder.submit_now();
        return encoder.buffers.check().map(|()| PendingRead(None));
    }
    let tally = encoder.readback.tally.as_mut().and_then(Tally::take_news);
    let total = len + NUMBER_BYTES + if tally.is_some() { TALLY_BYTES } else { 0 };
    let target = encoder.readback.buffer(&mut encoder.buffers, total);
    if encoder.buffers.is_out_of_memory() {
        encoder.submit_now();
        encoder.buffers.check()?;
    }
    encoder.record_serial();
    let mut at = 0;
    for MemRange { mem, at: first, bytes } in parts {
        if *bytes > 0 {
            encoder.copy(mem.at(*first), target.at(at), *bytes);
        }
        at += bytes;
    }
    if let Some(tally) = &tally {
        encoder.copy(tally.at(0), target.at(len + NUMBER_BYTES), TALLY_BYTES);
    }
    let Serials { mem: number, last: serial, .. } = &encoder.serials;
    let (number, serial) = (number.clone(), *serial);
    encoder.copy(number.at(0), target.at(len), NUMBER_BYTES);
    encoder.submit_now();
    encoder.context().check()?;
    let slice = target.buffer.slice(..total);
    let (sender, word) = channel();
    slice.map_async(MapMode::Read, move |outcome| {
        // The receiver is gone once the wait below has failed.
        let _ = sender.send(outcome.is_ok());
    });
    Ok(PendingRead(Some(ReadInFlight { target, len, total, serial, word })))
}

/// Waits for what was asked for; gives what `of` makes of the bytes.
///
/// # Errors
/// As [`read`].
pub(crate) fn finish_read<T>(
    encoder: &mut Encoder,
    PendingRead(read): PendingRead,
    of: impl FnOnce(&[u8]) -> T,
) -> Result<T, DeviceError> {
    let Some(ReadInFlight { target, len, total, serial, word }) = read else { return Ok(of(&[])) };
    let slice = target.buffer.slice(..total);
    let since = Instant::now();
    let is_there = await_mapping(encoder.context(), &word);
    encoder.counters.add_wait(since.elapsed());
    on_idle(encoder);
    is_there?;
    let read = match slice.get_mapped_range() {
        Ok(view) => {
            let (view, more) = view.split_at(len as usize);
            let (number, counts) = more.split_at(NUMBER_BYTES as usize);
            serials::check(encoder.context(), serial, number).map(|()| {
                if let Some(tally) = &mut encoder.readback.tally {
                    tally.note(counts, &encoder.counters);
                }
                of(view)
            })
        }
        Err(err) => return Err(lose(encoder.context(), format!("reading back failed: {err}"))),
    };
    target.buffer.unmap();
    read
}

/// Waits for everything recorded.
///
/// # Errors
/// Whatever went wrong since the last read-back.
pub(crate) fn wait(encoder: &mut Encoder) -> Result<(), DeviceError> {
    wait_for_device(encoder);
    encoder.buffers.check()
}

/// Waits for a buffer to be mapped; `word` receives whether it was.
fn await_mapping(context: &Context, word: &Receiver<bool>) -> Result<(), DeviceError> {
    let is_mapped = match poll_mapping(context, word) {
        Some(is_mapped) => Ok(is_mapped),
        None => {
            if let Err(err) = context.device.poll(PollType::wait_indefinitely()) {
                context.lose(format!("waiting failed: {err}"));
            }
            context.check()?;
            // Another backend of this device may be the one that is about to say so.
            word.recv_timeout(CALLBACK)
        }
    };
    context.check()?;
    match is_mapped {
        Ok(true) => Ok(()),
        Ok(false) => Err(lose(context, String::from("reading back failed"))),
        Err(err) => Err(lose(context, format!("reading back never ended: {err}"))),
    }
}

/// The device is of no use any more.
fn lose(context: &Context, reason: String) -> DeviceError {
    context.lose(reason.clone());
    DeviceError::Lost { reason }
}

/// Asks for a word for a while.
fn poll_mapping(context: &Context, word: &Receiver<bool>) -> Option<bool> {
    let since = Instant::now();
    while since.elapsed() < POLLING {
        if let Err(err) = context.device.poll(PollType::Poll) {
            context.lose(format!("waiting failed: {err}"));
            return None;
        }
        match word.try_recv() {
            Ok(is_mapped) => return Some(is_mapped),
            Err(TryRecvError::Empty) => yield_briefly(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
    None
}
