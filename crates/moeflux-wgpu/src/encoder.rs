//! Records kernels in order and submits them: one stream of commands, waited
//! for at read-backs alone.
//!
//! Parameters and lists of a submission lie in one buffer, the arena, which is
//! written right before the commands that read it.

mod ahead;
mod prerecorded;
mod reading;
mod tally;
mod timing;
mod uploads;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use moeflux_backend::{DeviceCounters, DeviceError};
use moeflux_core::Expert;
use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindingResource, BufferBinding, BufferSize,
    BufferUsages, ComputePipeline, PollType,
};

use self::prerecorded::Ahead;
use self::tally::Tally;
use crate::buffer::Mem;
use crate::clock::Clock;
use crate::context::{Context, MOST_BINDINGS, Order};
use crate::fetching::Coming;
use crate::grid::Grid;
use crate::imports::{Imports, Reach};
use crate::recorder::command::Command;
use crate::recorder::{Batch, Recorder};
use crate::shader::{Shader, Variant};
use crate::staging::Staging;

/// Bytes of the arena.
const ARENA_BYTES: usize = 8 << 20;
/// Of these, what an op may count on once it has begun.
const OP_BYTES: usize = 2 << 20;
/// Bytes between the parameters of two kernels.
const PARAMS_STRIDE: usize = 256;
/// Kernels after which the device may begin, behind a read-back. From then on
/// every batch is half as large again as the one before, up to a limit: the
/// device should not wait for the host, and each submission costs it some
/// kernels' time.
const FIRST_BATCH: usize = 16;
const LARGEST_BATCH: usize = 256;
/// Most workgroups of one dimension.
const GRID: u32 = 32_768;

/// Bind groups that are kept; beyond it, all are made anew.
const MAX_GROUPS: usize = 1 << 14;

/// The stream of commands of one backend.
#[derive(Debug)]
pub(crate) struct Encoder {
    context: Arc<Context>,
    pub(crate) recorder: Recorder,
    /// What was not handed over yet.
    batch: Batch,
    /// The kernel behind all of these, which may still be taken back.
    last: Option<Kernel>,
    /// Kernels recorded so far, those taken back included.
    n_recorded: u64,
    n_dispatches: usize,
    /// Of the batch that is recorded.
    most_dispatches: usize,
    arena: Mem,
    groups: HashMap<GroupKey, BindGroup>,
    /// Counts submissions: what lies in the arena is gone after one.
    generation: u64,
    read_back: Option<Mem>,
    tally: Option<Tally>,
    /// Of two moments.
    stamps: Option<Clock>,
    /// While kernels are timed.
    clock: Option<Clock>,
    staging: Staging,
    reach: Reach,
    imports: Imports,
    /// When slabs were last looked at.
    last_look: Instant,
    /// Experts that the device may read until it is next waited for.
    held: Vec<Arc<Expert>>,
    /// Experts that are fetched before anything else is recorded.
    coming: Vec<Coming>,
    counters: Arc<DeviceCounters>,
    /// Bound in place of buffers that there is no memory for.
    stand_in: Mem,
    fault: Option<Fault>,
    /// What runs later, and whether this is what is recorded.
    ahead: Option<Ahead>,
    is_ahead: bool,
}

/// A kernel about to be recorded.
#[derive(Debug)]
struct Kernel {
    shader: Shader,
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
    /// Whether nobody will ask for the buffer again.
    is_lasting: bool,
}

impl Encoder {
    pub(crate) fn new(context: Arc<Context>) -> Encoder {
        let usage = BufferUsages::UNIFORM | BufferUsages::STORAGE | BufferUsages::COPY_DST;
        let bytes = ARENA_BYTES as u64;
        let (arena, has_arena) =
            context.buffer(Order { bytes, usage, label: "arena", is_mapped: false });
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC;
        let (stand_in, has_stand_in) =
            context.buffer(Order { bytes: 4, usage, label: "stand-in", is_mapped: false });
        let is_short = !has_arena || !has_stand_in;
        let fault = is_short.then_some(Fault { bytes, is_lasting: true });
        let counters = Arc::<DeviceCounters>::default();
        Encoder {
            recorder: Recorder::new(Arc::clone(&context), arena.clone()),
            reach: context.reach(),
            imports: Imports::default(),
            last_look: Instant::now(),
            held: Vec::new(),
            coming: Vec::new(),
            context,
            batch: Batch::default(),
            last: None,
            n_recorded: 0,
            n_dispatches: 0,
            most_dispatches: FIRST_BATCH,
            arena: Mem::new(arena),
            groups: HashMap::new(),
            generation: 0,
            read_back: None,
            tally: None,
            stamps: None,
            clock: None,
            staging: Staging::new(Arc::clone(&counters)),
            counters,
            stand_in: Mem::new(stand_in),
            fault,
            ahead: None,
            is_ahead: false,
        }
    }

    /// A buffer for kernels, or one in its place that nothing will be written to
    /// before the next read-back has told that there is no memory. It is asked
    /// for again then: see [`Encoder::is_stand_in`].
    pub(crate) fn storage(&mut self, bytes: u64, label: &'static str) -> Mem {
        self.storage_or_fault(bytes, label, false)
    }

    /// As [`Encoder::storage`], for what is asked for but once: without memory
    /// the backend is of no use any more.
    pub(crate) fn lasting_storage(&mut self, bytes: u64, label: &'static str) -> Mem {
        self.storage_or_fault(bytes, label, true)
    }

    fn storage_or_fault(&mut self, bytes: u64, label: &'static str, is_lasting: bool) -> Mem {
        match self.context.try_storage(bytes, label) {
            Some(buffer) => Mem::new(buffer),
            None => {
                self.run_out(Fault { bytes, is_lasting });
                self.stand_in.clone()
            }
        }
    }

    /// Whether a buffer stands for one that there was no memory for.
    pub(crate) fn is_stand_in(&self, mem: &Mem) -> bool {
        mem.id == self.stand_in.id
    }

    fn run_out(&mut self, fault: Fault) {
        let known = self.fault.get_or_insert(fault);
        known.is_lasting |= fault.is_lasting;
    }

    /// Whether memory ran out since the last read-back, or for good.
    pub(crate) fn has_run_out(&self) -> bool {
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
        self.generation
    }

    /// The lists of this submission, as kernels bind them.
    pub(crate) fn arena(&self) -> Mem {
        self.arena.clone()
    }

    /// Begins an op, whose lists and parameters stay in one submission as long
    /// as they are bounded by `OP_BYTES`.
    pub(crate) fn begin(&mut self) {
        self.begin_behind(None);
    }

    /// The same, but goes on with the op before while the last kernel is that of
    /// the number given.
    pub(crate) fn begin_behind(&mut self, nth: Option<u64>) {
        if nth == Some(self.n_recorded) {
            return;
        }
        self.assert_may_record();
        let is_full = self.n_dispatches >= self.most_dispatches;
        let has_room = self.batch.arena.len() + OP_BYTES <= ARENA_BYTES;
        if self.is_ahead {
            match (has_room, is_full) {
                (false, _) => self.spoil_ahead(),
                (true, true) => self.cut_ahead(),
                (true, false) => {}
            }
        } else if is_full || !has_room {
            self.submit();
            self.most_dispatches = (self.most_dispatches * 3 / 2).min(LARGEST_BATCH);
        }
    }

    /// Words that a list may have.
    pub(crate) fn list_limit() -> usize {
        OP_BYTES / 8
    }

    /// Puts a list into the arena; gives its first word.
    pub(crate) fn list(&mut self, words: &[u32]) -> u32 {
        let at = self.batch.arena.len();
        assert!(at + size_of_val(words) <= ARENA_BYTES, "lists of an op are bounded");
        self.batch.arena.extend_from_slice(bytemuck::cast_slice(words));
        u32::try_from(at / 4).expect("the arena is small")
    }

    /// Runs a kernel; `buffers` are its bindings behind the parameters.
    pub(crate) fn dispatch(
        &mut self,
        variant: Variant,
        params: &[u32],
        buffers: &[&Mem],
        grid: Grid,
    ) {
        let (x, y, z) = match grid {
            Grid::Linear(n) => {
                let n = u32::try_from(n).expect("few workgroups");
                let x = n.clamp(1, GRID);
                (x, n.div_ceil(x), 1)
            }
            Grid::Plane(n, times) => {
                let word = |it| u32::try_from(it).expect("few workgroups");
                (word(n).min(GRID), word(times).min(GRID), word(times).div_ceil(GRID))
            }
        };
        if x * y * z == 0 || self.has_run_out() {
            return;
        }
        self.fetch_coming();
        assert!(x <= 65_535 && z <= 65_535, "a kernel of {x} x {y} x {z} workgroups");
        let pipeline = {
            let mut pipelines = self.context.pipelines.lock();
            let pipelines = pipelines.as_mut().unwrap_or_else(|it| it.get_mut());
            pipelines.get(&self.context.device, self.context.lanes, variant)
        };
        let offset = self.params(params);
        // Numbers of buffers begin at 1.
        let mut key: GroupKey = [0; 1 + MOST_BINDINGS as usize];
        key[0] = pipeline.id;
        key.iter_mut().skip(1).zip(buffers).for_each(|(key, mem)| *key = mem.id);
        if self.groups.len() >= MAX_GROUPS {
            self.groups.clear();
        }
        let group = match self.groups.get(&key) {
            Some(group) => group.clone(),
            None => {
                let group = self.bind_group(&pipeline.layout, buffers);
                self.groups.insert(key, group.clone());
                group
            }
        };
        let pipeline = pipeline.pipeline.clone();
        self.settle();
        let (shader, grid) = (variant.shader, [x, y, z]);
        self.last = Some(Kernel { shader, pipeline, group, params: offset, grid });
        self.n_recorded += 1;
    }

    /// The number of the kernel recorded last.
    pub(crate) fn last_kernel(&self) -> u64 {
        self.n_recorded
    }

    /// Takes the kernel of that number back, if nothing was recorded behind it
    /// and it was not handed over; its lists and parameters stay where they are.
    pub(crate) fn take_back(&mut self, nth: u64) -> bool {
        nth == self.n_recorded && self.last.take().is_some()
    }

    /// Puts the last kernel behind the others, from where nobody takes it back.
    fn settle(&mut self) {
        let Some(Kernel { shader, pipeline, group, params, grid }) = self.last.take() else {
            return;
        };
        self.note(|| String::from("wait for the host"), true);
        self.batch.commands.push(Command::Run { pipeline, group, params, grid });
        self.n_dispatches += 1;
        self.count_kernel();
        let [x, y, z] = grid;
        self.note(|| format!("{shader:?} {x} x {}", y * z), false);
    }

    /// Records what is no kernel.
    fn record(&mut self, command: Command) {
        self.assert_may_record();
        self.fetch_coming();
        self.settle();
        self.batch.commands.push(command);
    }

    fn params(&mut self, params: &[u32]) -> u32 {
        assert!(size_of_val(params) <= PARAMS_STRIDE, "parameters of a kernel");
        let host = &mut self.batch.arena;
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
                buffer: &self.arena.buffer,
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
    pub(crate) fn copy(&mut self, from: (&Mem, u64), to: (&Mem, u64), bytes: u64) {
        // Else also where memory ran out: the larger buffer takes the other's place.
        if self.is_stand_in(from.0) || self.is_stand_in(to.0) {
            return;
        }
        let (from, to) = ((from.0.buffer.clone(), from.1), (to.0.buffer.clone(), to.1));
        self.record(Command::Copy { from, to, bytes });
        self.note(|| String::from("copies"), false);
    }

    /// Fills bytes of a buffer with zeros, in order with the kernels.
    pub(crate) fn clear(&mut self, mem: &Mem, bytes: Range<u64>) {
        if self.is_stand_in(mem) || bytes.is_empty() {
            return;
        }
        let len = bytes.end - bytes.start;
        self.record(Command::Clear(mem.buffer.clone(), bytes.start, len));
    }

    /// Overwrites bytes, behind everything recorded so far.
    pub(crate) fn write(&mut self, to: &Mem, offset: u64, bytes: &[u8]) {
        self.assert_may_record();
        if self.is_ahead {
            // Kernels that are still to come, some of them before it, would all see it.
            self.spoil_ahead();
        }
        self.submit();
        self.recorder.finish();
        if !bytes.is_empty() && !self.has_run_out() {
            self.context.queue.write_buffer(&to.buffer, offset, bytes);
        }
    }

    /// Submits what was recorded, if anything was.
    pub(crate) fn flush(&mut self) {
        if self.is_ahead {
            return;
        }
        if self.last.is_some() || !self.coming.is_empty() || !self.batch.commands.is_empty() {
            self.submit();
        }
    }

    /// Hands everything recorded so far over, to be submitted soon.
    pub(crate) fn submit(&mut self) {
        match self.take_batch() {
            Some(batch) if self.staging.is_open() => self.submit_behind_writers(batch),
            Some(batch) => self.recorder.push(batch),
            None => {}
        }
    }

    /// Submits everything recorded so far.
    pub(crate) fn submit_now(&mut self) {
        self.most_dispatches = FIRST_BATCH;
        match self.take_batch() {
            Some(batch) if self.staging.is_open() => self.submit_behind_writers(batch),
            Some(batch) => {
                self.recorder.submit(batch, || {});
            }
            None => self.recorder.finish(),
        }
    }

    fn submit_behind_writers(&mut self, batch: Batch) {
        let Encoder { recorder, staging, context, .. } = self;
        let index = recorder.submit(batch, || staging.settle(context));
        self.staging.submitted(&index);
    }

    /// What was recorded, if anything was; another one begins.
    fn take_batch(&mut self) -> Option<Batch> {
        self.fetch_coming();
        self.settle();
        self.generation += 1;
        self.n_dispatches = 0;
        let host = &mut self.batch.arena;
        if self.batch.commands.is_empty() {
            host.clear();
            return None;
        }
        host.resize(host.len().next_multiple_of(4), 0);
        Some(std::mem::replace(&mut self.batch, self.recorder.batch()))
    }

    /// Forgets what was bound to a buffer that is about to go.
    pub(crate) fn forget(&mut self, mem: &Mem) {
        self.groups.retain(|key, _| !key[1..].contains(&mem.id));
        self.recorder.forget();
    }
}

impl Drop for Encoder {
    /// Waits for buffers that are about to be mapped, as nobody asks the device
    /// again, which else would keep them, and for experts that it reads.
    fn drop(&mut self) {
        if self.staging.is_away() || !self.held.is_empty() {
            // A lost device has nothing to wait for.
            let _ = self.context.device.poll(PollType::wait_indefinitely());
        }
    }
}
