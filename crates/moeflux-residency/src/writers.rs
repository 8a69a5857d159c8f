//! Threads that write experts into staging buffers as slots store them. A thread that waits for them
//! takes part in the work.
//!
//! Between two layers of a decoded token a sleeping thread wakes too late, so idle threads poll for
//! work for a while.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use moeflux_backend::DeviceCounters;
use moeflux_core::threads::yield_briefly;
use moeflux_core::{Expert, ExpertKey};

use crate::device::StagingBuffer;
use crate::packing::{Packing, Piece};

/// Most threads. One writes about a third of what a fast bus carries, and eight a little more than
/// four.
const MAX_THREADS: usize = 8;

/// How long an idle thread polls before it sleeps: longer than a layer of a decoded token takes.
const POLLING: Duration = Duration::from_millis(1);

/// A piece of an expert, on its way to a buffer.
struct Job<B> {
    load: Arc<Load>,
    expert: Arc<Expert>,
    packing: Arc<Packing>,
    buffer: B,
    piece: Piece,
}

/// An expert on its way to a buffer.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) key: ExpertKey,
    /// First byte of the expert.
    pub(crate) at: u64,
    /// Jobs that are not done.
    n_left: AtomicUsize,
}

/// The threads, begun with the first job.
#[derive(Debug)]
pub(crate) struct Writers<B: StagingBuffer> {
    queue: Arc<WorkQueue<B>>,
    threads: Vec<JoinHandle<()>>,
    has_begun: bool,
}

#[derive(Debug)]
struct WorkQueue<B> {
    counters: Arc<DeviceCounters>,
    state: Mutex<State<B>>,
    /// Jobs that no thread has begun, read without the lock.
    n_waiting: AtomicUsize,
    work: Condvar,
    finished: Condvar,
}

struct State<B> {
    jobs: VecDeque<Job<B>>,
    /// Jobs that wait or are worked on.
    n_unfinished: usize,
    /// Since when there are any.
    busy_since: Option<Instant>,
    failure: Option<String>,
    is_closed: bool,
}

impl Load {
    /// Whether it is written.
    pub(crate) fn is_done(&self) -> bool {
        self.n_left.load(Ordering::Acquire) == 0
    }
}

impl<B: StagingBuffer> Writers<B> {
    /// Writers that report their time to `counters`.
    pub(crate) fn new(counters: Arc<DeviceCounters>) -> Writers<B> {
        let state = State {
            jobs: VecDeque::new(),
            n_unfinished: 0,
            busy_since: None,
            failure: None,
            is_closed: false,
        };
        let (work, finished) = (Condvar::new(), Condvar::new());
        let (state, n_waiting) = (Mutex::new(state), AtomicUsize::new(0));
        let queue = Arc::new(WorkQueue { counters, state, n_waiting, work, finished });
        Writers { queue, threads: Vec::new(), has_begun: false }
    }

    /// Queues an expert to be written at byte `at` of a buffer.
    pub(crate) fn push(
        &mut self,
        expert: &Arc<Expert>,
        packing: &Arc<Packing>,
        buffer: &B,
        at: u64,
    ) -> Arc<Load> {
        if !self.has_begun {
            self.begin();
        }
        let pieces = packing.pieces();
        let n_pieces = pieces.len();
        let load = Arc::new(Load { key: expert.key, at, n_left: AtomicUsize::new(n_pieces) });
        let job = |piece| Job {
            load: Arc::clone(&load),
            expert: Arc::clone(expert),
            packing: Arc::clone(packing),
            buffer: buffer.clone(),
            piece,
        };
        let mut state = self.queue.lock();
        state.jobs.extend(pieces.into_iter().map(job));
        state.n_unfinished += n_pieces;
        state.busy_since.get_or_insert_with(Instant::now);
        self.queue.n_waiting.fetch_add(n_pieces, Ordering::Release);
        drop(state);
        self.queue.work.notify_all();
        load
    }

    /// Waits until these are written, and takes part in the work.
    ///
    /// # Errors
    /// If a thread could not write; the first failure since the last call.
    pub(crate) fn finish<'a>(
        &self,
        loads: impl Iterator<Item = &'a Arc<Load>> + Clone,
    ) -> Result<(), String> {
        let mut since = None;
        loop {
            let mut state = self.queue.lock();
            let are_done = loads.clone().all(|load| load.is_done());
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.queue.run_job(job);
                since = None;
            } else if are_done {
                return state.failure.take().map_or(Ok(()), Err);
            } else if since.get_or_insert_with(Instant::now).elapsed() < POLLING {
                drop(state);
                yield_briefly();
            } else {
                let state = self.queue.finished.wait(state);
                drop(state.unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    fn begin(&mut self) {
        self.has_begun = true;
        // The other cores are for the caller and for the threads that read and encode.
        let n_cores = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..(n_cores / 2).clamp(1, MAX_THREADS) {
            let queue = Arc::clone(&self.queue);
            let thread = thread::Builder::new().name("expert-upload".to_owned());
            // Without threads `finish` does all the work.
            self.threads.extend(thread.spawn(move || queue.serve()));
        }
    }
}

impl<B: StagingBuffer> Drop for Writers<B> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.is_closed = true;
        state.jobs.clear();
        drop(state);
        self.queue.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panicked thread has reported its failure.
            let _ = thread.join();
        }
    }
}

impl<B> WorkQueue<B> {
    /// A panic cannot leave the state half changed, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a job as finished.
    fn end(&self, state: &mut State<B>, load: &Load) {
        state.n_unfinished -= 1;
        if state.n_unfinished == 0 {
            let since = state.busy_since.take();
            self.counters.add_upload_time(since.map_or(Duration::ZERO, |since| since.elapsed()));
        }
        if load.n_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finished.notify_all();
        }
    }
}

impl<B: StagingBuffer> WorkQueue<B> {
    fn serve(&self) {
        let mut since = Instant::now();
        let mut state = self.lock();
        while !state.is_closed {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.run_job(job);
                since = Instant::now();
            } else if since.elapsed() < POLLING {
                drop(state);
                while self.n_waiting.load(Ordering::Acquire) == 0 && since.elapsed() < POLLING {
                    yield_briefly();
                }
            } else {
                drop(self.work.wait(state).unwrap_or_else(PoisonError::into_inner));
                since = Instant::now();
            }
            state = self.lock();
        }
    }

    fn run_job(&self, job: Job<B>) {
        self.n_waiting.fetch_sub(1, Ordering::Release);
        let (load, n_bytes) = (Arc::clone(&job.load), job.piece.bytes.len() as u64);
        let failure = Some(String::from("a writer panicked"));
        let mut ending = Ending { queue: self, load: &load, failure };
        ending.failure = job.run().err();
        if ending.failure.is_none() {
            self.counters.add_uploaded_bytes(n_bytes);
        }
    }
}

/// Counts a job as finished, whatever became of it.
struct Ending<'a, B> {
    queue: &'a WorkQueue<B>,
    load: &'a Load,
    failure: Option<String>,
}

impl<B> Drop for Ending<'_, B> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        if let Some(failure) = self.failure.take() {
            state.failure.get_or_insert(failure);
        }
        self.queue.end(&mut state, self.load);
    }
}

impl<B: StagingBuffer> Job<B> {
    /// Releases the expert before the job counts as finished.
    fn run(self) -> Result<(), String> {
        self.buffer.write(self.load.at, &self.expert, &self.packing, &self.piece)
    }
}

impl<B> fmt::Debug for State<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("n_unfinished", &self.n_unfinished)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}
