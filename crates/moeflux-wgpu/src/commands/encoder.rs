//! Records kernels in order and submits them: one stream of commands, waited for at read-backs
//! only.
//!
//! Parameters and lists of a submission are in one buffer, the arena, which is written right
//! before the commands that read it.

use std::ops::Range;
use std::sync::Arc;

use moeflux_backend::DeviceCounters;
use wgpu::{BufferUsages, PollType};

use crate::commands::bindings::Bindings;
use crate::commands::buffers::Buffers;
use crate::commands::command::{Batch, Command};
use crate::commands::gather::{GATHER_THREADS, PendingUpload};
use crate::commands::grid::Grid;
use crate::commands::prerecording::Prerecording;
use crate::commands::profiler::Profiler;
use crate::commands::readback::Readback;
use crate::commands::recording::{ARENA_BYTES, FIRST_BATCH, Kernel, OP_BYTES, Recording};
use crate::commands::serials::Serials;
use crate::commands::submitter::Submitter;
use crate::commands::uploads::Uploads;
use crate::device::allocated_ahead::AllocatedAhead;
use crate::device::buffer::{BufferDesc, Mem, MemAt};
use crate::device::context::Context;
use crate::device::work::{Pace, Work};
use crate::kernels::kernel::Variant;
use crate::kernels::moe::ExpertGather;
use crate::words::word;

/// Most workgroups of one dimension.
const GRID: u32 = 32_768;

/// Kernels that are encoded together ahead of their step: threads share out what comes again.
const AHEAD_BATCH: usize = 64;

/// The command stream of one backend.
#[derive(Debug)]
pub(crate) struct Encoder {
    context: Arc<Context>,
    pub(crate) submitter: Submitter,
    pub(super) recording: Recording,
    bindings: Bindings,
    pub(crate) buffers: Buffers,
    pub(crate) uploads: Uploads,
    pub(crate) readback: Readback,
    pub(crate) serials: Serials,
    pub(super) profiler: Profiler,
    pub(crate) prerecording: Prerecording,
    /// Memory for experts that are loaded soon.
    pub(crate) ahead: AllocatedAhead,
    /// Counts of kernels, waits, and experts on their way.
    pub(crate) counters: Arc<DeviceCounters>,
    /// What kernels read, for tests that run them elsewhere.
    #[cfg(test)]
    pub(crate) capture: Option<Arc<std::sync::Mutex<crate::commands::capture::Capture>>>,
}

impl Encoder {
    pub(crate) fn new(context: Arc<Context>) -> Encoder {
        let usage = BufferUsages::UNIFORM | BufferUsages::STORAGE | BufferUsages::COPY_DST;
        let usage = if cfg!(test) { usage | BufferUsages::COPY_SRC } else { usage };
        let bytes = ARENA_BYTES as u64;
        let (arena, has_arena) =
            context.buffer(BufferDesc { bytes, usage, label: "arena", is_mapped: false });
        let mut buffers = Buffers::new(Arc::clone(&context));
        if !has_arena {
            buffers.report_out_of_memory(bytes, true);
        }
        let counters = Arc::<DeviceCounters>::default();
        Encoder {
            submitter: Submitter::new(Arc::clone(&context), arena.clone()),
            recording: Recording::new(context.pace),
            bindings: Bindings::new(Mem::new(arena)),
            uploads: Uploads::new(Arc::clone(&context), Arc::clone(&counters)),
            readback: Readback::default(),
            serials: Serials::new(Arc::clone(&context), &mut buffers),
            profiler: Profiler::default(),
            prerecording: Prerecording::new(Arc::clone(&counters)),
            ahead: AllocatedAhead::default(),
            buffers,
            context,
            counters,
            #[cfg(test)]
            capture: None,
        }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Which submission is being recorded.
    pub(crate) fn generation(&self) -> u64 {
        self.recording.generation
    }

    /// The lists of this submission, as kernels bind them.
    pub(crate) fn arena(&self) -> Mem {
        self.bindings.arena.clone()
    }

    /// Begins an op, whose lists and parameters stay in one submission as long
    /// as they are bounded by `OP_BYTES`.
    pub(crate) fn begin(&mut self) {
        self.prerecording.assert_may_record();
        let (is_full, has_room) = (self.recording.is_full(), self.recording.has_room());
        if self.prerecording.is_active() {
            match (has_room, is_full) {
                (false, _) => self.abandon_prerecording(),
                (true, true) => self.encode_prerecorded(),
                (true, false) => {}
            }
        } else if is_full || !has_room {
            self.submit();
            self.recording.raise_limit();
        }
    }

    /// Goes on in an op with kernels that read no list from before. What is recorded is submitted where
    /// the device would be busy too long with these, too.
    pub(crate) fn go_on(&mut self, work: Work) {
        if self.recording.is_too_long_with(work) {
            if self.prerecording.is_active() {
                self.encode_prerecorded();
            } else {
                self.submit();
            }
        }
        self.recording.add_work(work);
    }

    /// Set where submissions are bounded by time.
    pub(crate) fn pace(&self) -> Option<Pace> {
        self.recording.pace
    }

    /// In how many parts an op is recorded, for which [`Encoder::go_on`] may submit what is before.
    pub(crate) fn n_parts(&self, work: Work) -> usize {
        self.pace().map_or(1, |pace| pace.n_parts(work))
    }

    /// Words that a list may have.
    pub(crate) fn list_limit() -> usize {
        OP_BYTES / 8
    }

    /// Puts a list into the arena; gives its first word.
    pub(crate) fn list(&mut self, words: &[u32]) -> u32 {
        self.recording.list(words)
    }

    /// Runs a kernel; `buffers` are its bindings after the parameters.
    pub(crate) fn dispatch(
        &mut self,
        kernel: impl Into<Variant>,
        params: &[u32],
        buffers: &[&Mem],
        grid: Grid,
    ) {
        self.dispatch_variant(kernel.into(), params, buffers, grid);
    }

    fn dispatch_variant(&mut self, variant: Variant, params: &[u32], buffers: &[&Mem], grid: Grid) {
        let (x, y, z) = match grid {
            Grid::Linear(n) => {
                let n = u32::try_from(n).expect("few workgroups");
                let x = n.clamp(1, GRID);
                (x, n.div_ceil(x), 1)
            }
            Grid::Plane(n, times) => {
                let word = |n| u32::try_from(n).expect("few workgroups");
                (word(n).min(GRID), word(times).min(GRID), word(times).div_ceil(GRID))
            }
        };
        if x * y * z == 0 || self.buffers.is_out_of_memory() {
            return;
        }
        self.record_pending_uploads();
        assert!(x <= 65_535 && z <= 65_535, "a kernel of {x} x {y} x {z} workgroups");
        #[cfg(test)]
        let copies = self.copies_of((variant, [x, y, z], params), buffers);
        let params = self.recording.params(params);
        self.commit_last();
        self.recording.add_work(Work::of_workgroups([x, y, z].map(u64::from).iter().product()));
        self.recording.last = Some(Kernel {
            variant,
            buffers: buffers.iter().map(|mem| (*mem).clone()).collect(),
            params,
            grid: [x, y, z],
            #[cfg(test)]
            copies,
        });
        self.recording.n_recorded += 1;
    }

    /// Commands that copy what a kernel reads, where that is captured; of the arena what is in use.
    #[cfg(test)]
    fn copies_of(&self, kernel: (Variant, [u32; 3], &[u32]), buffers: &[&Mem]) -> Vec<Command> {
        let Some(capture) = &self.capture else { return Vec::new() };
        let arena = self.recording.batch.arena.len().max(1).next_multiple_of(256) as u64;
        let in_use = |mem: &Mem| if *mem == self.bindings.arena { arena } else { mem.bytes() };
        let buffers: Vec<_> = buffers.iter().map(|mem| (*mem, in_use(mem))).collect();
        let mut capture = capture.lock().expect("no test has failed");
        capture.before(&self.context, kernel, &buffers)
    }

    /// The number of the kernel recorded last.
    pub(crate) fn last_kernel(&self) -> u64 {
        self.recording.n_recorded
    }

    /// Removes kernel `nth`, if it is the last and was not submitted; its lists and parameters stay
    /// in the arena.
    pub(crate) fn retract_kernel(&mut self, nth: u64) -> bool {
        nth == self.recording.n_recorded && self.recording.last.take().is_some()
    }

    /// Records the last kernel for good: it cannot be retracted after this.
    pub(super) fn commit_last(&mut self) {
        let Some(kernel) = self.recording.last.take() else { return };
        #[cfg(test)]
        self.recording.batch.commands.extend(kernel.copies);
        let Kernel { variant, buffers, params, grid, .. } = kernel;
        let Encoder { context, bindings, recording, profiler, .. } = self;
        let pipeline = context.pipeline(variant);
        let group = bindings.group(&context.device, &pipeline, &buffers);
        let name = variant.info.name;
        profiler.stamp_end(recording, || String::from("wait for the host"), true);
        recording.push(Command::Run { pipeline, group, params, grid });
        recording.n_dispatches += 1;
        let [x, y, z] = grid;
        profiler.stamp_end(recording, || format!("{name} {x} x {}", y * z), false);
        self.prerecording.count_kernel();
    }

    /// Records what is no kernel.
    pub(super) fn record(&mut self, command: Command) {
        self.prerecording.assert_may_record();
        self.record_pending_uploads();
        self.commit_last();
        self.recording.push(command);
    }

    /// Records the kernels that bring what is to come, before anything else is recorded:
    /// together they are quicker than one by one.
    pub(super) fn record_pending_uploads(&mut self) {
        if self.uploads.pending.is_empty() {
            return;
        }
        let mut pending = std::mem::take(&mut self.uploads.pending);
        pending.sort_by_key(PendingUpload::buffers);
        for those in pending.chunk_by(|a, b| a.buffers() == b.buffers() && a.places == b.places) {
            let PendingUpload { from, to, places, .. } = &those[0];
            let words: Vec<u32> = those.iter().flat_map(|upload| upload.source).collect();
            let mut params = vec![word(places.len()), self.list(&words), word(those.len()), 0];
            params.extend(places.iter().flat_map(|[to, end]| [*to, *end, 0, 0]));
            let size = places.last().map_or(0, |[_, end]| *end) as usize;
            let arena = self.arena();
            let grid = Grid::Plane(size.div_ceil(GATHER_THREADS), those.len());
            self.dispatch(ExpertGather {}, &params, &[&arena, to, from], grid);
        }
        pending.clear();
        self.uploads.pending = pending;
    }

    /// Copies bytes from buffer to buffer, in order with the kernels.
    pub(crate) fn copy(&mut self, from: MemAt<'_>, to: MemAt<'_>, bytes: u64) {
        // Else also where memory ran out: the larger buffer takes the other's place.
        if self.buffers.is_stand_in(from.mem) || self.buffers.is_stand_in(to.mem) {
            return;
        }
        let [from, to] = [from, to].map(|place| (place.mem.buffer.clone(), place.at));
        self.record(Command::Copy { from, to, bytes });
        self.profiler.stamp_end(&mut self.recording, || String::from("copies"), false);
    }

    /// Fills bytes of a buffer with zeros, in order with the kernels.
    pub(crate) fn clear(&mut self, mem: &Mem, bytes: Range<u64>) {
        if self.buffers.is_stand_in(mem) || bytes.is_empty() {
            return;
        }
        let len = bytes.end - bytes.start;
        self.record(Command::Clear(mem.buffer.clone(), bytes.start, len));
    }

    /// Overwrites bytes, after everything recorded so far.
    pub(crate) fn write(&mut self, to: &Mem, offset: u64, bytes: &[u8]) {
        self.prerecording.assert_may_record();
        if self.prerecording.is_active() {
            // Kernels that are still to come, some of them before it, would all see it.
            self.abandon_prerecording();
        }
        self.submit();
        self.submitter.finish();
        if !bytes.is_empty() && !self.buffers.is_out_of_memory() {
            self.context.queue.write_buffer(&to.buffer, offset, bytes);
        }
    }

    /// Submits what was recorded, if anything was.
    pub(crate) fn flush(&mut self) {
        let has_some = !self.recording.is_empty() || !self.uploads.pending.is_empty();
        if has_some && !self.prerecording.is_active() {
            self.submit();
        }
    }

    /// Hands everything recorded so far over, to be submitted soon.
    pub(crate) fn submit(&mut self) {
        match self.take_batch() {
            Some(batch) if self.uploads.staging.is_open() => self.submit_behind_writers(batch),
            Some(batch) => self.submitter.push(batch),
            None => {}
        }
    }

    /// Submits everything recorded so far.
    pub(crate) fn submit_now(&mut self) {
        self.recording.most_dispatches = FIRST_BATCH;
        match self.take_batch() {
            Some(batch) if self.uploads.staging.is_open() => self.submit_behind_writers(batch),
            Some(batch) => {
                self.submitter.submit(batch, || {});
            }
            None => self.submitter.finish(),
        }
    }

    fn submit_behind_writers(&mut self, batch: Batch) {
        let Encoder { submitter, uploads: Uploads { staging, .. }, .. } = self;
        let index = submitter.submit(batch, || staging.finish_writes());
        self.uploads.staging.submitted(&index);
    }

    /// Submits what was written to buffers, with a serial number of its own.
    pub(crate) fn submit_writes(&mut self) {
        self.record_serial();
        self.submit_now();
    }

    /// What was recorded, if anything was; another one begins.
    fn take_batch(&mut self) -> Option<Batch> {
        self.record_pending_uploads();
        self.commit_last();
        if !self.recording.batch.commands.is_empty() {
            self.record_serial();
        }
        self.recording.take(|| self.submitter.batch())
    }

    /// Records the kernel that writes the serial number of what is recorded, before what reads it.
    pub(super) fn record_serial(&mut self) {
        self.record_pending_uploads();
        self.commit_last();
        let Encoder { recording, serials, bindings, prerecording, .. } = self;
        if std::mem::replace(&mut recording.has_serial, true) {
            return;
        }
        let params = match &mut prerecording.step {
            // It gets its number when it runs.
            Some(step) if prerecording.is_active => step.add_serial(recording),
            _ => recording.params(&[serials.next()]),
        };
        recording.push(serials.command(bindings, params));
    }

    /// Encodes what was recorded ahead since the last time.
    pub(super) fn encode_prerecorded(&mut self) {
        self.commit_last();
        if !self.recording.batch.commands.is_empty() {
            self.record_serial();
        }
        self.recording.begin_batch(AHEAD_BATCH);
        let commands = std::mem::take(&mut self.recording.batch.commands);
        if let Some(step) = &mut self.prerecording.step
            && !step.is_abandoned
            && !commands.is_empty()
        {
            let encoded = self.submitter.encode(&commands);
            step.batches.push((commands, encoded));
        }
    }

    /// Gives up what is recorded ahead, as it needs more room than there is.
    fn abandon_prerecording(&mut self) {
        self.recording.discard();
        self.prerecording.abandon();
    }

    /// Forgets what was bound to a buffer that is about to go.
    pub(crate) fn forget(&mut self, mem: &Mem) {
        self.commit_last();
        self.bindings.forget(mem);
        self.submitter.forget();
    }
}

impl Drop for Encoder {
    /// Waits for staging buffers that are about to be mapped, which would leak otherwise, and for
    /// kernels that read experts in the host's memory.
    fn drop(&mut self) {
        if self.uploads.staging.has_in_flight() || !self.uploads.in_use.is_empty() {
            // A lost device has nothing to wait for.
            let _ = self.context.device.poll(PollType::wait_indefinitely());
        }
    }
}
