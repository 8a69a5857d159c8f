//! Threads that write experts into mapped memory as kernels read them. A thread that waits for them
//! takes part in the work.
//!
//! Between two layers of a decoded token a sleeping thread wakes too late, so idle threads poll for
//! work for a while.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use moeflux_backend::DeviceCounters;
use moeflux_core::{Expert, ExpertKey};

use crate::experts::packing::Packing;

/// Most threads. One writes about a third of what a fast bus carries, and eight
/// a little more than four.
const MAX_THREADS: usize = 8;

/// How long an idle thread polls before it sleeps: longer than a layer of a decoded token takes.
const LOOKING: Duration = Duration::from_millis(1);

/// Some bytes of an expert, on their way to a buffer.
struct Job {
    load: Arc<Load>,
    expert: Arc<Expert>,
    packing: Arc<Packing>,
    buffer: wgpu::Buffer,
    /// Which of its matrices, and which bytes of that.
    matrix: usize,
    bytes: Range<usize>,
}

/// An expert on its way to a buffer.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) key: ExpertKey,
    /// First byte of the expert.
    pub(crate) at: u64,
    /// Jobs that are not done.
    left: AtomicUsize,
}

/// The threads, begun with the first job.
#[derive(Debug)]
pub(crate) struct Writers {
    queue: Arc<WorkQueue>,
    threads: Vec<JoinHandle<()>>,
    has_begun: bool,
}

#[derive(Debug)]
struct WorkQueue {
    counters: Arc<DeviceCounters>,
    state: Mutex<State>,
    /// Jobs that no thread has begun, read without the lock.
    n_waiting: AtomicUsize,
    work: Condvar,
    finished: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
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
        self.left.load(Ordering::Acquire) == 0
    }
}

impl Writers {
    /// Writers that report their time to `counters`.
    pub(crate) fn new(counters: Arc<DeviceCounters>) -> Writers {
        let state = Mutex::new(State::default());
        let (work, finished) = (Condvar::new(), Condvar::new());
        let n_waiting = AtomicUsize::new(0);
        let queue = Arc::new(WorkQueue { counters, state, n_waiting, work, finished });
        Writers { queue, threads: Vec::new(), has_begun: false }
    }

    /// Queues an expert to be written at a byte of a buffer.
    pub(crate) fn push(
        &mut self,
        (expert, packing): (&Arc<Expert>, &Arc<Packing>),
        (buffer, at): (&wgpu::Buffer, u64),
    ) -> Arc<Load> {
        if !self.has_begun {
            self.begin();
        }
        let pieces = (0..packing.n_matrices())
            .flat_map(|matrix| packing.pieces(matrix).map(move |bytes| (matrix, bytes)));
        let pieces: Vec<(usize, Range<usize>)> = pieces.collect();
        let n = pieces.len();
        let load = Arc::new(Load { key: expert.key, at, left: AtomicUsize::new(n) });
        let job = |(matrix, bytes)| Job {
            load: Arc::clone(&load),
            expert: Arc::clone(expert),
            packing: Arc::clone(packing),
            buffer: buffer.clone(),
            matrix,
            bytes,
        };
        let mut state = self.queue.lock();
        state.jobs.extend(pieces.into_iter().map(job));
        state.n_unfinished += n;
        state.busy_since.get_or_insert_with(Instant::now);
        self.queue.n_waiting.fetch_add(n, Ordering::Release);
        drop(state);
        self.queue.work.notify_all();
        load
    }

    /// Waits until these are written, and takes part in the work.
    pub(crate) fn finish<'a>(
        &self,
        loads: impl Iterator<Item = &'a Arc<Load>> + Clone,
    ) -> Result<(), String> {
        let mut since = None;
        loop {
            let mut state = self.queue.lock();
            let is_done = loads.clone().all(|it| it.is_done());
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.queue.run_job(job);
                since = None;
            } else if is_done {
                return state.failure.take().map_or(Ok(()), Err);
            } else if since.get_or_insert_with(Instant::now).elapsed() < LOOKING {
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

/// Yields the core for about a microsecond.
pub(crate) fn yield_briefly() {
    for _ in 0..32 {
        std::hint::spin_loop();
    }
    thread::yield_now();
}

impl Drop for Writers {
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

impl WorkQueue {
    /// A panic cannot leave the state half changed, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut since = Instant::now();
        let mut state = self.lock();
        while !state.is_closed {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.run_job(job);
                since = Instant::now();
            } else if since.elapsed() < LOOKING {
                drop(state);
                while self.n_waiting.load(Ordering::Acquire) == 0 && since.elapsed() < LOOKING {
                    yield_briefly();
                }
            } else {
                drop(self.work.wait(state).unwrap_or_else(PoisonError::into_inner));
                since = Instant::now();
            }
            state = self.lock();
        }
    }

    fn run_job(&self, job: Job) {
        self.n_waiting.fetch_sub(1, Ordering::Release);
        let (load, bytes) = (Arc::clone(&job.load), job.bytes.len() as u64);
        let failure = Some(String::from("a writer panicked"));
        let mut ending = Ending { queue: self, load: &load, failure };
        ending.failure = job.run().err();
        if ending.failure.is_none() {
            self.counters.add_uploaded_bytes(bytes);
        }
    }

    /// Counts a job as finished.
    fn end(&self, state: &mut State, load: &Load) {
        state.n_unfinished -= 1;
        if state.n_unfinished == 0 {
            let time = state.busy_since.take().map_or(Duration::ZERO, |it| it.elapsed());
            self.counters.add_upload_time(time);
        }
        if load.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finished.notify_all();
        }
    }
}

/// Counts a job as finished, whatever became of it.
struct Ending<'a> {
    queue: &'a WorkQueue,
    load: &'a Load,
    failure: Option<String>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        if let Some(failure) = self.failure.take() {
            state.failure.get_or_insert(failure);
        }
        self.queue.end(&mut state, self.load);
    }
}

impl Job {
    /// Releases the expert before the job counts as finished.
    fn run(self) -> Result<(), String> {
        let Job { load, expert, packing, buffer, matrix, bytes } = self;
        let (range, scales) = packing.part(matrix);
        let first = load.at + range.start as u64;
        let mut view = buffer
            .get_mapped_range_mut(first + bytes.start as u64..first + bytes.end as u64)
            .map_err(|err| format!("staging memory is not there: {err}"))?;
        let matrix = expert.matrix(packing.matrix(matrix));
        crate::weights::format::write_packed(&matrix, scales, bytes, view.slice(..));
        Ok(())
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("n_unfinished", &self.n_unfinished)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}
