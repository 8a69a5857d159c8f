//! Continuous batching: one thread runs the engine, and every step has a row of each answer and
//! some rows of prompts.

mod answer;
mod job;
mod keeping;
mod pool;
mod runner;
pub(crate) mod shared;
#[cfg(test)]
mod tests;
mod turns;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use moeflux_core::explain_thread_error;
use moeflux_text::Tokenizer;

use self::runner::Runner;
use crate::engine::Engine;
use crate::scheduler::shared::{Command, Shared};
use crate::session::Session;

pub use self::job::{Answer, Event, Job, Listener};
pub use crate::scheduler::shared::{SchedulerOptions, SchedulerStats};

/// Why a job was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("{n_waiting} requests are waiting already: try again in {} s", retry_after.as_secs())]
    QueueFull {
        /// Jobs that wait.
        n_waiting: usize,
        /// After what time a session may be free.
        retry_after: Duration,
    },
    /// The scheduler has been shut down, or its thread has died.
    #[error("the engine has stopped")]
    Stopped,
}

/// A handle of the thread that generates answers with an engine. Can be shared between threads.
pub struct Scheduler {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    options: SchedulerOptions,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Scheduler {
    /// Starts the thread, which creates its own sessions of the engine.
    ///
    /// # Errors
    /// Where the system starts no thread.
    pub fn start(
        engine: Engine,
        tokenizer: Arc<Tokenizer>,
        options: SchedulerOptions,
    ) -> std::io::Result<Scheduler> {
        let (commands, inbox) = mpsc::channel();
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            is_device_lost: AtomicBool::new(false),
            stats: Mutex::default(),
        });
        let guard = StoppedGuard(Arc::clone(&shared));
        let runner = Runner::new(engine, tokenizer, options, Arc::clone(&shared), inbox);
        let thread = thread::Builder::new().name(String::from("engine")).spawn(move || {
            let _guard = guard;
            runner.run();
        });
        let thread = thread.map_err(explain_thread_error)?;
        Ok(Scheduler { commands, shared, options, thread: Mutex::new(Some(thread)) })
    }

    /// Queues a job. Its listener is called on the scheduler's thread.
    ///
    /// # Errors
    /// Where the queue is full or the scheduler has stopped.
    pub fn submit(&self, job: Job) -> Result<(), SubmitError> {
        self.submit_all(vec![job])
    }

    /// Queues jobs, all or none of them. An owner may leave no fewer places of the queue free than it
    /// takes; jobs without an owner may take all.
    ///
    /// # Errors
    /// As [`Scheduler::submit`].
    pub fn submit_all(&self, jobs: Vec<Job>) -> Result<(), SubmitError> {
        if self.shared.is_stopped.load(Ordering::Acquire) {
            return Err(SubmitError::Stopped);
        }
        let most = self.options.max_waiting;
        let mut waiting = self.shared.waiting();
        for (i, job) in jobs.iter().enumerate() {
            if !waiting.enter(&job.owner, 1, most) {
                jobs[..i].iter().for_each(|job| waiting.leave(&job.owner));
                let n_waiting = waiting.n();
                drop(waiting);
                return Err(SubmitError::QueueFull { n_waiting, retry_after: self.retry_after() });
            }
        }
        drop(waiting);
        for job in jobs {
            let sent = self.commands.send(Command::Run(Box::new(job)));
            sent.map_err(|_| SubmitError::Stopped)?;
        }
        Ok(())
    }

    /// Calls `work` on the scheduler's thread with the session that was used last, once no job has
    /// it, and waits for what it returns: to save a conversation, or to go on with a saved one. What
    /// the prefix cache is to keep of the session is kept before.
    ///
    /// It waits while all sessions have jobs. A [`Listener`] must not call it: listeners run on the
    /// scheduler's thread, which would wait for itself.
    ///
    /// # Errors
    /// Where the scheduler has stopped.
    pub fn with_session<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Session) -> T + Send + 'static,
    ) -> Result<T, SubmitError> {
        let (sender, result) = mpsc::channel();
        // The receiver waits.
        let visit = move |session: &mut Session| drop(sender.send(work(session)));
        let sent = self.commands.send(Command::Visit(Box::new(visit)));
        sent.map_err(|_| SubmitError::Stopped)?;
        result.recv().map_err(|_| SubmitError::Stopped)
    }

    /// Whether the thread is running.
    pub fn is_running(&self) -> bool {
        !self.shared.is_stopped.load(Ordering::Acquire)
    }

    /// Whether the device was lost. Every job fails then, and says so, until the model is opened again.
    pub fn is_device_lost(&self) -> bool {
        self.shared.is_device_lost.load(Ordering::Acquire)
    }

    /// The options that it was started with.
    pub fn options(&self) -> SchedulerOptions {
        self.options
    }

    /// Current counts of jobs, and totals since the start.
    pub fn stats(&self) -> SchedulerStats {
        let n_waiting = self.shared.waiting().n();
        SchedulerStats { n_waiting, ..*self.shared.stats() }
    }

    /// Refuses new jobs, waits up to `grace` for the others, cancels the rest, stores sessions in
    /// the prefix cache, and ends the thread.
    pub fn shutdown(&self, grace: Duration) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Where the thread has died there is nothing left to finish.
        let _ = self.commands.send(Command::Stop(Instant::now() + grace));
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// The average time so far until a session becomes free.
    fn retry_after(&self) -> Duration {
        const SHORTEST: Duration = Duration::from_secs(1);
        const LONGEST: Duration = Duration::from_secs(60);
        let stats = *self.shared.stats();
        let n_ended = u32::try_from(stats.n_ended).unwrap_or(u32::MAX).max(1);
        let n_sessions = u32::try_from(self.options.n_sessions).unwrap_or(u32::MAX).max(1);
        (stats.served / n_ended / n_sessions).clamp(SHORTEST, LONGEST)
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

/// Records that the thread has ended, also where it panicked.
struct StoppedGuard(Arc<Shared>);

impl Drop for StoppedGuard {
    fn drop(&mut self) {
        self.0.is_stopped.store(true, Ordering::Release);
    }
}
