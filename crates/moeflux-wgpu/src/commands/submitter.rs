//! Encodes recorded commands into wgpu command buffers on background threads, because encoding
//! takes longer than deciding what to run.
//!
//! Invariant: batches are submitted in the order in which they were pushed, each after the write of
//! its lists and parameters.
//!
//! While the threads are idle, batches that occurred twice are encoded once more in advance.

use crate::commands::encode::encode;
use crate::commands::encode::submit;
use crate::commands::encode::write_arena;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::commands::encoded_cache::{EncodedCache, fingerprint};
use wgpu::{Buffer, CommandBuffer, SubmissionIndex};

use crate::commands::command::{Batch, Command, Encoded};
use crate::device::context::Context;

/// Threads where there is more than one core.
const N_THREADS: usize = 2;

/// Batches whose memory is kept.
const SPARE: usize = 4;

/// The threads, and what they have to do.
#[derive(Debug)]
pub(crate) struct Submitter {
    context: Arc<Context>,
    arena: Buffer,
    queue: Arc<WorkQueue>,
    threads: Vec<JoinHandle<()>>,
    has_begun: bool,
    /// Whether nothing was handed over since the device was last waited for.
    is_first: bool,
}

#[derive(Debug, Default)]
struct WorkQueue {
    state: Mutex<State>,
    work: Condvar,
    finished: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// With their commands, where these were ready.
    batches: VecDeque<(Batch, Option<CommandBuffer>)>,
    encoded: EncodedCache,
    /// Batches that threads took, and those of them that are submitted.
    n_taken: u64,
    n_submitted: u64,
    spare: Vec<Batch>,
    is_closed: bool,
    /// A thread panicked.
    is_dead: bool,
}

impl Submitter {
    /// Batches' lists and parameters go to `arena`.
    pub(crate) fn new(context: Arc<Context>, arena: Buffer) -> Submitter {
        Submitter {
            context,
            arena,
            queue: Arc::default(),
            threads: Vec::new(),
            has_begun: false,
            is_first: true,
        }
    }

    /// Queues a batch for submission.
    pub(crate) fn push(&mut self, batch: Batch) {
        if !self.has_begun {
            self.begin();
        }
        let mut state = self.queue.lock();
        if self.threads.is_empty() || state.is_dead {
            drop(state);
            self.submit(batch, || {});
            return;
        }
        let is_first = std::mem::take(&mut self.is_first);
        let mut ready = state.encoded.take(&batch.commands);
        let is_idle = !state.is_at_work();
        if let Some(commands) = ready.take_if(|_| is_first && is_idle) {
            // The device has nothing to do, and waking a thread would take longer.
            drop(state);
            self.submit_encoded(batch, commands, || {});
            return;
        }
        state.batches.push_back((batch, ready));
        drop(state);
        self.queue.work.notify_one();
    }

    /// Submits a batch after all others and after `before` returns, on the calling thread, which is
    /// about to wait for the device; returns its submission index.
    pub(crate) fn submit(&mut self, batch: Batch, before: impl FnOnce()) -> SubmissionIndex {
        let ready = self.queue.lock().encoded.take(&batch.commands);
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
        self.queue.put_away(batch);
        self.queue.work.notify_one();
        index
    }

    /// Commands as the interface takes them, which had some of them at hand.
    pub(crate) fn encode(&mut self, commands: &[Command]) -> CommandBuffer {
        if !self.has_begun {
            self.begin();
        }
        let ready = self.queue.lock().encoded.take(commands);
        ready.unwrap_or_else(|| encode(&self.context, commands))
    }

    /// Submits batches that share an arena, after all others.
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
            self.queue.put_away(Batch { commands, arena: Vec::new() });
        }
        self.queue.work.notify_all();
    }

    /// Lets go of what is bound by commands that may come again.
    pub(crate) fn forget(&self) {
        self.queue.lock().encoded.forget();
    }

    /// Batches whose commands are ready for the next time.
    #[cfg(test)]
    pub(crate) fn n_ready(&self) -> usize {
        self.queue.lock().encoded.n_ready()
    }

    /// Returns when all batches are submitted.
    pub(crate) fn finish(&self) {
        let mut state = self.queue.lock();
        while state.is_at_work() {
            state = self.queue.finished.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// An empty batch.
    pub(crate) fn batch(&self) -> Batch {
        self.queue.lock().spare.pop().unwrap_or_default()
    }

    fn begin(&mut self) {
        self.has_begun = true;
        if thread::available_parallelism().map_or(1, usize::from) == 1 {
            return;
        }
        for _ in 0..N_THREADS {
            let (context, arena) = (Arc::clone(&self.context), self.arena.clone());
            let queue = Arc::clone(&self.queue);
            let thread = thread::Builder::new().name("gpu-submitter".to_owned());
            // Without threads `push` does the work.
            self.threads.extend(thread.spawn(move || queue.serve(&context, &arena)));
        }
        self.queue.lock().encoded.is_on = !self.threads.is_empty();
    }
}

impl Drop for Submitter {
    /// What was handed over is submitted before.
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panicked thread has marked the queue as dead.
            let _ = thread.join();
        }
    }
}

impl WorkQueue {
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
                let unfinished = Unfinished { queue: self, context };
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
            } else if let Some((commands, epoch)) = state.encoded.next() {
                drop(state);
                let fingerprint = fingerprint(&commands);
                if self.lock().encoded.is_known(fingerprint) {
                    let encoded = encode(context, &commands);
                    let temporary = self.lock().encoded.keep((commands, encoded), epoch);
                    drop(temporary);
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
        let temporary = self.lock().encoded.note(commands);
        batch.commands = temporary.unwrap_or_default();
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

/// A batch in work: counts it as submitted, also when its thread panicked.
struct Unfinished<'a> {
    queue: &'a WorkQueue,
    context: &'a Context,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        if thread::panicking() {
            self.context.lose(String::from("the thread that submits commands panicked"));
            state.is_dead = true;
            state.batches.clear();
        }
        state.n_submitted += 1;
        drop(state);
        self.queue.finished.notify_all();
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
