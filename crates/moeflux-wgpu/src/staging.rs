//! The way of experts to the device: threads write them into mapped buffers,
//! from which recorded commands copy them into slots. They may write
//! before there are such commands.
//!
//! Invariant: a buffer is mapped and writers may have it, or it is not and
//! commands may, never both. Whoever submits waits for the writers; when the
//! device has done the copies, the buffer is mapped again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use moeflux_backend::DeviceCounters;
use moeflux_core::{Expert, ExpertKey};
use wgpu::{BufferUsages, MapMode, PollType, SubmissionIndex};

use crate::buffer::Mem;
use crate::context::{Context, Order};
use crate::packing::Packing;
use crate::writers::{Load, Writers};

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
    /// Mapped, with experts.
    lots: Vec<Lot>,
    /// The submission of every buffer that is with the device, the oldest first.
    away: VecDeque<SubmissionIndex>,
    n_made: usize,
    home: Receiver<(Mem, bool)>,
    way_home: Sender<(Mem, bool)>,
}

/// A buffer with experts.
#[derive(Debug)]
struct Lot {
    mem: Mem,
    /// Bytes taken.
    used: u64,
    loads: Vec<Arc<Load>>,
    /// Whether recorded commands, which are not submitted, copy from it.
    is_open: bool,
}

/// Where an expert may go.
enum Room {
    /// Into this lot.
    In(usize),
    /// Into one that commands have to be submitted for first.
    AfterSubmit,
    /// The device gives none; so many bytes were asked for.
    None(u64),
}

/// Where an expert comes from.
pub(crate) enum Origin {
    /// This buffer, from this byte on.
    At(Mem, u64),
    /// Commands have to be submitted first.
    AfterSubmit,
    /// The device gives no room; so many bytes were asked for.
    None(u64),
}

/// An expert and how it lies in its room.
pub(crate) type Packed<'a> = (&'a Arc<Expert>, &'a Arc<Packing>);

impl Staging {
    pub(crate) fn new(counters: Arc<DeviceCounters>) -> Staging {
        let (way_home, home) = channel();
        Staging {
            writers: Writers::new(counters),
            free: Vec::new(),
            lots: Vec::new(),
            away: VecDeque::new(),
            n_made: 0,
            home,
            way_home,
        }
    }

    /// Where commands that are about to be recorded find an expert. Waits for the
    /// device where all buffers are with it.
    pub(crate) fn bring(&mut self, context: &Context, expert: Packed<'_>) -> Origin {
        let found = self.lots.iter_mut().find_map(|lot| Some((lot.find(expert.0.key)?, lot)));
        if let Some((at, lot)) = found {
            lot.is_open = true;
            return Origin::At(lot.mem.clone(), at);
        }
        match self.room(context, expert.1.bytes() as u64) {
            Room::In(nth) => {
                let at = self.fill(nth, expert);
                self.lots[nth].is_open = true;
                Origin::At(self.lots[nth].mem.clone(), at)
            }
            Room::AfterSubmit => Origin::AfterSubmit,
            Room::None(bytes) => Origin::None(bytes),
        }
    }

    /// Begins to write experts that commands will want soon, as far as there is
    /// room for them.
    pub(crate) fn begin(&mut self, context: &Context, experts: &[(Arc<Expert>, Arc<Packing>)]) {
        for (expert, packing) in experts {
            if self.lots.iter().any(|it| it.find(expert.key).is_some()) {
                continue;
            }
            let bytes = packing.bytes() as u64;
            let room = self.lot_with_room(bytes).or_else(|| {
                self.welcome();
                self.begin_lot(context, bytes)
            });
            let Some(nth) = room else { return };
            self.fill(nth, (expert, packing));
        }
    }

    fn lot_with_room(&self, bytes: u64) -> Option<usize> {
        self.lots.iter().position(|it| it.used + bytes <= it.mem.bytes())
    }

    /// Room for an expert of so many bytes that commands are to be recorded for.
    fn room(&mut self, context: &Context, bytes: u64) -> Room {
        if let Some(nth) = self.lot_with_room(bytes) {
            return Room::In(nth);
        }
        let n_open = self.lots.iter().filter(|it| it.is_open).count();
        if n_open >= SUBMITTED_TOGETHER {
            return Room::AfterSubmit;
        }
        loop {
            self.welcome();
            if let Some(nth) = self.begin_lot(context, bytes) {
                return Room::In(nth);
            }
            if n_open > 0 {
                return Room::AfterSubmit;
            }
            if !self.lots.is_empty() {
                // Begun, and then not wanted: something failed in between.
                self.finish(context, self.lots.iter());
                self.free.extend(self.lots.drain(..).map(|it| it.mem));
            } else if self.away.is_empty() || !self.wait(context) {
                return Room::None(asked(bytes));
            }
        }
    }

    /// A lot in an empty buffer, if one is to be had without waiting.
    fn begin_lot(&mut self, context: &Context, bytes: u64) -> Option<usize> {
        let fitting = self.free.iter().position(|it| it.bytes() >= bytes);
        let mem = match fitting {
            Some(at) => self.free.swap_remove(at),
            None => self.make(context, asked(bytes))?,
        };
        self.lots.push(Lot { mem, used: 0, loads: Vec::new(), is_open: false });
        Some(self.lots.len() - 1)
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
        let mut usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
        usage.set(BufferUsages::STORAGE, context.reads_mapped);
        let bytes = bytes.next_multiple_of(ALIGN);
        let order = Order { bytes, usage, label: "staging", is_mapped: true };
        let mem = Mem::new(context.try_buffer(order)?);
        self.n_made += 1;
        Some(mem)
    }

    /// Has an expert written into a lot with room for it; gives its first byte.
    fn fill(&mut self, nth: usize, expert: Packed<'_>) -> u64 {
        let lot = &mut self.lots[nth];
        let at = lot.used;
        lot.used = (at + expert.1.bytes() as u64).next_multiple_of(ALIGN);
        lot.loads.push(self.writers.push(expert, (&lot.mem.buffer, at)));
        at
    }

    /// Buffers that were made.
    #[cfg(test)]
    pub(crate) fn n_made(&self) -> usize {
        self.n_made
    }

    /// Whether recorded commands copy from mapped buffers.
    pub(crate) fn is_open(&self) -> bool {
        self.lots.iter().any(|it| it.is_open)
    }

    /// Waits until experts are where commands expect them, which may then be
    /// submitted.
    pub(crate) fn settle(&mut self, context: &Context) {
        let open = self.lots.iter().filter(|it| it.is_open);
        self.finish(context, open.clone());
        open.for_each(|it| it.mem.buffer.unmap());
    }

    fn finish<'a>(&self, context: &Context, lots: impl Iterator<Item = &'a Lot> + Clone) {
        let loads = lots.flat_map(|it| &it.loads);
        if let Err(reason) = self.writers.finish(loads) {
            context.lose(reason);
        }
    }

    /// Has the buffers of commands that were just submitted mapped again.
    pub(crate) fn submitted(&mut self, index: &SubmissionIndex) {
        for Lot { mem, .. } in self.lots.extract_if(.., |it| it.is_open) {
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

impl Lot {
    /// Where an expert lies.
    fn find(&self, key: ExpertKey) -> Option<u64> {
        self.loads.iter().find(|it| it.key == key).map(|it| it.at)
    }
}

/// Bytes of a buffer for experts of so many.
fn asked(bytes: u64) -> u64 {
    (EXPERTS_PER_BUFFER * bytes).min(BUFFER_BYTES).max(bytes)
}
