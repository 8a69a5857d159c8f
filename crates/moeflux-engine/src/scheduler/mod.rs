//! Several answers at a time: one thread owns the engine, and every step of it
//! carries a row of each answer that is being made and some rows of prompts
//! that are being read.

mod answer;
mod job;
mod pool;
mod runner;
pub(crate) mod shared;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use moeflux_core::explain_thread_error;
use moeflux_text::Tokenizer;

use self::runner::Runner;
use crate::engine::Engine;
use crate::scheduler::shared::{Command, Shared};

pub use self::job::{Answer, Bias, Event, Job, Listener, TokenLogprob, TokenText};
pub use crate::scheduler::shared::Load;
pub use crate::scheduler::shared::SchedulerOptions;

/// Why a job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Too many wait already.
    #[error("{n_waiting} requests are waiting already: try again in {} s", retry_after.as_secs())]
    QueueFull {
        /// Jobs that wait.
        n_waiting: usize,
        /// When it may be worth another try.
        retry_after: Duration,
    },
    /// The scheduler has been shut down, or its thread has died.
    #[error("the engine has stopped")]
    Stopped,
}

/// A handle of the thread that runs an engine for many.
pub struct Scheduler {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    options: SchedulerOptions,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Scheduler {
    /// Starts the thread. From now on, the engine's sessions are its business.
    pub fn start(
        engine: Engine,
        tokenizer: Arc<Tokenizer>,
        options: SchedulerOptions,
    ) -> std::io::Result<Scheduler> {
        let (commands, inbox) = mpsc::channel();
        let shared = Arc::new(Shared {
            n_waiting: AtomicUsize::new(0),
            is_stopped: AtomicBool::new(false),
            load: Mutex::default(),
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

    /// Queues a job; its listener hears of it from another thread.
    ///
    /// # Errors
    /// Where too many wait already, or the scheduler has stopped.
    pub fn submit(&self, job: Job) -> Result<(), SubmitError> {
        self.submit_all(vec![job])
    }

    /// Queues jobs, all or none of them.
    ///
    /// # Errors
    /// As [`Scheduler::submit`].
    pub fn submit_all(&self, jobs: Vec<Job>) -> Result<(), SubmitError> {
        if self.shared.is_stopped.load(Ordering::Acquire) {
            return Err(SubmitError::Stopped);
        }
        let limit = self.options.max_waiting;
        let count = |n: usize| (n + jobs.len() <= limit).then_some(n + jobs.len());
        let counted =
            self.shared.n_waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, count);
        if let Err(n_waiting) = counted {
            return Err(SubmitError::QueueFull { n_waiting, retry_after: self.retry_after() });
        }
        for job in jobs {
            let sent = self.commands.send(Command::Run(Box::new(job)));
            sent.map_err(|_| SubmitError::Stopped)?;
        }
        Ok(())
    }

    /// Whether the thread is there.
    pub fn is_running(&self) -> bool {
        !self.shared.is_stopped.load(Ordering::Acquire)
    }

    /// Answers at a time, and jobs that may wait.
    pub fn options(&self) -> SchedulerOptions {
        self.options
    }

    /// What it is doing and has done.
    pub fn load(&self) -> Load {
        let n_waiting = self.shared.n_waiting.load(Ordering::Acquire);
        Load { n_waiting, ..*self.shared.load() }
    }

    /// Takes no more jobs, lets those that it has finish for so long, cancels
    /// the rest, keeps what should last, and ends.
    pub fn shutdown(&self, grace: Duration) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Where the thread has died there is nothing left to finish.
        let _ = self.commands.send(Command::Stop(Instant::now() + grace));
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// As long as it takes until a session is free, on average so far.
    fn retry_after(&self) -> Duration {
        const SHORTEST: Duration = Duration::from_secs(1);
        const LONGEST: Duration = Duration::from_secs(60);
        let load = *self.shared.load();
        let n_ended = u32::try_from(load.n_ended).unwrap_or(u32::MAX).max(1);
        let n_sessions = u32::try_from(self.options.n_sessions).unwrap_or(u32::MAX).max(1);
        (load.served / n_ended / n_sessions).clamp(SHORTEST, LONGEST)
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

/// Says that the thread has ended, also where it panicked.
struct StoppedGuard(Arc<Shared>);

impl Drop for StoppedGuard {
    fn drop(&mut self) {
        self.0.is_stopped.store(true, Ordering::Release);
    }
}
