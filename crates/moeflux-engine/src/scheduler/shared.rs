//! What the thread of a scheduler and its callers share.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::job::Job;
use crate::draft::DraftCounts;

/// How many requests are served, and how many wait.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerOptions {
    /// Answers at a time: sessions that are kept.
    pub n_sessions: usize,
    /// Jobs that may wait for a session.
    pub max_waiting: usize,
}

/// What the scheduler is doing and has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
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
    /// Tokens made.
    pub n_generated: u64,
    /// Guesses of what followed, of answers that have ended, and how many were right.
    pub drafts: DraftCounts,
    /// Jobs that have ended, whatever the reason.
    pub n_ended: u64,
    /// Time for which some job had a session, in all.
    pub busy: Duration,
    /// Time that the jobs which have ended had a session, added up.
    pub served: Duration,
}

pub(super) enum Command {
    Run(Box<Job>),
    /// Finish until then, cancel what is left, keep what should last.
    Stop(Instant),
}

/// What the scheduler's thread shares with its handles.
pub(super) struct Shared {
    pub(super) n_waiting: AtomicUsize,
    pub(super) is_stopped: AtomicBool,
    pub(super) load: Mutex<Load>,
}

impl Shared {
    pub(super) fn load(&self) -> MutexGuard<'_, Load> {
        // Plain counters: whoever panicked left them as they were.
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
