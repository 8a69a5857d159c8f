//! Staging buffers: threads write experts into them, and recorded commands copy these into slots.
//! Threads may write before the commands are recorded.
//!
//! Invariant: a buffer belongs to the host and writers may use it, or it belongs to the device and
//! commands may use it, never both. A submission waits for the writers; when the device has run the
//! copies, the buffer returns to the host.

use std::collections::VecDeque;
use std::sync::Arc;

use moeflux_backend::DeviceCounters;
use moeflux_core::{Expert, ExpertKey};

use crate::device::{Returned, StagingBuffer, StagingMemory};
use crate::packing::Packing;
use crate::slot::PackedExpert;
use crate::writers::{Load, Writers};

/// Most staging buffers.
const MAX_BUFFERS: usize = 8;

/// Full chunks that are submitted together, so that the others can be filled while the device
/// copies.
const SUBMITTED_TOGETHER: usize = MAX_BUFFERS / 2;

/// Bytes of one, unless an expert is larger.
pub const BUFFER_BYTES: u64 = 16 << 20;

/// Experts that a buffer holds where that many are small.
const EXPERTS_PER_BUFFER: u64 = 8;

/// Where experts begin in a buffer.
const ALIGN: u64 = 256;

/// Buffers that are filled, copied from, and returned.
#[derive(Debug)]
pub struct Staging<M: StagingMemory> {
    writers: Writers<M::Buffer>,
    memory: M,
    /// Empty, of the host.
    free: Vec<M::Buffer>,
    /// With experts, of the host.
    chunks: Vec<StagingChunk<M::Buffer>>,
    /// The fences after which buffers of the device return, the oldest first.
    in_flight: VecDeque<M::Fence>,
    n_buffers: usize,
}

/// A buffer with experts.
#[derive(Debug)]
struct StagingChunk<B> {
    buffer: B,
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
    NoMemory(u64),
}

/// Where commands copy an expert from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Staged<B> {
    /// From byte `at` of a buffer on.
    At {
        /// The buffer.
        buffer: B,
        /// The expert's first byte.
        at: u64,
    },
    /// What was recorded has to be submitted first.
    AfterSubmit,
    /// There is no memory for a buffer of this many bytes.
    NoMemory(u64),
}

impl<M: StagingMemory> Staging<M> {
    /// Staging buffers of a device; threads report their work to `counters`.
    pub fn new(memory: M, counters: Arc<DeviceCounters>) -> Staging<M> {
        Staging {
            writers: Writers::new(counters),
            memory,
            free: Vec::new(),
            chunks: Vec::new(),
            in_flight: VecDeque::new(),
            n_buffers: 0,
        }
    }

    /// Where an expert is staged, for commands that are about to be recorded; threads may still write
    /// it. Waits for the device where it has all buffers.
    pub fn stage(&mut self, expert: &Arc<Expert>, packing: &Arc<Packing>) -> Staged<M::Buffer> {
        let mut chunks = self.chunks.iter_mut();
        let found = chunks.find_map(|chunk| Some((chunk.first_byte(expert.key)?, chunk)));
        if let Some((at, chunk)) = found {
            chunk.is_open = true;
            return Staged::At { buffer: chunk.buffer.clone(), at };
        }
        let bytes = packing.bytes() as u64;
        match self.destination(bytes, chunk_bytes(bytes)) {
            Destination::Chunk(idx) => {
                let at = self.fill(idx, expert, packing);
                let chunk = &mut self.chunks[idx];
                chunk.is_open = true;
                Staged::At { buffer: chunk.buffer.clone(), at }
            }
            Destination::AfterSubmit => Staged::AfterSubmit,
            Destination::NoMemory(bytes) => Staged::NoMemory(bytes),
        }
    }

    /// Where commands that are about to be recorded copy `bytes` bytes from, at most
    /// [`BUFFER_BYTES`]. The caller writes all of them before it submits the commands. Waits for the
    /// device where it has all buffers.
    pub fn reserve(&mut self, bytes: u64) -> Staged<M::Buffer> {
        match self.destination(bytes, BUFFER_BYTES) {
            Destination::Chunk(idx) => {
                let chunk = &mut self.chunks[idx];
                let at = chunk.used;
                chunk.used = (at + bytes).next_multiple_of(ALIGN);
                chunk.is_open = true;
                Staged::At { buffer: chunk.buffer.clone(), at }
            }
            Destination::AfterSubmit => Staged::AfterSubmit,
            Destination::NoMemory(bytes) => Staged::NoMemory(bytes),
        }
    }

    /// Begins to write experts that commands will copy soon, as far as there is space for them without
    /// waiting.
    pub fn begin(&mut self, experts: &[PackedExpert]) {
        for PackedExpert { expert, packing } in experts {
            if self.chunks.iter().any(|chunk| chunk.first_byte(expert.key).is_some()) {
                continue;
            }
            let bytes = packing.bytes() as u64;
            let chunk = self.chunk_with_space(bytes).or_else(|| {
                self.collect_returned();
                self.begin_chunk(bytes, chunk_bytes(bytes))
            });
            let Some(idx) = chunk else { return };
            self.fill(idx, expert, packing);
        }
    }

    fn chunk_with_space(&self, bytes: u64) -> Option<usize> {
        self.chunks.iter().position(|chunk| chunk.used + bytes <= chunk.buffer.bytes())
    }

    /// Space for bytes that commands are about to copy, in a new buffer of `buffer_bytes` where there is
    /// none.
    fn destination(&mut self, bytes: u64, buffer_bytes: u64) -> Destination {
        if let Some(idx) = self.chunk_with_space(bytes) {
            return Destination::Chunk(idx);
        }
        let n_open = self.chunks.iter().filter(|chunk| chunk.is_open).count();
        if n_open >= SUBMITTED_TOGETHER {
            return Destination::AfterSubmit;
        }
        loop {
            self.collect_returned();
            if let Some(idx) = self.begin_chunk(bytes, buffer_bytes) {
                return Destination::Chunk(idx);
            }
            if n_open > 0 {
                return Destination::AfterSubmit;
            }
            if !self.chunks.is_empty() {
                // Begun, and then not wanted: something failed in between.
                self.finish(self.chunks.iter());
                self.free.extend(self.chunks.drain(..).map(|chunk| chunk.buffer));
            } else if self.in_flight.is_empty() || !self.wait() {
                return Destination::NoMemory(buffer_bytes);
            }
        }
    }

    /// A new chunk in an empty buffer with room for `bytes`, if one is free without waiting; a new one
    /// has `buffer_bytes`.
    fn begin_chunk(&mut self, bytes: u64, buffer_bytes: u64) -> Option<usize> {
        let fitting = self.free.iter().position(|buffer| buffer.bytes() >= bytes);
        let buffer = match fitting {
            Some(idx) => self.free.swap_remove(idx),
            None => self.allocate(buffer_bytes)?,
        };
        self.chunks.push(StagingChunk { buffer, used: 0, loads: Vec::new(), is_open: false });
        Some(self.chunks.len() - 1)
    }

    /// Allocates one more buffer, within the limit and the memory of the device.
    fn allocate(&mut self, bytes: u64) -> Option<M::Buffer> {
        // Too small for what comes now.
        for buffer in self.free.drain(..) {
            self.n_buffers -= 1;
            self.memory.free(buffer);
        }
        if self.n_buffers >= MAX_BUFFERS {
            return None;
        }
        let buffer = self.memory.try_allocate(bytes.next_multiple_of(ALIGN))?;
        self.n_buffers += 1;
        Some(buffer)
    }

    /// Has an expert written into a chunk with space for it; returns its first byte.
    fn fill(&mut self, idx: usize, expert: &Arc<Expert>, packing: &Arc<Packing>) -> u64 {
        let chunk = &mut self.chunks[idx];
        let at = chunk.used;
        chunk.used = (at + packing.bytes() as u64).next_multiple_of(ALIGN);
        chunk.loads.push(self.writers.push(expert, packing, &chunk.buffer, at));
        at
    }

    /// The number of buffers that are allocated.
    pub fn n_buffers(&self) -> usize {
        self.n_buffers
    }

    /// Whether recorded commands copy from buffers of the host.
    pub fn is_open(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.is_open)
    }

    /// Waits until the experts that commands copy are written, and passes their buffers to the device:
    /// right before the commands are submitted.
    pub fn finish_writes(&mut self) {
        let open = self.chunks.iter().filter(|chunk| chunk.is_open);
        self.finish(open.clone());
        open.for_each(|chunk| self.memory.pass_to_device(&chunk.buffer));
    }

    /// Waits until at most this many experts are still being written, or none where there are more: until
    /// then threads hold them.
    pub fn release_experts(&self, at_most: usize) {
        let all = self.chunks.iter();
        let loads = all.clone().flat_map(|chunk| &chunk.loads);
        if loads.filter(|load| !load.is_done()).count() > at_most {
            self.finish(all);
        }
    }

    fn finish<'a>(&self, chunks: impl Iterator<Item = &'a StagingChunk<M::Buffer>> + Clone)
    where
        M::Buffer: 'a,
    {
        let loads = chunks.flat_map(|chunk| &chunk.loads);
        if let Err(reason) = self.writers.finish(loads) {
            self.memory.report_lost(reason);
        }
    }

    /// Has the buffers that were passed to the device returned after the commands that were just
    /// submitted.
    pub fn submitted(&mut self, fence: &M::Fence) {
        for chunk in self.chunks.extract_if(.., |chunk| chunk.is_open) {
            self.in_flight.push_back(fence.clone());
            self.memory.return_after(&chunk.buffer, fence);
        }
    }

    /// Whether the device has any buffer.
    pub fn has_in_flight(&mut self) -> bool {
        self.collect_returned();
        !self.in_flight.is_empty()
    }

    fn collect_returned(&mut self) {
        while let Some(returned) = self.memory.poll_returned() {
            self.put_back(returned);
        }
    }

    fn put_back(&mut self, Returned { buffer, is_writable }: Returned<M::Buffer>) {
        self.in_flight.pop_front();
        if is_writable {
            self.free.push(buffer);
        } else {
            // The device is lost; it says so at the next read-back.
            self.n_buffers -= 1;
        }
    }

    /// Waits for the oldest submission's buffer, but not for later submissions; false where the device
    /// is lost.
    fn wait(&mut self) -> bool {
        let Some(fence) = self.in_flight.front() else { return false };
        match self.memory.wait_returned(fence) {
            Ok(returned) => self.put_back(returned),
            Err(reason) => {
                self.memory.report_lost(reason);
                return false;
            }
        }
        true
    }
}

impl<B> StagingChunk<B> {
    /// The first byte of an expert.
    fn first_byte(&self, key: ExpertKey) -> Option<u64> {
        self.loads.iter().find(|load| load.key == key).map(|load| load.at)
    }
}

/// Bytes of a buffer for experts of `bytes` bytes each.
fn chunk_bytes(bytes: u64) -> u64 {
    (EXPERTS_PER_BUFFER * bytes).min(BUFFER_BYTES).max(bytes)
}
