//! Tells the interface what an encoder has collected, on threads of its own:
//! that takes longer than deciding what to run, so both go on side by side.
//!
//! Invariant: batches are submitted in the order in which they are handed over,
//! each behind the write of its lists and parameters.
//!
//! While there is nothing else to do, batches that came twice are encoded once more
//! for the next time.

pub(crate) mod command;
mod repeats;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use wgpu::{Buffer, CommandBuffer, CommandEncoder, ComputePass, PollType, SubmissionIndex};

use crate::context::Context;
use repeats::{Repeats, fingerprint};

pub(crate) use self::command::Batch;
pub(crate) use crate::recorder::command::Command;
pub(crate) use crate::recorder::command::Encoded;

/// Threads where there is more than one core.
const N_THREADS: usize = 2;

/// Batches whose memory is kept.
const SPARE: usize = 4;

/// The threads, and what they have to do.
#[derive(Debug)]
pub(crate) struct Recorder {
    context: Arc<Context>,
    arena: Buffer,
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
    has_begun: bool,
    /// Whether nothing was handed over since the device was last waited for.
    is_first: bool,
}

#[derive(Debug, Default)]
struct Desk {
    state: Mutex<State>,
    work: Condvar,
    finished: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// With their commands, where these were ready.
    batches: VecDeque<(Batch, Option<CommandBuffer>)>,
    repeats: Repeats,
    /// Batches that threads took, and those of them that are submitted.
    n_taken: u64,
    n_submitted: u64,
    spare: Vec<Batch>,
    is_closed: bool,
    /// A thread panicked.
    is_dead: bool,
}

impl Recorder {
    /// Batches' lists and parameters go to `arena`.
    pub(crate) fn new(context: Arc<Context>, arena: Buffer) -> Recorder {
        Recorder {
            context,
            arena,
            desk: Arc::default(),
            threads: Vec::new(),
            has_begun: false,
            is_first: true,
        }
    }

    /// Has a batch submitted some time.
    pub(crate) fn push(&mut self, batch: Batch) {
        if !self.has_begun {
            self.begin();
        }
        let mut state = self.desk.lock();
        if self.threads.is_empty() || state.is_dead {
            drop(state);
            self.submit(batch, || {});
            return;
        }
        let is_first = std::mem::take(&mut self.is_first);
        let mut ready = state.repeats.take(&batch.commands);
        let is_idle = !state.is_at_work();
        if let Some(commands) = ready.take_if(|_| is_first && is_idle) {
            // The device has nothing to do, and waking a thread would take longer.
            drop(state);
            self.submit_encoded(batch, commands, || {});
            return;
        }
        state.batches.push_back((batch, ready));
        drop(state);
        self.desk.work.notify_one();
    }

    /// Submits a batch behind all others and behind what `before` waits for, as
    /// whoever waits for the device does; gives its number.
    pub(crate) fn submit(&mut self, batch: Batch, before: impl FnOnce()) -> SubmissionIndex {
        let ready = self.desk.lock().repeats.take(&batch.commands);
        let commands = ready.unwrap_or_else(|| encode(&self.context, &batch.commands));
        self.finish();
        self.is_first = true;
        self.submit_encoded(batch, commands, before)
    }

    fn submit_encoded(
        &self,
        batch: Batch,
        commands: CommandBuffer,
        before: impl FnOnce(),
    ) -> SubmissionIndex {
        write_arena(&self.context, &self.arena, &batch.arena);
        before();
        let index = submit(&self.context, [commands]);
        self.desk.put_away(batch);
        self.desk.work.notify_one();
        index
    }

    /// Commands as the interface takes them, which had some of them at hand.
    pub(crate) fn encode(&mut self, commands: &[Command]) -> CommandBuffer {
        if !self.has_begun {
            self.begin();
        }
        let ready = self.desk.lock().repeats.take(commands);
        ready.unwrap_or_else(|| encode(&self.context, commands))
    }

    /// Submits batches that share an arena, behind all others.
    pub(crate) fn submit_all(&mut self, arena: &[u8], batches: Vec<Encoded>) {
        self.finish();
        self.is_first = false;
        let (told, encoded): (Vec<_>, Vec<_>) = batches.into_iter().unzip();
        write_arena(&self.context, &self.arena, arena);
        // The device has nothing to do until it has the first of them.
        let mut encoded = encoded.into_iter();
        submit(&self.context, encoded.next());
        submit(&self.context, encoded);
        for commands in told {
            self.desk.put_away(Batch { commands, arena: Vec::new() });
        }
        self.desk.work.notify_all();
    }

    /// Lets go of what is bound by commands that may come again.
    pub(crate) fn forget(&self) {
        self.desk.lock().repeats.forget();
    }

    /// Batches whose commands are ready for the next time.
    #[cfg(test)]
    pub(crate) fn n_ready(&self) -> usize {
        self.desk.lock().repeats.n_ready()
    }

    /// Returns when all batches are submitted.
    pub(crate) fn finish(&self) {
        let mut state = self.desk.lock();
        while state.is_at_work() {
            state = self.desk.finished.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// An empty batch.
    pub(crate) fn batch(&self) -> Batch {
        self.desk.lock().spare.pop().unwrap_or_default()
    }

    fn begin(&mut self) {
        self.has_begun = true;
        if thread::available_parallelism().map_or(1, usize::from) == 1 {
            return;
        }
        for _ in 0..N_THREADS {
            let (context, arena) = (Arc::clone(&self.context), self.arena.clone());
            let desk = Arc::clone(&self.desk);
            let thread = thread::Builder::new().name("gpu-recorder".to_owned());
            // Without any whoever hands a batch over does the work.
            self.threads.extend(thread.spawn(move || desk.serve(&context, &arena)));
        }
        self.desk.lock().repeats.is_on = !self.threads.is_empty();
    }
}

impl Drop for Recorder {
    /// What was handed over is submitted before.
    fn drop(&mut self) {
        self.desk.lock().is_closed = true;
        self.desk.work.notify_all();
        for thread in self.threads.drain(..) {
            // Nobody asks it anything any more.
            let _ = thread.join();
        }
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, context: &Context, arena: &Buffer) {
        let mut state = self.lock();
        loop {
            if let Some((batch, ready)) = state.batches.pop_front() {
                let nth = state.n_taken;
                state.n_taken += 1;
                drop(state);
                let unfinished = Unfinished { desk: self, context };
                let commands = ready.unwrap_or_else(|| encode(context, &batch.commands));
                if self.is_next(nth) {
                    write_arena(context, arena, &batch.arena);
                    submit(context, [commands]);
                }
                self.put_away(batch);
                drop(unfinished);
                state = self.lock();
            } else if state.is_closed {
                return;
            } else if let Some((commands, epoch)) = state.repeats.next() {
                drop(state);
                let fingerprint = fingerprint(&commands);
                if self.lock().repeats.is_known(fingerprint) {
                    let encoded = encode(context, &commands);
                    let unkept = self.lock().repeats.keep((commands, encoded), epoch);
                    drop(unkept);
                }
                state = self.lock();
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Keeps what a submitted batch has.
    fn put_away(&self, mut batch: Batch) {
        let commands = std::mem::take(&mut batch.commands);
        let unkept = self.lock().repeats.note(commands);
        batch.commands = unkept.unwrap_or_default();
        batch.commands.clear();
        self.lock().keep(batch);
    }

    /// Waits until all batches before this one are submitted; false where they
    /// never will be.
    fn is_next(&self, nth: u64) -> bool {
        let mut state = self.lock();
        while state.n_submitted < nth && !state.is_dead {
            state = self.finished.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.is_dead
    }
}

/// A batch in work. Nobody waits for a thread that panicked over it.
struct Unfinished<'a> {
    desk: &'a Desk,
    context: &'a Context,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        if thread::panicking() {
            self.context.lose(String::from("the thread that submits commands panicked"));
            state.is_dead = true;
            state.batches.clear();
        }
        state.n_submitted += 1;
        drop(state);
        self.desk.finished.notify_all();
    }
}

impl State {
    /// Whether batches are not submitted yet, and will be.
    fn is_at_work(&self) -> bool {
        !self.is_dead && (!self.batches.is_empty() || self.n_submitted < self.n_taken)
    }

    fn keep(&mut self, mut batch: Batch) {
        if self.spare.len() < SPARE {
            batch.commands.clear();
            batch.arena.clear();
            self.spare.push(batch);
        }
    }
}

fn encode(context: &Context, commands: &[Command]) -> CommandBuffer {
    let mut encoder = context.device.create_command_encoder(&Default::default());
    let mut rest = commands;
    while !rest.is_empty() {
        let n_kernels = rest.iter().take_while(|it| matches!(it, Command::Run { .. })).count();
        let (kernels, others) = rest.split_at(n_kernels);
        if n_kernels > 0 {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            kernels.iter().for_each(|it| run(&mut pass, it));
        }
        let n_others = others.iter().take_while(|it| !matches!(it, Command::Run { .. })).count();
        let (others, behind) = others.split_at(n_others);
        others.iter().for_each(|it| put(&mut encoder, it));
        rest = behind;
    }
    encoder.finish()
}

fn run(pass: &mut ComputePass<'_>, command: &Command) {
    if let Command::Run { pipeline, group, params, grid: [x, y, z] } = command {
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, group, &[*params]);
        pass.dispatch_workgroups(*x, *y, *z);
    }
}

fn put(encoder: &mut CommandEncoder, command: &Command) {
    match command {
        Command::Run { .. } => {}
        Command::Copy { from, to, bytes } => {
            encoder.copy_buffer_to_buffer(&from.0, from.1, &to.0, to.1, Some(*bytes));
        }
        Command::Clear(buffer, at, bytes) => encoder.clear_buffer(buffer, *at, Some(*bytes)),
        Command::Stamp(set, nth) => encoder.write_timestamp(set, *nth),
        Command::Resolve(set, n, buffer) => encoder.resolve_query_set(set, 0..*n, buffer, 0),
    }
}

/// Has lists and parameters written before what is submitted next.
fn write_arena(context: &Context, arena: &Buffer, bytes: &[u8]) {
    if !bytes.is_empty() {
        context.queue.write_buffer(arena, 0, bytes);
    }
}

fn submit(context: &Context, commands: impl IntoIterator<Item = CommandBuffer>) -> SubmissionIndex {
    let index = context.queue.submit(commands);
    // Frees what finished submissions held; what went wrong is asked for at read-backs.
    let _ = context.device.poll(PollType::Poll);
    index
}
