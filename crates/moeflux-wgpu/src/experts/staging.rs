//! Staging buffers: threads write experts into mapped buffers, from which recorded commands copy
//! them into slots. They may write before the commands are recorded.
//!
//! Invariant: a buffer is mapped and writers may use it, or it is not mapped and commands may use
//! it, never both. A submission waits for the writers; when the device has run the copies, the
//! buffer is mapped again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use moeflux_backend::DeviceCounters;
use moeflux_core::{Expert, ExpertKey};
use wgpu::{BufferUsages, MapMode, PollType, SubmissionIndex};

use crate::device::buffer::{BufferDesc, Mem};
use crate::device::context::Context;
use crate::experts::packing::Packing;
use crate::experts::writers::{Load, Writers};

/// Most staging buffers.
const BUFFERS: usize = 8;

/// Full chunks that are submitted together, so that the others can be filled while the device
/// copies.
const SUBMITTED_TOGETHER: usize = BUFFERS / 2;

/// Bytes of one, unless an expert is larger.
const BUFFER_BYTES: u64 = 16 << 20;

/// Experts that a buffer holds where that many are small.
const EXPERTS_PER_BUFFER: u64 = 8;

/// Where experts begin in a buffer.
const ALIGN: u64 = 256;

/// Longest time between the end of a wait and the callback.
const CALLBACK: Duration = Duration::from_secs(10);

/// Buffers that are filled, copied from, and mapped again.
#[derive(Debug)]
pub(crate) struct Staging {
    writers: Writers,
    /// Mapped and empty.
    free: Vec<Mem>,
    /// Mapped, with experts.
    chunks: Vec<StagingChunk>,
    /// The submissions of buffers that the device copies from, the oldest first.
    in_flight: VecDeque<SubmissionIndex>,
    n_made: usize,
    returned: Receiver<(Mem, bool)>,
    return_sender: Sender<(Mem, bool)>,
}

/// A mapped buffer with experts.
#[derive(Debug)]
struct StagingChunk {
    mem: Mem,
    /// Bytes taken.
    used: u64,
    loads: Vec<Arc<Load>>,
    /// Whether recorded commands, which are not submitted, copy from it.
    is_open: bool,
}

/// Where an expert can be written.
enum Destination {
    /// Into the chunk of this index.
    Chunk(usize),
    /// Into a chunk that is free after a submission.
    AfterSubmit,
    /// There is no memory for this many bytes.
    None(u64),
}

/// Where an expert comes from.
pub(crate) enum Origin {
    /// This buffer, from this byte on.
    At(Mem, u64),
    /// Commands have to be submitted first.
    AfterSubmit,
    /// There is no memory for this many bytes.
    None(u64),
}

/// An expert and how it is stored in its slot.
pub(crate) type Packed<'a> = (&'a Arc<Expert>, &'a Arc<Packing>);

impl Staging {
    pub(crate) fn new(counters: Arc<DeviceCounters>) -> Staging {
        let (return_sender, returned) = channel();
        Staging {
            writers: Writers::new(counters),
            free: Vec::new(),
            chunks: Vec::new(),
            in_flight: VecDeque::new(),
            n_made: 0,
            returned,
            return_sender,
        }
    }

    /// The staged bytes of an expert, for commands that are about to be recorded. Waits for the device
    /// where it uses all buffers.
    pub(crate) fn stage(&mut self, context: &Context, expert: Packed<'_>) -> Origin {
        let found =
            self.chunks.iter_mut().find_map(|chunk| Some((chunk.find(expert.0.key)?, chunk)));
        if let Some((at, chunk)) = found {
            chunk.is_open = true;
            return Origin::At(chunk.mem.clone(), at);
        }
        match self.destination(context, expert.1.bytes() as u64) {
            Destination::Chunk(nth) => {
                let at = self.fill(nth, expert);
                self.chunks[nth].is_open = true;
                Origin::At(self.chunks[nth].mem.clone(), at)
            }
            Destination::AfterSubmit => Origin::AfterSubmit,
            Destination::None(bytes) => Origin::None(bytes),
        }
    }

    /// Begins to write experts that commands will need soon, as far as there is space for them.
    pub(crate) fn begin(&mut self, context: &Context, experts: &[(Arc<Expert>, Arc<Packing>)]) {
        for (expert, packing) in experts {
            if self.chunks.iter().any(|it| it.find(expert.key).is_some()) {
                continue;
            }
            let bytes = packing.bytes() as u64;
            let chunk = self.chunk_with_space(bytes).or_else(|| {
                self.collect_returned();
                self.begin_chunk(context, bytes)
            });
            let Some(nth) = chunk else { return };
            self.fill(nth, (expert, packing));
        }
    }

    fn chunk_with_space(&self, bytes: u64) -> Option<usize> {
        self.chunks.iter().position(|it| it.used + bytes <= it.mem.bytes())
    }

    /// Space for an expert that commands are about to copy.
    fn destination(&mut self, context: &Context, bytes: u64) -> Destination {
        if let Some(nth) = self.chunk_with_space(bytes) {
            return Destination::Chunk(nth);
        }
        let n_open = self.chunks.iter().filter(|it| it.is_open).count();
        if n_open >= SUBMITTED_TOGETHER {
            return Destination::AfterSubmit;
        }
        loop {
            self.collect_returned();
            if let Some(nth) = self.begin_chunk(context, bytes) {
                return Destination::Chunk(nth);
            }
            if n_open > 0 {
                return Destination::AfterSubmit;
            }
            if !self.chunks.is_empty() {
                // Begun, and then not wanted: something failed in between.
                self.finish(context, self.chunks.iter());
                self.free.extend(self.chunks.drain(..).map(|it| it.mem));
            } else if self.in_flight.is_empty() || !self.wait(context) {
                return Destination::None(chunk_bytes(bytes));
            }
        }
    }

    /// A new chunk in an empty buffer, if one is free without waiting.
    fn begin_chunk(&mut self, context: &Context, bytes: u64) -> Option<usize> {
        let fitting = self.free.iter().position(|it| it.bytes() >= bytes);
        let mem = match fitting {
            Some(at) => self.free.swap_remove(at),
            None => self.make(context, chunk_bytes(bytes))?,
        };
        self.chunks.push(StagingChunk { mem, used: 0, loads: Vec::new(), is_open: false });
        Some(self.chunks.len() - 1)
    }

    /// Allocates one more buffer, within the limit and the memory of the device.
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
        let desc = BufferDesc { bytes, usage, label: "staging", is_mapped: true };
        let mem = Mem::new(context.try_buffer(desc)?);
        self.n_made += 1;
        Some(mem)
    }

    /// Has an expert written into a chunk with space for it; returns its first byte.
    fn fill(&mut self, nth: usize, expert: Packed<'_>) -> u64 {
        let chunk = &mut self.chunks[nth];
        let at = chunk.used;
        chunk.used = (at + expert.1.bytes() as u64).next_multiple_of(ALIGN);
        chunk.loads.push(self.writers.push(expert, (&chunk.mem.buffer, at)));
        at
    }

    /// Buffers that were made.
    #[cfg(test)]
    pub(crate) fn n_made(&self) -> usize {
        self.n_made
    }

    /// Whether recorded commands copy from mapped buffers.
    pub(crate) fn is_open(&self) -> bool {
        self.chunks.iter().any(|it| it.is_open)
    }

    /// Waits until the writers have written the experts that commands copy, and unmaps the buffers.
    pub(crate) fn finish_writes(&mut self, context: &Context) {
        let open = self.chunks.iter().filter(|it| it.is_open);
        self.finish(context, open.clone());
        open.for_each(|it| it.mem.buffer.unmap());
    }

    fn finish<'a>(
        &self,
        context: &Context,
        chunks: impl Iterator<Item = &'a StagingChunk> + Clone,
    ) {
        let loads = chunks.flat_map(|it| &it.loads);
        if let Err(reason) = self.writers.finish(loads) {
            context.lose(reason);
        }
    }

    /// Has the buffers of commands that were just submitted mapped again.
    pub(crate) fn submitted(&mut self, index: &SubmissionIndex) {
        for StagingChunk { mem, .. } in self.chunks.extract_if(.., |it| it.is_open) {
            self.in_flight.push_back(index.clone());
            let return_sender = self.return_sender.clone();
            let returned = mem.clone();
            mem.buffer.map_async(MapMode::Write, .., move |outcome| {
                // The receiver is gone once the backend is dropped.
                let _ = return_sender.send((returned, outcome.is_ok()));
            });
        }
    }

    /// Whether the device uses any buffer.
    pub(crate) fn has_in_flight(&mut self) -> bool {
        self.collect_returned();
        !self.in_flight.is_empty()
    }

    /// Collects the buffers that are mapped again.
    fn collect_returned(&mut self) {
        while let Ok(it) = self.returned.try_recv() {
            self.put_back(it);
        }
    }

    fn put_back(&mut self, (mem, is_mapped): (Mem, bool)) {
        self.in_flight.pop_front();
        if is_mapped {
            self.free.push(mem);
        } else {
            // The device is lost; it says so at the next read-back.
            self.n_made -= 1;
        }
    }

    /// Waits for the oldest submission's buffer, but not for later submissions; false where the device is
    /// lost.
    fn wait(&mut self, context: &Context) -> bool {
        let submission_index = self.in_flight.front().cloned();
        if let Err(err) = context.device.poll(PollType::Wait { submission_index, timeout: None }) {
            context.lose(format!("waiting failed: {err}"));
            return false;
        }
        // Another backend of this device may run the callback.
        match self.returned.recv_timeout(CALLBACK) {
            Ok(it) => self.put_back(it),
            Err(err) => {
                context.lose(format!("a staging buffer never came back: {err}"));
                return false;
            }
        }
        true
    }
}

impl StagingChunk {
    /// The first byte of an expert.
    fn find(&self, key: ExpertKey) -> Option<u64> {
        self.loads.iter().find(|it| it.key == key).map(|it| it.at)
    }
}

/// Bytes of a buffer for experts of `bytes` bytes each.
fn chunk_bytes(bytes: u64) -> u64 {
    (EXPERTS_PER_BUFFER * bytes).min(BUFFER_BYTES).max(bytes)
}
