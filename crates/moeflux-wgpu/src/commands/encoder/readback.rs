//! What the device has written for the host.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use moeflux_backend::DeviceError;
use moeflux_core::threads::yield_briefly;
use wgpu::{BufferUsages, MapMode, PollType};

use crate::commands::encoder::tally::{TALLY_BYTES, Tally};
use crate::commands::encoder::{Encoder, Fault};
use crate::device::buffer::{BufferDesc, Mem, MemRange};

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
    /// With what the device counts.
    total: u64,
    /// Whether it is there.
    word: Receiver<bool>,
}

impl Encoder {
    /// Waits for everything recorded, then reads parts of buffers, one after the other; offsets
    /// and lengths are whole words.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back.
    pub(crate) fn read(&mut self, parts: &[MemRange<'_>]) -> Result<Vec<u8>, DeviceError> {
        self.read_as(parts, <[u8]>::to_vec)
    }

    /// What `of` makes of the bytes that [`read`](Encoder::read) returns, without a copy of them.
    ///
    /// # Errors
    /// As [`Encoder::read`].
    pub(crate) fn read_as<T>(
        &mut self,
        parts: &[MemRange<'_>],
        of: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, DeviceError> {
        let read = self.begin_read(parts)?;
        self.finish_read(read, of)
    }

    /// Has parts of buffers on their way, as [`read`](Encoder::read) does.
    ///
    /// # Errors
    /// As [`Encoder::read`].
    pub(crate) fn begin_read(
        &mut self,
        parts: &[MemRange<'_>],
    ) -> Result<PendingRead, DeviceError> {
        assert!(!self.prerecording.is_active, "what is recorded prerecorded reads nothing back");
        self.assert_may_record();
        let len: u64 = parts.iter().map(|part| part.bytes).sum();
        if len == 0 {
            self.submit_now();
            return self.check().map(|()| PendingRead(None));
        }
        let tally = self.readback.tally.as_mut().and_then(Tally::take_news);
        let total = len + if tally.is_some() { TALLY_BYTES } else { 0 };
        let target = self.read_back(total);
        if self.is_out_of_memory() {
            self.submit_now();
            self.check()?;
        }
        let mut at = 0;
        for MemRange { mem, at: first, bytes } in parts {
            if *bytes > 0 {
                self.copy(mem.at(*first), target.at(at), *bytes);
            }
            at += bytes;
        }
        if let Some(tally) = &tally {
            self.copy(tally.at(0), target.at(len), TALLY_BYTES);
        }
        self.submit_now();
        self.context.check()?;
        let slice = target.buffer.slice(..total);
        let (sender, word) = channel();
        slice.map_async(MapMode::Read, move |outcome| {
            // The receiver is gone once the wait below has failed.
            let _ = sender.send(outcome.is_ok());
        });
        Ok(PendingRead(Some(ReadInFlight { target, len, total, word })))
    }

    /// Waits for what was asked for; gives what `of` makes of the bytes.
    ///
    /// # Errors
    /// As [`Encoder::read`].
    pub(crate) fn finish_read<T>(
        &mut self,
        PendingRead(read): PendingRead,
        of: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, DeviceError> {
        let Some(ReadInFlight { target, len, total, word }) = read else { return Ok(of(&[])) };
        let slice = target.buffer.slice(..total);
        let since = Instant::now();
        let is_there = self.await_mapping(&word);
        self.counters.add_wait(since.elapsed());
        self.on_idle();
        is_there?;
        let read = match slice.get_mapped_range() {
            Ok(view) => {
                let (view, counts) = view.split_at(len as usize);
                if let Some(tally) = &mut self.readback.tally {
                    tally.note(counts, &self.counters);
                }
                of(view)
            }
            Err(err) => return Err(self.lose(format!("reading back failed: {err}"))),
        };
        target.buffer.unmap();
        Ok(read)
    }

    /// Waits for everything recorded.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back.
    pub(crate) fn wait(&mut self) -> Result<(), DeviceError> {
        self.submit_now();
        if let Err(err) = self.context.device.poll(PollType::wait_indefinitely()) {
            self.context.lose(format!("waiting failed: {err}"));
        }
        self.on_idle();
        self.check()
    }

    fn read_back(&mut self, bytes: u64) -> Mem {
        match &self.readback.buffer {
            Some(mem) if mem.bytes() >= bytes => mem.clone(),
            _ => {
                let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
                let bytes = bytes.next_power_of_two().max(1 << 16);
                let desc = BufferDesc { bytes, usage, label: "read-back", is_mapped: false };
                let Some(buffer) = self.context.try_buffer(desc) else {
                    self.report_out_of_memory(Fault { bytes, is_lasting: false });
                    return self.bindings.stand_in.clone();
                };
                let mem = Mem::new(buffer);
                self.readback.buffer = Some(mem.clone());
                mem
            }
        }
    }

    /// Waits for a buffer to be mapped; `word` receives whether it was.
    pub(super) fn await_mapping(&self, word: &Receiver<bool>) -> Result<(), DeviceError> {
        let is_mapped = match self.poll_mapping(word) {
            Some(is_mapped) => Ok(is_mapped),
            None => {
                if let Err(err) = self.context.device.poll(PollType::wait_indefinitely()) {
                    self.context.lose(format!("waiting failed: {err}"));
                }
                self.context.check()?;
                // Another backend of this device may be the one that is about to say so.
                word.recv_timeout(CALLBACK)
            }
        };
        self.context.check()?;
        match is_mapped {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.lose(String::from("reading back failed"))),
            Err(err) => Err(self.lose(format!("reading back never ended: {err}"))),
        }
    }

    /// The device is of no use any more.
    pub(super) fn lose(&self, reason: String) -> DeviceError {
        self.context.lose(reason.clone());
        DeviceError::Lost { reason }
    }

    /// Asks for a word for a while.
    fn poll_mapping(&self, word: &Receiver<bool>) -> Option<bool> {
        let since = Instant::now();
        while since.elapsed() < POLLING {
            if let Err(err) = self.context.device.poll(PollType::Poll) {
                self.context.lose(format!("waiting failed: {err}"));
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
}

impl Encoder {
    /// What the device counts in, which a kernel is about to do.
    pub(crate) fn tally(&mut self) -> Mem {
        let mem = match &self.readback.tally {
            Some(tally) => tally.mem.clone(),
            None => self.lasting_storage(TALLY_BYTES, "tally"),
        };
        let known = self.readback.tally.as_ref().map_or([0; 2], |tally| tally.known);
        self.readback.tally = Some(Tally { mem: mem.clone(), known, has_news: true });
        mem
    }
}
