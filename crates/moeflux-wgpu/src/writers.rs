//! Threads that bring the bytes of experts into mapped memory, in the places
//! where kernels look for them. Whoever waits for them helps.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use moeflux_backend::DeviceCounters;
use moeflux_core::Expert;

use crate::experts::Packing;

/// Most threads. One writes about a third of what a fast bus carries.
const MAX_THREADS: usize = 4;

/// One matrix of an expert, on its way to a buffer.
pub(crate) struct Job {
    pub(crate) expert: Arc<Expert>,
    pub(crate) packing: Arc<Packing>,
    /// Which of its matrices.
    pub(crate) matrix: usize,
    pub(crate) buffer: wgpu::Buffer,
    /// First byte of the expert.
    pub(crate) at: u64,
}

/// The threads, begun with the first job.
#[derive(Debug)]
pub(crate) struct Writers {
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
    has_begun: bool,
}

#[derive(Debug)]
struct Desk {
    counters: Arc<DeviceCounters>,
    state: Mutex<State>,
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

impl Writers {
    /// Threads whose time `counters` gets to know.
    pub(crate) fn new(counters: Arc<DeviceCounters>) -> Writers {
        let state = Mutex::new(State::default());
        let (work, finished) = (Condvar::new(), Condvar::new());
        let desk = Arc::new(Desk { counters, state, work, finished });
        Writers { desk, threads: Vec::new(), has_begun: false }
    }

    /// Has matrices written, at once where a thread is free.
    pub(crate) fn push(&mut self, jobs: impl Iterator<Item = Job>) {
        if !self.has_begun {
            self.begin();
        }
        let mut state = self.desk.lock();
        for job in jobs {
            state.jobs.push_back(job);
            state.n_unfinished += 1;
        }
        state.busy_since.get_or_insert_with(Instant::now);
        drop(state);
        self.desk.work.notify_all();
    }

    /// Returns when everything is written; works at it until then.
    ///
    /// # Errors
    /// What kept something from being written.
    pub(crate) fn finish(&self) -> Result<(), String> {
        let mut state = self.desk.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.desk.work_at(job);
                state = self.desk.lock();
            } else if state.n_unfinished > 0 {
                state = self.desk.finished.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                return state.failure.take().map_or(Ok(()), Err);
            }
        }
    }

    fn begin(&mut self) {
        self.has_begun = true;
        // One core is the caller's.
        let n_cores = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..(n_cores - 1).clamp(1, MAX_THREADS) {
            let desk = Arc::clone(&self.desk);
            let thread = thread::Builder::new().name("expert-upload".to_owned());
            // Without it whoever waits does all the work.
            self.threads.extend(thread.spawn(move || desk.serve()));
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        state.is_closed = true;
        state.jobs.clear();
        drop(state);
        self.desk.work.notify_all();
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Desk {
    /// What lies behind the lock is whole at any time.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            match state.jobs.pop_front() {
                Some(job) => {
                    drop(state);
                    self.work_at(job);
                    state = self.lock();
                }
                None => state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn work_at(&self, job: Job) {
        let mut ending = Ending { desk: self, failure: Some(String::from("a writer panicked")) };
        ending.failure = job.run().err();
    }
}

/// Counts a job as finished, whatever became of it.
struct Ending<'a> {
    desk: &'a Desk,
    failure: Option<String>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        if let Some(failure) = self.failure.take() {
            state.failure.get_or_insert(failure);
        }
        state.n_unfinished -= 1;
        if state.n_unfinished == 0 {
            let time = state.busy_since.take().map_or(Duration::ZERO, |it| it.elapsed());
            self.desk.counters.add_upload_time(time);
            self.desk.finished.notify_all();
        }
    }
}

impl Job {
    fn run(self) -> Result<(), String> {
        let (range, scales) = self.packing.part(self.matrix);
        let range = self.at + range.start as u64..self.at + range.end as u64;
        let mut view = self
            .buffer
            .get_mapped_range_mut(range)
            .map_err(|err| format!("staging memory is not there: {err}"))?;
        let matrix = self.packing.matrix(self.matrix);
        crate::arena::write_packed(&self.expert.matrix(matrix), scales, view.slice(..));
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
