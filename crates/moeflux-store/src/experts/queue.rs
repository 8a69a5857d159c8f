//! Reads that wait for a thread: those of requests first, then reads ahead while the drive would be
//! idle.

use std::collections::VecDeque;
use std::time::Duration;

use moeflux_core::{HostBuf, LayerIdx};

use super::plan::Target;
use crate::drive::BusyTime;

/// One expert to bring into memory.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) target: Target,
    /// The slot; `None` when files are mapped.
    pub(super) buf: Option<HostBuf>,
    pub(super) priority: Priority,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// A request waits for it.
    Demand,
    /// It was predicted, so a request for it may come soon.
    Prefetch,
    /// It was used often in an earlier process, and a slot is free.
    WarmUp,
}

/// How certain it is that an expert will be requested. This limits how many such reads can be in
/// progress when a request has to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Confidence {
    /// A router's choice was predicted: one read at a time.
    Likely,
    /// Many rows will use nearly all experts: as many reads at a time as there are readers.
    Certain,
}

/// An expert to read when the drive is idle. It takes no slot before its read begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefetchRequest {
    pub(super) target: Target,
    pub(super) confidence: Confidence,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    demands: VecDeque<Job>,
    /// Prefetches that have not started, the likeliest first.
    prefetches: VecDeque<PrefetchRequest>,
    /// Experts to read into free slots only, the most used first.
    warm: VecDeque<Target>,
    n_ahead_reading: usize,
    /// All reads in progress.
    busy: BusyTime,
}

impl Queue {
    pub(super) fn push(&mut self, job: Job) {
        debug_assert_eq!(job.priority, Priority::Demand, "other reads start as prefetches");
        self.demands.push_back(job);
    }

    /// Starts the next read that a request waits for.
    pub(super) fn start_demand(&mut self) -> Option<Job> {
        let job = self.demands.pop_front()?;
        self.begin(Priority::Demand);
        Some(job)
    }

    /// Counts a read that begins.
    pub(super) fn begin(&mut self, priority: Priority) {
        self.busy.begin();
        self.n_ahead_reading += usize::from(priority != Priority::Demand);
    }

    /// Counts a read that has ended.
    pub(super) fn finish(&mut self, priority: Priority) {
        self.busy.end();
        self.n_ahead_reading -= usize::from(priority != Priority::Demand);
    }

    /// Whether a request waits for a read that has not begun.
    pub(super) fn has_waiting(&self) -> bool {
        !self.demands.is_empty()
    }

    /// The first prefetch, if its read may begin. It may not while a request waits for a read. A
    /// likely one also waits for other reads ahead to end; a certain one does not.
    pub(super) fn next_prefetch(&self) -> Option<PrefetchRequest> {
        let request = self.prefetches.front()?;
        let is_alone = self.n_ahead_reading == 0 || request.confidence == Confidence::Certain;
        (is_alone && !self.has_demands()).then_some(*request)
    }

    pub(super) fn drop_prefetch(&mut self) {
        self.prefetches.pop_front();
    }

    /// The next expert to warm up, if its read may begin: only while no request waits for a read
    /// and no other read ahead is in progress.
    pub(super) fn next_warm(&self) -> Option<Target> {
        let is_alone = self.n_ahead_reading == 0 && !self.has_demands();
        self.warm.front().copied().filter(|_| is_alone)
    }

    pub(super) fn drop_warm(&mut self) {
        self.warm.pop_front();
    }

    /// Replaces the prefetches of a layer that have not started.
    pub(super) fn set_prefetches(
        &mut self,
        layer: LayerIdx,
        requests: impl Iterator<Item = PrefetchRequest>,
    ) {
        self.cancel_layer(layer);
        self.prefetches.extend(requests);
    }

    pub(super) fn warm(&mut self, hottest_first: impl Iterator<Item = Target>) {
        self.warm = hottest_first.collect();
    }

    pub(super) fn stop_warming(&mut self) {
        self.warm.clear();
    }

    /// Whether a read ahead needs only a reader, and perhaps a slot, to begin.
    pub(super) fn may_read_ahead(&self) -> bool {
        self.next_prefetch().is_some() || self.next_warm().is_some()
    }

    pub(super) fn cancel_prefetches(&mut self) {
        self.prefetches.clear();
    }

    pub(super) fn cancel_layer(&mut self, layer: LayerIdx) {
        self.prefetches.retain(|request| request.target.key.layer != layer);
    }

    /// Removes and returns the reads of requests that have not started and for which `matches` is
    /// true.
    pub(super) fn cancel_demands(&mut self, matches: impl Fn(Target) -> bool) -> Vec<Job> {
        let (cancelled, left): (Vec<Job>, Vec<Job>) =
            self.demands.drain(..).partition(|job| matches(job.target));
        self.demands = VecDeque::from(left);
        cancelled
    }

    pub(super) fn n_ahead_reading(&self) -> usize {
        self.n_ahead_reading
    }

    /// Whether no read is in progress and no read of a request is queued.
    pub(super) fn is_idle(&self) -> bool {
        self.demands.is_empty() && self.busy.n_reading() == 0
    }

    /// Time in which at least one read was in progress.
    pub(super) fn busy(&self) -> Duration {
        self.busy.total()
    }

    pub(super) fn reset_busy(&mut self) {
        self.busy.reset();
    }

    /// Whether a read of a request is queued or in progress.
    pub(super) fn has_demands(&self) -> bool {
        !self.demands.is_empty() || self.busy.n_reading() > self.n_ahead_reading
    }
}

#[cfg(test)]
mod tests {
    use moeflux_core::{ExpertId, ExpertKey};
    use proptest::prelude::*;

    use super::*;
    use crate::experts::plan::Ordinal;

    fn target(expert: u16) -> Target {
        let key = ExpertKey { layer: LayerIdx(expert % 3), expert: ExpertId(expert) };
        Target { key, ordinal: Ordinal(u32::from(expert)) }
    }

    #[derive(Clone, Debug)]
    enum Call {
        Demand(u16),
        PrefetchRequest(Vec<u16>, bool),
        Warm(Vec<u16>),
        /// A reader asks for work.
        Start,
        /// The read that began first is done.
        Finish,
        CancelWishes,
        CancelLayer(u16),
    }

    fn call() -> impl Strategy<Value = Call> {
        let some = || proptest::collection::vec(0u16..20, 0..6);
        prop_oneof![
            2 => (0u16..20).prop_map(Call::Demand),
            2 => (some(), any::<bool>()).prop_map(|(experts, is_certain)| Call::PrefetchRequest(experts, is_certain)),
            1 => some().prop_map(Call::Warm),
            4 => Just(Call::Start),
            3 => Just(Call::Finish),
            1 => Just(Call::CancelWishes),
            1 => (0u16..3).prop_map(Call::CancelLayer),
        ]
    }

    proptest! {
        #[test]
        fn no_prefetch_starts_before_or_during_a_demand(
            calls in proptest::collection::vec(call(), 0..80)
        ) {
            let mut queue = Queue::default();
            let mut reading: Vec<(Priority, Confidence)> = Vec::new();
            let mut n_waiting = 0;
            for call in calls {
                match call {
                    Call::Demand(expert) => {
                        let priority = Priority::Demand;
                        queue.push(Job { target: target(expert), buf: None, priority });
                        n_waiting += 1;
                    }
                    Call::PrefetchRequest(experts, is_certain) => {
                        let confidence = if is_certain { Confidence::Certain } else { Confidence::Likely };
                        let request = |expert: &u16| PrefetchRequest { target: target(*expert), confidence };
                        queue.set_prefetches(LayerIdx(0), experts.iter().map(request));
                    }
                    Call::Warm(experts) => queue.warm(experts.into_iter().map(target)),
                    Call::Start => {
                        let has_demand = reading.iter().any(|read| read.0 == Priority::Demand);
                        if queue.start_demand().is_some() {
                            prop_assert!(n_waiting > 0);
                            n_waiting -= 1;
                            reading.push((Priority::Demand, Confidence::Certain));
                        } else if let Some(request) = queue.next_prefetch() {
                            prop_assert!(n_waiting == 0 && !has_demand);
                            let is_alone = reading.is_empty();
                            prop_assert!(is_alone || request.confidence == Confidence::Certain);
                            queue.drop_prefetch();
                            queue.begin(Priority::Prefetch);
                            reading.push((Priority::Prefetch, request.confidence));
                        } else if queue.next_warm().is_some() {
                            prop_assert!(n_waiting == 0 && reading.is_empty());
                            queue.drop_warm();
                            queue.begin(Priority::WarmUp);
                            reading.push((Priority::WarmUp, Confidence::Likely));
                        }
                    }
                    Call::Finish if reading.is_empty() => {}
                    Call::Finish => queue.finish(reading.remove(0).0),
                    Call::CancelWishes => {
                        queue.cancel_prefetches();
                        prop_assert!(queue.next_prefetch().is_none());
                    }
                    Call::CancelLayer(layer) => queue.cancel_layer(LayerIdx(layer)),
                }
                prop_assert_eq!(queue.is_idle(), n_waiting == 0 && reading.is_empty());
                let n_ahead = reading.iter().filter(|read| read.0 != Priority::Demand).count();
                prop_assert_eq!(queue.n_ahead_reading(), n_ahead);
            }
        }
    }
}
