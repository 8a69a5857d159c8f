//! State that the thread of a scheduler shares with its callers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use moeflux_backend::DeviceError;

use super::job::Job;
use super::turns::Waiting;
use crate::error::EngineError;
use crate::session::Session;
use crate::speculation::options::SpeculationStats;

/// Limits of a scheduler.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerOptions {
    /// The number of sessions, and so of answers that are generated at a time.
    pub n_sessions: usize,
    /// The most jobs that wait for a session.
    pub max_waiting: usize,
}

/// Statistics of a scheduler since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct SchedulerStats {
    /// Jobs that have a session.
    pub n_running: usize,
    /// Jobs that wait for one.
    pub n_waiting: usize,
    /// Steps run.
    pub n_steps: u64,
    /// Rows of these steps.
    pub n_rows: u64,
    /// Tokens of prompts that were evaluated.
    pub n_prompt: u64,
    /// Tokens of prompts that needed no evaluation.
    pub n_reused: u64,
    /// Tokens generated.
    pub n_generated: u64,
    /// Tokens drafted and accepted, in answers that have ended.
    pub speculation: SpeculationStats,
    /// Jobs that have ended, whatever the reason.
    pub n_ended: u64,
    /// Time in which steps ran.
    pub busy: Duration,
    /// The time that ended jobs had a session, summed over the jobs.
    pub served: Duration,
}

/// Work on a session that no job has.
pub(super) type Visit = Box<dyn FnOnce(&mut Session) + Send>;

pub(super) enum Command {
    Run(Box<Job>),
    Visit(Visit),
    /// Finish jobs until then, cancel the rest, store sessions in the prefix cache.
    Stop(Instant),
}

/// State that the scheduler's thread shares with its handles.
pub(super) struct Shared {
    pub(super) waiting: Mutex<Waiting>,
    pub(super) is_stopped: AtomicBool,
    /// Whether a job failed because the device was lost.
    pub(super) is_device_lost: AtomicBool,
    pub(super) stats: Mutex<SchedulerStats>,
}

impl Shared {
    /// Notes why a job failed.
    pub(super) fn note_failure(&self, err: &EngineError) {
        if matches!(err, EngineError::Device(DeviceError::Lost { .. })) {
            self.is_device_lost.store(true, Ordering::Release);
        }
    }

    pub(super) fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Plain counters are valid after a panic too.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stats(&self) -> MutexGuard<'_, SchedulerStats> {
        // Plain counters are valid after a panic too.
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
