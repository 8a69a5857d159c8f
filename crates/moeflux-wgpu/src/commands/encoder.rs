//! Records kernels in order and submits them: one stream of commands, waited for at read-backs
//! only.
//!
//! Parameters and lists of a submission are in one buffer, the arena, which is written right
//! before the commands that read it.

mod prerecord;
mod prerecorded_step;
mod readback;
mod tally;
mod timing;
mod uploads;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use moeflux_backend::{DeviceCounters, DeviceError};
use moeflux_core::Expert;
use moeflux_residency::Staging;
use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindingResource, BufferBinding, BufferSize,
    BufferUsages, ComputePipeline, PollType,
};

use crate::commands::clock::Clock;
use crate::commands::command::{Batch, Command};
use crate::commands::encoder::prerecorded_step::PrerecordedStep;
use crate::commands::encoder::tally::Tally;
use crate::commands::grid::Grid;
use crate::commands::submitter::Submitter;
use crate::device::adapter::MOST_BINDINGS;
use crate::device::buffer::{BufferDesc, Mem, MemAt};
use crate::device::context::Context;
use crate::device::imports::host_access::HostAccess;
use crate::device::imports::slabs::Imports;
use crate::experts::gather::PendingUpload;
use crate::experts::staging::MappedBuffers;
use crate::kernels::kernel::Variant;

/// Bytes of the arena.
const ARENA_BYTES: usize = 8 << 20;
/// Of these, what an op may count on once it has begun.
const OP_BYTES: usize = 2 << 20;
/// Bytes between the parameters of two kernels.
const PARAMS_STRIDE: usize = 256;
/// Kernels after which the device may begin, after a read-back. From then on every batch is half
/// as large again as the one before, up to a limit: the device should not wait for the host, and
/// each submission costs it some kernels' time.
const FIRST_BATCH: usize = 16;
const LARGEST_BATCH: usize = 256;
/// Most workgroups of one dimension.
const GRID: u32 = 32_768;

/// Bind groups that are kept; beyond it, all are made anew.
const MAX_GROUPS: usize = 1 << 14;

/// The command stream of one backend.
#[derive(Debug)]
pub(crate) struct Encoder {
    context: Arc<Context>,
    pub(crate) submitter: Submitter,
    recording: Recording,
    bindings: Bindings,
    uploads: Uploads,
    readback: Readback,
    profiler: Profiler,
    prerecording: Prerecording,
    counters: Arc<DeviceCounters>,
    fault: Option<Fault>,
}

/// The batch that is being recorded.
#[derive(Debug)]
struct Recording {
    /// Commands that were not submitted yet.
    batch: Batch,
    /// The kernel after all of these, which may still be retracted.
    last: Option<Kernel>,
    /// Kernels recorded so far, retracted ones included.
    n_recorded: u64,
    /// Kernels of this batch.
    n_dispatches: usize,
    /// Kernels after which it is submitted.
    most_dispatches: usize,
    /// Counts submissions: the contents of the arena are gone after one.
    generation: u64,
}

/// What kernels bind.
#[derive(Debug)]
struct Bindings {
    arena: Mem,
    groups: HashMap<GroupKey, BindGroup>,
    /// Bound instead of buffers that there is no memory for.
    stand_in: Mem,
}

/// Experts on their way to the device.
#[derive(Debug)]
struct Uploads {
    staging: Staging<MappedBuffers>,
    host_access: HostAccess,
    imports: Imports,
    /// When imported slabs were last checked.
    last_import_check: Instant,
    /// Experts that the device may read until it is next waited for.
    in_use: Vec<Arc<Expert>>,
    /// Experts that are uploaded before anything else is recorded.
    pending: Vec<PendingUpload>,
}

/// The buffer that the host reads back, and the device's counts that go along.
#[derive(Debug, Default)]
struct Readback {
    buffer: Option<Mem>,
    tally: Option<Tally>,
}

/// Timestamps of the device.
#[derive(Debug, Default)]
struct Profiler {
    /// Of two moments.
    stamps: Option<Clock>,
    /// Of all kernels, while they are timed.
    clock: Option<Clock>,
}

/// The step that is recorded before its tokens are known.
#[derive(Debug, Default)]
struct Prerecording {
    step: Option<PrerecordedStep>,
    /// Whether it is being recorded.
    is_active: bool,
}

/// A kernel about to be recorded.
#[derive(Debug)]
struct Kernel {
    name: &'static str,
    pipeline: ComputePipeline,
    group: BindGroup,
    params: u32,
    grid: [u32; 3],
}

/// A kernel and the buffers that it is bound to, the unused ones as 0.
type GroupKey = [u32; 1 + MOST_BINDINGS as usize];

/// A buffer that this backend asked for in vain. Until it has said so at a
/// read-back no kernel is recorded.
#[derive(Clone, Copy, Debug)]
struct Fault {
    bytes: u64,
    /// Whether the buffer is requested only once.
    is_lasting: bool,
}

impl Encoder {
    pub(crate) fn new(context: Arc<Context>) -> Encoder {
        let usage = BufferUsages::UNIFORM | BufferUsages::STORAGE | BufferUsages::COPY_DST;
        let bytes = ARENA_BYTES as u64;
        let (arena, has_arena) =
            context.buffer(BufferDesc { bytes, usage, label: "arena", is_mapped: false });
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC;
        let (stand_in, has_stand_in) =
            context.buffer(BufferDesc { bytes: 4, usage, label: "stand-in", is_mapped: false });
        let is_short = !has_arena || !has_stand_in;
        let fault = is_short.then_some(Fault { bytes, is_lasting: true });
        let counters = Arc::<DeviceCounters>::default();
        Encoder {
            submitter: Submitter::new(Arc::clone(&context), arena.clone()),
            recording: Recording {
                batch: Batch::default(),
                last: None,
                n_recorded: 0,
                n_dispatches: 0,
                most_dispatches: FIRST_BATCH,
                generation: 0,
            },
            bindings: Bindings {
                arena: Mem::new(arena),
                groups: HashMap::new(),
                stand_in: Mem::new(stand_in),
            },
            uploads: Uploads {
                staging: Staging::new(
                    MappedBuffers::new(Arc::clone(&context)),
                    Arc::clone(&counters),
                ),
                host_access: context.host_access(),
                imports: Imports::default(),
                last_import_check: Instant::now(),
                in_use: Vec::new(),
                pending: Vec::new(),
            },
            readback: Readback::default(),
            profiler: Profiler::default(),
            prerecording: Prerecording::default(),
            context,
            counters,
            fault,
        }
    }

    /// A buffer for kernels. Where there is no memory the stand-in is returned: no kernel runs until
    /// the next read-back has reported that. The caller requests the buffer again then, see
    /// [`Encoder::is_stand_in`].
    pub(crate) fn storage(&mut self, bytes: u64, label: &'static str) -> Mem {
        self.storage_or_fault(bytes, label, false)
    }

    /// A buffer for kernels that is requested only once: without memory for it the backend cannot be
    /// used any more.
    pub(crate) fn lasting_storage(&mut self, bytes: u64, label: &'static str) -> Mem {
        self.storage_or_fault(bytes, label, true)
    }

    fn storage_or_fault(&mut self, bytes: u64, label: &'static str, is_lasting: bool) -> Mem {
        match self.context.try_storage(bytes, label) {
            Some(buffer) => Mem::new(buffer),
            None => {
                self.report_out_of_memory(Fault { bytes, is_lasting });
                self.bindings.stand_in.clone()
            }
        }
    }

    /// Whether a buffer stands for one that there was no memory for.
    pub(crate) fn is_stand_in(&self, mem: &Mem) -> bool {
        mem.id == self.bindings.stand_in.id
    }

    fn report_out_of_memory(&mut self, fault: Fault) {
        let known = self.fault.get_or_insert(fault);
        known.is_lasting |= fault.is_lasting;
    }

    /// Whether memory ran out since the last read-back, or for good.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.fault.is_some()
    }

    /// Says what went wrong, without waiting for anything. The caller knows now
    /// that memory ran out, unless it did for good.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back.
    pub(crate) fn check(&mut self) -> Result<(), DeviceError> {
        self.context.check()?;
        let Some(Fault { bytes, is_lasting }) = self.fault else { return Ok(()) };
        if !is_lasting {
            self.fault = None;
        }
        Err(DeviceError::OutOfMemory { bytes })
    }

    /// What counts experts on their way.
    pub(crate) fn counters(&self) -> &Arc<DeviceCounters> {
        &self.counters
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
        self.begin_after(None);
    }

    /// Begins an op, or continues the previous one while its kernel `nth` is still the last.
    pub(crate) fn begin_after(&mut self, nth: Option<u64>) {
        if nth == Some(self.recording.n_recorded) {
            return;
        }
        self.assert_may_record();
        let is_full = self.recording.n_dispatches >= self.recording.most_dispatches;
        let has_room = self.recording.batch.arena.len() + OP_BYTES <= ARENA_BYTES;
        if self.prerecording.is_active {
            match (has_room, is_full) {
                (false, _) => self.abandon_prerecording(),
                (true, true) => self.encode_prerecorded(),
                (true, false) => {}
            }
        } else if is_full || !has_room {
            self.submit();
            self.recording.most_dispatches =
                (self.recording.most_dispatches * 3 / 2).min(LARGEST_BATCH);
        }
    }

    /// Words that a list may have.
    pub(crate) fn list_limit() -> usize {
        OP_BYTES / 8
    }

    /// Puts a list into the arena; gives its first word.
    pub(crate) fn list(&mut self, words: &[u32]) -> u32 {
        let at = self.recording.batch.arena.len();
        assert!(at + size_of_val(words) <= ARENA_BYTES, "lists of an op are bounded");
        self.recording.batch.arena.extend_from_slice(bytemuck::cast_slice(words));
        u32::try_from(at / 4).expect("the arena is small")
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
        if x * y * z == 0 || self.is_out_of_memory() {
            return;
        }
        self.record_pending_uploads();
        assert!(x <= 65_535 && z <= 65_535, "a kernel of {x} x {y} x {z} workgroups");
        let pipeline = {
            let mut pipelines = self.context.pipelines.lock();
            let pipelines = pipelines.as_mut().unwrap_or_else(|poisoned| poisoned.get_mut());
            pipelines.get(&self.context.device, self.context.lanes, variant)
        };
        let offset = self.params(params);
        // Numbers of buffers begin at 1.
        let mut key: GroupKey = [0; 1 + MOST_BINDINGS as usize];
        key[0] = pipeline.id;
        key.iter_mut().skip(1).zip(buffers).for_each(|(key, mem)| *key = mem.id);
        if self.bindings.groups.len() >= MAX_GROUPS {
            self.bindings.groups.clear();
        }
        let group = match self.bindings.groups.get(&key) {
            Some(group) => group.clone(),
            None => {
                let group = self.bind_group(&pipeline.layout, buffers);
                self.bindings.groups.insert(key, group.clone());
                group
            }
        };
        let pipeline = pipeline.pipeline.clone();
        self.commit_last();
        let (name, grid) = (variant.info.name, [x, y, z]);
        self.recording.last = Some(Kernel { name, pipeline, group, params: offset, grid });
        self.recording.n_recorded += 1;
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
    fn commit_last(&mut self) {
        let Some(Kernel { name, pipeline, group, params, grid }) = self.recording.last.take()
        else {
            return;
        };
        self.stamp_end(|| String::from("wait for the host"), true);
        self.recording.batch.commands.push(Command::Run { pipeline, group, params, grid });
        self.recording.n_dispatches += 1;
        self.count_kernel();
        let [x, y, z] = grid;
        self.stamp_end(|| format!("{name} {x} x {}", y * z), false);
    }

    /// Records what is no kernel.
    fn record(&mut self, command: Command) {
        self.assert_may_record();
        self.record_pending_uploads();
        self.commit_last();
        self.recording.batch.commands.push(command);
    }

    fn params(&mut self, params: &[u32]) -> u32 {
        assert!(size_of_val(params) <= PARAMS_STRIDE, "parameters of a kernel");
        let host = &mut self.recording.batch.arena;
        let at = host.len().next_multiple_of(PARAMS_STRIDE);
        assert!(at + PARAMS_STRIDE <= ARENA_BYTES, "parameters of an op are bounded");
        host.resize(at, 0);
        host.extend_from_slice(bytemuck::cast_slice(params));
        host.resize(at + PARAMS_STRIDE, 0);
        u32::try_from(at).expect("the arena is small")
    }

    fn bind_group(&self, layout: &wgpu::BindGroupLayout, buffers: &[&Mem]) -> BindGroup {
        let params = BindGroupEntry {
            binding: 0,
            resource: BindingResource::Buffer(BufferBinding {
                buffer: &self.bindings.arena.buffer,
                offset: 0,
                size: BufferSize::new(PARAMS_STRIDE as u64),
            }),
        };
        let mut entries = vec![params];
        for (binding, mem) in (1..).zip(buffers) {
            entries.push(BindGroupEntry { binding, resource: mem.buffer.as_entire_binding() });
        }
        self.context.device.create_bind_group(&BindGroupDescriptor {
            label: None,
            layout,
            entries: &entries,
        })
    }

    /// Copies bytes from buffer to buffer, in order with the kernels.
    pub(crate) fn copy(&mut self, from: MemAt<'_>, to: MemAt<'_>, bytes: u64) {
        // Else also where memory ran out: the larger buffer takes the other's place.
        if self.is_stand_in(from.mem) || self.is_stand_in(to.mem) {
            return;
        }
        let [from, to] = [from, to].map(|place| (place.mem.buffer.clone(), place.at));
        self.record(Command::Copy { from, to, bytes });
        self.stamp_end(|| String::from("copies"), false);
    }

    /// Fills bytes of a buffer with zeros, in order with the kernels.
    pub(crate) fn clear(&mut self, mem: &Mem, bytes: Range<u64>) {
        if self.is_stand_in(mem) || bytes.is_empty() {
            return;
        }
        let len = bytes.end - bytes.start;
        self.record(Command::Clear(mem.buffer.clone(), bytes.start, len));
    }

    /// Overwrites bytes, after everything recorded so far.
    pub(crate) fn write(&mut self, to: &Mem, offset: u64, bytes: &[u8]) {
        self.assert_may_record();
        if self.prerecording.is_active {
            // Kernels that are still to come, some of them before it, would all see it.
            self.abandon_prerecording();
        }
        self.submit();
        self.submitter.finish();
        if !bytes.is_empty() && !self.is_out_of_memory() {
            self.context.queue.write_buffer(&to.buffer, offset, bytes);
        }
    }

    /// Submits what was recorded, if anything was.
    pub(crate) fn flush(&mut self) {
        if self.prerecording.is_active {
            return;
        }
        if self.recording.last.is_some()
            || !self.uploads.pending.is_empty()
            || !self.recording.batch.commands.is_empty()
        {
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

    /// What was recorded, if anything was; another one begins.
    fn take_batch(&mut self) -> Option<Batch> {
        self.record_pending_uploads();
        self.commit_last();
        self.recording.generation += 1;
        self.recording.n_dispatches = 0;
        let host = &mut self.recording.batch.arena;
        if self.recording.batch.commands.is_empty() {
            host.clear();
            return None;
        }
        host.resize(host.len().next_multiple_of(4), 0);
        Some(std::mem::replace(&mut self.recording.batch, self.submitter.batch()))
    }

    /// Forgets what was bound to a buffer that is about to go.
    pub(crate) fn forget(&mut self, mem: &Mem) {
        self.bindings.groups.retain(|key, _| !key[1..].contains(&mem.id));
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
