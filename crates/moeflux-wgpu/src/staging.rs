//! The way of experts to the device: threads write them into mapped buffers,
//! from which recorded commands copy them into slots.
//!
//! Invariant: a buffer is mapped and writers may have it, or it is not and
//! commands may, never both. Whoever submits waits for the writers; when the
//! device has done the copies, the buffer is mapped again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use moeflux_backend::DeviceCounters;
use moeflux_core::Expert;
use wgpu::{BufferUsages, MapMode, PollType, SubmissionIndex};

use crate::context::{Context, Order};
use crate::encoder::Mem;
use crate::experts::Packing;
use crate::writers::{Job, Writers};

/// Most staging buffers.
const BUFFERS: usize = 8;

/// So many full ones are submitted, so that the others can be filled while the
/// device copies.
const SUBMITTED_TOGETHER: usize = BUFFERS / 2;

/// Bytes of one, unless an expert is larger.
const BUFFER_BYTES: u64 = 16 << 20;

/// Experts that a buffer holds where that many are small.
const EXPERTS_PER_BUFFER: u64 = 8;

/// Where experts begin in a buffer.
const ALIGN: u64 = 256;

/// Longest time between the end of a wait and the word of it.
const CALLBACK: Duration = Duration::from_secs(10);

/// Buffers on their way round: filled, copied from, mapped again.
#[derive(Debug)]
pub(crate) struct Staging {
    writers: Writers,
    /// Mapped and empty.
    free: Vec<Mem>,
    /// Mapped, with experts for commands that are not submitted; the last one
    /// may have room.
    open: Vec<Mem>,
    /// Bytes taken of the last one.
    used: u64,
    /// The submission of every buffer that is with the device, the oldest first.
    away: VecDeque<SubmissionIndex>,
    n_made: usize,
    home: Receiver<(Mem, bool)>,
    way_home: Sender<(Mem, bool)>,
}

/// Where an expert may go.
pub(crate) enum Room {
    /// Into this buffer, from this byte on.
    At(Mem, u64),
    /// Into one that commands have to be submitted for first.
    AfterSubmit,
    /// The device gives none; so many bytes were asked for.
    None(u64),
}

impl Staging {
    pub(crate) fn new(counters: Arc<DeviceCounters>) -> Staging {
        let (way_home, home) = channel();
        Staging {
            writers: Writers::new(counters),
            free: Vec::new(),
            open: Vec::new(),
            used: 0,
            away: VecDeque::new(),
            n_made: 0,
            home,
            way_home,
        }
    }

    /// Room for an expert of so many bytes. Waits for the device where all
    /// buffers are with it.
    pub(crate) fn room(&mut self, context: &Context, bytes: u64) -> Room {
        if let Some(last) = self.open.last()
            && self.used + bytes <= last.bytes()
        {
            let at = self.used;
            self.used = (at + bytes).next_multiple_of(ALIGN);
            return Room::At(last.clone(), at);
        }
        if self.open.len() >= SUBMITTED_TOGETHER {
            return Room::AfterSubmit;
        }
        let asked = (EXPERTS_PER_BUFFER * bytes).min(BUFFER_BYTES).max(bytes);
        loop {
            self.welcome();
            let fitting = self.free.iter().position(|it| it.bytes() >= bytes);
            let next = match fitting {
                Some(at) => Some(self.free.swap_remove(at)),
                None => self.make(context, asked),
            };
            if let Some(next) = next {
                self.open.push(next.clone());
                self.used = bytes.next_multiple_of(ALIGN);
                return Room::At(next, 0);
            }
            if !self.open.is_empty() {
                return Room::AfterSubmit;
            }
            if self.away.is_empty() || !self.wait(context) {
                return Room::None(asked);
            }
        }
    }

    /// One buffer more, if there may be one and the device has memory for it.
    fn make(&mut self, context: &Context, bytes: u64) -> Option<Mem> {
        // Too small for what comes now.
        for mem in self.free.drain(..) {
            self.n_made -= 1;
            mem.buffer.destroy();
        }
        if self.n_made >= BUFFERS {
            return None;
        }
        let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
        let bytes = bytes.next_multiple_of(ALIGN);
        let order = Order { bytes, usage, label: "staging", is_mapped: true };
        let mem = Mem::new(context.try_buffer(order)?);
        self.n_made += 1;
        Some(mem)
    }

    /// Has an expert written into a buffer.
    pub(crate) fn fill(
        &mut self,
        (mem, at): (&Mem, u64),
        expert: &Arc<Expert>,
        packing: &Arc<Packing>,
    ) {
        let job = |matrix| Job {
            expert: Arc::clone(expert),
            packing: Arc::clone(packing),
            matrix,
            buffer: mem.buffer.clone(),
            at,
        };
        self.writers.push((0..packing.n_matrices()).map(job));
    }

    /// Whether recorded commands copy from mapped buffers.
    pub(crate) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Waits until experts are where commands expect them, which may then be
    /// submitted.
    pub(crate) fn settle(&mut self, context: &Context) {
        if let Err(reason) = self.writers.finish() {
            context.lose(reason);
        }
        self.open.iter().for_each(|it| it.buffer.unmap());
    }

    /// Has the buffers of commands that were just submitted mapped again.
    pub(crate) fn submitted(&mut self, index: &SubmissionIndex) {
        for mem in self.open.drain(..) {
            self.away.push_back(index.clone());
            let way_home = self.way_home.clone();
            let returned = mem.clone();
            mem.buffer.map_async(MapMode::Write, .., move |outcome| {
                // Nobody is at home once the backend is gone.
                let _ = way_home.send((returned, outcome.is_ok()));
            });
        }
    }

    /// Whether buffers are with the device.
    pub(crate) fn is_away(&mut self) -> bool {
        self.welcome();
        !self.away.is_empty()
    }

    /// Takes back the buffers that are mapped again.
    fn welcome(&mut self) {
        while let Ok(it) = self.home.try_recv() {
            self.take_back(it);
        }
    }

    fn take_back(&mut self, (mem, is_mapped): (Mem, bool)) {
        self.away.pop_front();
        if is_mapped {
            self.free.push(mem);
        } else {
            // The device is lost; it says so at the next read-back.
            self.n_made -= 1;
        }
    }

    /// Waits for the buffer that went first to come back, but not for what was
    /// submitted behind it; false where none will.
    fn wait(&mut self, context: &Context) -> bool {
        let submission_index = self.away.front().cloned();
        if let Err(err) = context.device.poll(PollType::Wait { submission_index, timeout: None }) {
            context.lose(format!("waiting failed: {err}"));
            return false;
        }
        // Another backend of this device may be the one that is about to say so.
        match self.home.recv_timeout(CALLBACK) {
            Ok(it) => self.take_back(it),
            Err(err) => {
                context.lose(format!("a staging buffer never came back: {err}"));
                return false;
            }
        }
        true
    }
}
