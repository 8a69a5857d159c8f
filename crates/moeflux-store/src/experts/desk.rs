//! The state of the expert store: which experts each request waits for, where each expert is, and
//! which read starts next. Consumers and readers share all of it under one lock.

use std::sync::Arc;
use std::time::Duration;

use moeflux_core::{Expert, LayerIdx, nanoseconds};

use super::ahead::Ahead;
use super::in_flight::{InFlight, Outcome, Part};
use super::journal::Journal;
use super::limits::Limits;
use super::plan::Target;
use super::queue::{Confidence, Job, Priority, Queue};
use super::reader::Reader;
use super::requests::{Batch, Pending, Requests};
use super::residents::{Coming, Joined, RequestId, Residents, Waiter};
use super::slots::Slots;
use super::stats::StoreStats;
use crate::StoreError;
use crate::drive::{Desk, Wake};

/// The state of an expert store.
#[derive(Debug)]
pub(super) struct ExpertDesk {
    pub(super) residents: Residents,
    pub(super) requests: Requests,
    pub(super) queue: Queue,
    in_flight: InFlight,
    pub(super) ahead: Ahead,
    pub(super) journal: Journal,
    max_pinned: usize,
}

impl ExpertDesk {
    pub(super) fn new(
        n_experts: usize,
        n_layers: usize,
        slots: Option<Slots>,
        limits: Limits,
    ) -> ExpertDesk {
        ExpertDesk {
            residents: Residents::new(n_experts, slots),
            requests: Requests::default(),
            queue: Queue::default(),
            in_flight: InFlight::default(),
            ahead: Ahead::new(n_layers, limits.n_reserved),
            journal: Journal::new(n_layers),
            max_pinned: limits.max_pinned,
        }
    }

    /// Registers a request. If all experts are resident and can be pinned at once, returns them in
    /// `batch`; else returns an empty batch and a number to collect the experts with. Each target
    /// comes with its number of uses.
    pub(super) fn request(
        &mut self,
        layer: LayerIdx,
        wanted: impl ExactSizeIterator<Item = (Target, f32)>,
        batch: Batch,
    ) -> (Batch, Option<RequestId>) {
        let id = self.requests.next_id();
        let n_wanted = wanted.len();
        let mut pending = Pending::new(batch);
        let n_used_before = self.journal.counts.prefetch_used;
        for (index, (target, n_uses)) in wanted.enumerate() {
            if let Some(policy) = self.residents.policy() {
                policy.touched(target.ordinal, n_uses);
            }
            if !self.join(&mut pending, Waiter { request: id, index }, target) {
                pending.unissued.push_back((index, target));
            }
        }
        if let Some(policy) = self.residents.policy() {
            policy.asked();
        }
        let n_hits = pending.pinned.len() + pending.awaiting.len();
        let n_misses = n_wanted - n_hits;
        self.journal.request(layer, n_hits, n_misses);
        self.ahead.settle(layer, &mut self.residents);
        self.queue.cancel_layer(layer);
        let was_predicted = self.journal.counts.prefetch_used > n_used_before;
        self.ahead.predictor.served(layer, n_misses == 0 && !was_predicted);
        if pending.pinned.len() == n_wanted {
            return (pending.pinned, None);
        }
        if n_misses > 0 {
            self.queue.cancel_prefetches();
        }
        let id = self.requests.add(pending);
        self.issue(id);
        (Vec::new(), Some(id))
    }

    /// Starts reads of a request as long as there are slots. Returns whether any was started.
    pub(super) fn issue(&mut self, id: RequestId) -> bool {
        let Some(mut pending) = self.requests.take(id) else { return false };
        let mut is_any = false;
        while let Some(&(index, target)) = pending.unissued.front() {
            let waiter = Waiter { request: id, index };
            if !self.join(&mut pending, waiter, target) {
                let priority = Priority::Demand;
                let Some(buf) = self.residents.acquire(priority) else { break };
                let (waiters, starter) = (vec![waiter], Some(id));
                self.residents.start(target, Coming { waiters, starter, ..Coming::default() });
                self.queue.push(Job { target, buf, priority });
                pending.n_coming += 1;
                is_any = true;
            }
            pending.unissued.pop_front();
        }
        self.requests.put_back(id, pending);
        is_any
    }

    /// Adds an expert that is resident, queued or being read to a request. Returns false if it is
    /// none of these.
    fn join(&mut self, pending: &mut Pending, waiter: Waiter, target: Target) -> bool {
        let may_pin = pending.pinned.len() < self.max_pinned;
        let joined = self.residents.join(target, waiter, pending.owner, may_pin);
        let Some((joined, was_predicted)) = joined else { return false };
        match joined {
            Joined::Coming { is_first } => {
                if is_first {
                    self.in_flight.promote(target);
                }
                pending.n_coming += 1;
            }
            Joined::Pinned(expert) => pending.pinned.push((waiter.index, expert)),
            Joined::Awaited => pending.awaiting.push_back((waiter.index, target)),
        }
        self.journal.counts.prefetch_used += u64::from(was_predicted);
        true
    }

    /// Pins resident experts of a request, as many at a time as it may.
    pub(super) fn pin(&mut self, id: RequestId) {
        self.requests.pin(id, &mut self.residents, self.max_pinned);
    }

    /// Removes a request. Reads that have started finish, and their experts stay in the cache.
    pub(super) fn abandon(&mut self, id: RequestId) {
        let awaiting = self.requests.take(id).map(|pending| pending.awaiting);
        for (_, target) in awaiting.into_iter().flatten() {
            self.residents.give_up(target);
        }
        let (requests, residents) = (&self.requests, &self.residents);
        let jobs =
            self.queue.cancel_demands(|target| !requests.have_any(residents.waiters(target)));
        self.take_back(jobs);
    }

    /// Takes slots back from reads that have not begun. Their requests start the reads again as soon
    /// as they find a slot.
    fn take_back(&mut self, jobs: Vec<Job>) {
        for Job { target, buf, .. } in jobs {
            let coming = self.residents.stop(target);
            self.requests.requeue(target, &coming.waiters, None);
            self.ahead.predictor.clear_prediction(target.key);
            self.residents.release(buf);
        }
    }

    /// The next read for an idle reader, if one may start.
    fn next_part(&mut self, reader: &Reader) -> Option<Part> {
        if !self.in_flight.may_start() {
            return None;
        }
        if let Some(part) = self.in_flight.next_demand() {
            return Some(part);
        }
        if !self.queue.has_demands()
            && let Some(part) = self.in_flight.next_ahead()
        {
            return Some(part);
        }
        let job = self.next_job()?;
        let (key, priority) = (job.target.key, job.priority);
        match job.buf {
            Some(_) => self.in_flight.submit(job, reader.plan.placement(key)),
            None => self.in_flight.submit_mapped(job, reader.mapped(key)),
        }
        match priority {
            Priority::Demand => self.in_flight.next_demand(),
            Priority::Prefetch | Priority::WarmUp => self.in_flight.next_ahead(),
        }
    }

    fn next_job(&mut self) -> Option<Job> {
        let ExpertDesk { residents, queue, requests, ahead, .. } = self;
        let demand = queue.start_demand();
        let job = demand.or_else(|| ahead.start(residents, queue, requests))?;
        self.journal.counts.prefetch_reads += u64::from(job.priority == Priority::Prefetch);
        self.journal.read_begins(job.target.key, job.priority != Priority::Demand);
        Some(job)
    }

    /// Whether another reader would find a read to start.
    fn has_work(&self) -> bool {
        let is_ahead = || self.in_flight.has_ahead() || self.queue.may_read_ahead();
        self.in_flight.may_start()
            && (self.in_flight.has_demands()
                || self.queue.has_waiting()
                || (!self.queue.has_demands() && is_ahead()))
    }

    /// Ends the read of a record: passes the expert, or the error, to those who wait for it.
    fn finish(&mut self, target: Target, priority: Priority, outcome: Outcome, reader: &Reader) {
        let layout = &reader.plan.layer(target.key.layer).layout;
        self.queue.finish(priority);
        if priority != Priority::Demand {
            self.ahead.end(target);
        }
        let n_bytes = if outcome.is_ok() { layout.record_bytes() as u64 } else { 0 };
        self.journal.read_ends(target.key, n_bytes);
        let coming = self.residents.stop(target);
        match outcome {
            Ok(memory) => {
                let layout = Arc::clone(layout);
                let expert = Arc::new(Expert { key: target.key, layout, memory });
                let n_awaiting = self.requests.arrived(target, &coming.waiters);
                self.residents.admit(target, expert, &coming, n_awaiting);
            }
            Err((err, buf)) => {
                self.residents.release(buf);
                self.ahead.predictor.clear_prediction(target.key);
                self.requests.requeue(target, &coming.waiters, Some((err, coming.starter)));
            }
        }
        if self.residents.has_surplus() {
            self.shrink();
        }
    }

    /// Sets the number of slots. Experts that no consumer holds are evicted at once, the others as
    /// soon as they are dropped and a read ends.
    pub(super) fn resize(&mut self, n_slots: usize) {
        if let Some(slots) = &mut self.residents.slots {
            slots.set_n_slots(n_slots);
            self.shrink();
        }
    }

    /// Brings the number of slots nearer to the budget: evicts experts and frees slabs.
    fn shrink(&mut self) {
        if self.residents.is_over() {
            self.queue.cancel_prefetches();
            self.residents.shed();
        }
        if self.residents.is_over() {
            let jobs = self.queue.cancel_demands(|_| true);
            self.take_back(jobs);
        }
        self.residents.empty_slabs();
    }

    /// Queues reads of experts that are likely to be requested, the likeliest first. Returns
    /// whether such reads may begin.
    pub(super) fn prefetch(
        &mut self,
        layer: LayerIdx,
        likely: &[Target],
        confidence: Confidence,
    ) -> bool {
        let ExpertDesk { residents, queue, ahead, .. } = self;
        ahead.prefetch(layer, likely, confidence, residents, queue);
        queue.may_read_ahead()
    }

    /// Whether predicting a layer could save a wait.
    pub(super) fn is_worthwhile(&self, layer: LayerIdx) -> bool {
        !self.residents.are_all_resident() && self.ahead.predictor.is_worthwhile(layer)
    }

    pub(super) fn forget_predictions(&mut self) {
        self.ahead.forget(&mut self.residents, &mut self.queue);
    }

    /// Records the duration of a step that evaluated one token.
    pub(super) fn end_decode_step(&mut self, time: Duration) {
        let stall = Duration::from_nanos(self.journal.counts.stall_ns);
        self.ahead.tuner.end_step(time, stall, self.queue.busy());
    }

    /// Evicts every expert that no consumer holds.
    pub(super) fn clear(&mut self) {
        self.forget_predictions();
        self.residents.clear();
    }

    pub(super) fn stats(&self) -> StoreStats {
        let slots = self.residents.slots.as_ref();
        StoreStats {
            read_ns: nanoseconds(self.queue.busy()),
            evictions: self.residents.n_evicted(),
            n_slots: slots.map_or(0, Slots::n_slots),
            cache_bytes: slots.map_or(0, Slots::made_bytes),
            resident: self.residents.n_resident(),
            ..self.journal.counts
        }
    }

    pub(super) fn reset_stats(&mut self) {
        self.queue.reset_busy();
        self.residents.reset_counts();
        self.journal.reset();
    }
}

impl Desk for ExpertDesk {
    type Reader = Reader;
    type Read = Part;
    type Memory = ();
    type Outcome = Result<(), StoreError>;

    const SURVIVES_PANICS: bool = false;

    fn begin(&mut self, reader: &Reader, reads: &mut Vec<Part>) -> Wake {
        reads.extend(self.next_part(reader));
        if self.has_work() { Wake::One } else { Wake::None }
    }

    fn run(reader: &Reader, part: &mut Part, (): &mut ()) -> Result<(), StoreError> {
        reader.bring(part)
    }

    /// Takes back a part after its read. Consumers look at the state after the last part of a record.
    fn end(
        &mut self,
        reader: &Reader,
        part: Part,
        (): &(),
        outcome: Result<(), StoreError>,
    ) -> bool {
        let target = part.target;
        let Some((priority, outcome)) = self.in_flight.complete(part, outcome) else {
            return false;
        };
        self.finish(target, priority, outcome, reader);
        true
    }
}
