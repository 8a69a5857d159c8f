//! Reads that wait for a thread: asked-for experts first, predicted ones when
//! the drive would be idle.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use moeflux_core::HostBuf;

use crate::plan::Target;

/// One expert to bring into memory.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) target: Target,
    /// The slot; `None` when files are mapped.
    pub(crate) buf: Option<HostBuf>,
    pub(crate) urgency: Urgency,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Somebody waits for it.
    Demand,
    /// Somebody may want it.
    Prefetch,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    demands: VecDeque<Job>,
    prefetches: VecDeque<Job>,
    n_demands_reading: usize,
    n_prefetches_reading: usize,
    /// When the drive was last put to work.
    busy_since: Option<Instant>,
    busy: Duration,
}

impl Queue {
    pub(crate) fn push(&mut self, job: Job) {
        match job.urgency {
            Urgency::Demand => self.demands.push_back(job),
            Urgency::Prefetch => self.prefetches.push_back(job),
        }
    }

    /// The next job that may start. A predicted read never shares the drive
    /// with one that somebody waits for.
    pub(crate) fn start(&mut self) -> Option<Job> {
        let job = match self.demands.pop_front() {
            Some(job) => job,
            None if self.n_demands_reading == 0 => self.prefetches.pop_front()?,
            None => return None,
        };
        if self.n_reading() == 0 {
            self.busy_since = Some(Instant::now());
        }
        *self.n_reading_of(job.urgency) += 1;
        Some(job)
    }

    /// Takes note that a started job is done.
    pub(crate) fn finish(&mut self, urgency: Urgency) {
        *self.n_reading_of(urgency) -= 1;
        if self.n_reading() == 0 {
            self.busy += self.busy_since.take().map_or(Duration::ZERO, |it| it.elapsed());
        }
    }

    /// Whether predicted reads wait for nothing but a thread.
    pub(crate) fn may_start_prefetch(&self) -> bool {
        self.may_go_on_with_prefetch() && !self.prefetches.is_empty()
    }

    /// Whether nobody waits for a read.
    pub(crate) fn may_go_on_with_prefetch(&self) -> bool {
        self.demands.is_empty() && self.n_demands_reading == 0
    }

    pub(crate) fn has_demands(&self) -> bool {
        !self.demands.is_empty()
    }

    /// Turns a predicted read that has not started into an urgent one; false
    /// if there is none.
    pub(crate) fn promote(&mut self, target: Target) -> bool {
        let Some(found) = self.prefetches.iter().position(|it| it.target == target) else {
            return false;
        };
        let Some(job) = self.prefetches.remove(found) else { return false };
        self.demands.push_back(Job { urgency: Urgency::Demand, ..job });
        true
    }

    /// Takes back one predicted read that has not started, the least urgent.
    pub(crate) fn cancel_prefetch(&mut self) -> Option<Job> {
        self.prefetches.pop_back()
    }

    /// Takes back the urgent reads that have not started and match.
    pub(crate) fn cancel_demands(&mut self, matches: impl Fn(Target) -> bool) -> Vec<Job> {
        let (cancelled, kept): (Vec<Job>, Vec<Job>) =
            self.demands.drain(..).partition(|it| matches(it.target));
        self.demands = VecDeque::from(kept);
        cancelled
    }

    pub(crate) fn n_prefetches(&self) -> usize {
        self.prefetches.len() + self.n_prefetches_reading
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.demands.is_empty() && self.prefetches.is_empty() && self.n_reading() == 0
    }

    /// Time in which at least one read was in progress.
    pub(crate) fn busy(&self) -> Duration {
        self.busy + self.busy_since.map_or(Duration::ZERO, |it| it.elapsed())
    }

    pub(crate) fn reset_busy(&mut self) {
        self.busy = Duration::ZERO;
        self.busy_since = self.busy_since.map(|_| Instant::now());
    }

    fn n_reading(&self) -> usize {
        self.n_demands_reading + self.n_prefetches_reading
    }

    fn n_reading_of(&mut self, urgency: Urgency) -> &mut usize {
        match urgency {
            Urgency::Demand => &mut self.n_demands_reading,
            Urgency::Prefetch => &mut self.n_prefetches_reading,
        }
    }
}
