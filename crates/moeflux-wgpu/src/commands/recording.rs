//! The batch that is being recorded: commands, and the lists and parameters that they read.

use crate::commands::command::{Batch, Command};
use crate::device::buffer::Mem;
use crate::device::work::{Pace, Work};
use crate::kernels::kernel::Variant;

/// Bytes of the arena.
pub(super) const ARENA_BYTES: usize = 8 << 20;
/// Of these, what an op may count on once it has begun.
pub(super) const OP_BYTES: usize = 2 << 20;
/// Bytes between the parameters of two kernels.
pub(super) const PARAMS_STRIDE: usize = 256;
/// Bytes of the arena that the kernel at the end of a batch may need, with those up to its parameters.
const SERIAL_BYTES: usize = 2 * PARAMS_STRIDE;
/// Kernels after which the device may begin, after a read-back. From then on every batch is half
/// as large again as the one before, up to a limit: the device should not wait for the host, and
/// each submission costs it some kernels' time.
pub(super) const FIRST_BATCH: usize = 16;
const LARGEST_BATCH: usize = 256;

/// The batch that is being recorded.
#[derive(Debug)]
pub(super) struct Recording {
    /// Commands that were not submitted yet.
    pub(super) batch: Batch,
    /// The kernel after all of these, which may still be retracted.
    pub(super) last: Option<Kernel>,
    /// Kernels recorded so far, retracted ones included.
    pub(super) n_recorded: u64,
    /// Kernels of this batch.
    pub(super) n_dispatches: usize,
    /// Kernels after which it is submitted.
    pub(super) most_dispatches: usize,
    /// Counts submissions: the contents of the arena are gone after one.
    pub(super) generation: u64,
    /// Where submissions are bounded by time.
    pub(super) pace: Option<Pace>,
    /// How long the device is busy with this batch, by an estimate.
    seconds: f64,
    /// Whether the batch has the kernel that writes its serial number.
    pub(super) has_serial: bool,
}

/// A kernel about to be recorded, compiled only then: it may be retracted before.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) variant: Variant,
    /// Its bindings after the parameters.
    pub(super) buffers: Vec<Mem>,
    pub(super) params: u32,
    pub(super) grid: [u32; 3],
    /// What a test has copied before it.
    #[cfg(test)]
    pub(super) copies: Vec<Command>,
}

impl Recording {
    pub(super) fn new(pace: Option<Pace>) -> Recording {
        Recording {
            batch: Batch::default(),
            last: None,
            n_recorded: 0,
            n_dispatches: 0,
            most_dispatches: FIRST_BATCH,
            generation: 0,
            pace,
            seconds: 0.0,
            has_serial: false,
        }
    }

    /// Whether nothing is recorded.
    pub(super) fn is_empty(&self) -> bool {
        self.last.is_none() && self.batch.commands.is_empty()
    }

    /// Whether the device should begin.
    pub(super) fn is_full(&self) -> bool {
        self.n_dispatches >= self.most_dispatches || self.is_too_long_with(Work::default())
    }

    /// Whether something is recorded with which the device would be busy too long if this went along.
    pub(super) fn is_too_long_with(&self, work: Work) -> bool {
        !self.is_empty() && self.pace.is_some_and(|pace| pace.is_due(self.seconds, work))
    }

    /// Counts what is recorded next.
    pub(super) fn add_work(&mut self, work: Work) {
        self.seconds += self.pace.map_or(0.0, |pace| pace.seconds(work));
    }

    /// Begins a batch.
    pub(super) fn begin_batch(&mut self, most_dispatches: usize) {
        self.n_dispatches = 0;
        self.most_dispatches = most_dispatches;
        self.seconds = 0.0;
        self.has_serial = false;
    }

    /// Whether an op that begins has its bytes of the arena.
    pub(super) fn has_room(&self) -> bool {
        self.batch.arena.len() + OP_BYTES + SERIAL_BYTES <= ARENA_BYTES
    }

    /// Lets the next batch have half as many kernels again.
    pub(super) fn raise_limit(&mut self) {
        self.most_dispatches = (self.most_dispatches * 3 / 2).min(LARGEST_BATCH);
    }

    /// Puts a list into the arena; gives its first word.
    pub(super) fn list(&mut self, words: &[u32]) -> u32 {
        let at = self.batch.arena.len();
        assert!(at + size_of_val(words) <= ARENA_BYTES, "lists of an op are bounded");
        self.batch.arena.extend_from_slice(bytemuck::cast_slice(words));
        u32::try_from(at / 4).expect("the arena is small")
    }

    /// Puts the parameters of a kernel into the arena; gives their first byte.
    pub(super) fn params(&mut self, params: &[u32]) -> u32 {
        assert!(size_of_val(params) <= PARAMS_STRIDE, "parameters of a kernel");
        let host = &mut self.batch.arena;
        let at = host.len().next_multiple_of(PARAMS_STRIDE);
        assert!(at + PARAMS_STRIDE <= ARENA_BYTES, "parameters of an op are bounded");
        host.resize(at, 0);
        host.extend_from_slice(bytemuck::cast_slice(params));
        host.resize(at + PARAMS_STRIDE, 0);
        u32::try_from(at).expect("the arena is small")
    }

    /// Takes what was recorded for good, if anything was, and begins another batch, in what `next`
    /// gives.
    pub(super) fn take(&mut self, next: impl FnOnce() -> Batch) -> Option<Batch> {
        self.generation += 1;
        self.begin_batch(self.most_dispatches);
        let host = &mut self.batch.arena;
        if self.batch.commands.is_empty() {
            host.clear();
            return None;
        }
        host.resize(host.len().next_multiple_of(4), 0);
        Some(std::mem::replace(&mut self.batch, next()))
    }

    /// Drops what was recorded since the last batch.
    pub(super) fn discard(&mut self) {
        self.last = None;
        self.begin_batch(self.most_dispatches);
        self.batch.commands.clear();
        self.batch.arena.clear();
    }

    /// Records what is no kernel of an op.
    pub(super) fn push(&mut self, command: Command) {
        self.batch.commands.push(command);
    }
}
