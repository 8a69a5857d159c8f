//! The state of the cache: which experts each request waits for, where each expert is, and which
//! read starts next. Consumers and readers share all of it under one lock.

mod ahead;
mod device_copies;
pub(crate) mod entry;
mod evict;
mod resize;
mod state;

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use moeflux_core::{Expert, ExpertLayout, HostBuf, LayerIdx, nanoseconds};

use self::device_copies::DeviceCopies;
pub use self::entry::Batch;
use self::entry::{Awaited, Entry, Pending, Waiter};
pub(crate) use self::state::CacheState;
pub(crate) use crate::cache::entry::Progress;
pub(crate) use crate::cache::entry::RequestId;
use crate::in_flight::Outcome;
use crate::in_flight::{InFlight, Part};
use crate::plan::Target;
use crate::policy::Policy;
use crate::predict::LastToken;
use crate::queue::{Job, Priority, Queue};
use crate::reader::Reader;
use crate::slots::Slots;
use crate::timeline::{EventKind, LayerCounts, Timeline};
use crate::tuner::{StepCost, Tuner};
use crate::{StoreError, StoreStats};

impl CacheState {
    pub(crate) fn new(
        n_experts: usize,
        n_layers: usize,
        slots: Option<Slots>,
        n_reserved: usize,
        max_pinned: usize,
    ) -> CacheState {
        CacheState {
            entries: (0..n_experts).map(|_| Entry::Absent).collect(),
            slots,
            queue: Queue::default(),
            in_flight: InFlight::default(),
            requests: HashMap::new(),
            n_tickets: 0,
            expected: Vec::new(),
            reading_ahead: Vec::new(),
            device_copies: DeviceCopies::default(),
            predictor: LastToken::new(n_layers),
            tuner: Tuner::new(),
            last_step: Default::default(),
            counts: StoreStats::default(),
            layer_counts: vec![LayerCounts::default(); n_layers],
            timeline: None,
            n_reserved,
            max_pinned: max_pinned.max(1),
            is_closed: false,
        }
    }

    /// Registers a request. If all experts are resident and can be pinned at once, returns them in
    /// `batch`; else returns an empty batch and a ticket to collect the experts with. Each target
    /// comes with its number of uses.
    pub(crate) fn request(
        &mut self,
        layer: LayerIdx,
        wanted: impl ExactSizeIterator<Item = (Target, f32)>,
        mut batch: Batch,
    ) -> (Batch, Option<RequestId>) {
        batch.clear();
        let ticket = RequestId(self.n_tickets);
        let n_wanted = wanted.len();
        let mut pending = Pending {
            owner: thread::current().id(),
            unissued: VecDeque::new(),
            n_coming: 0,
            pinned: batch,
            awaiting: VecDeque::new(),
            failed: VecDeque::new(),
        };
        let n_used_before = self.counts.prefetch_used;
        for (index, (target, n_uses)) in wanted.enumerate() {
            if let Some(slots) = &mut self.slots {
                slots.policy.touched(target.ordinal, n_uses);
            }
            if !self.join(&mut pending, Waiter { ticket, index }, target) {
                pending.unissued.push_back((index, target));
            }
        }
        if let Some(slots) = &mut self.slots {
            slots.policy.asked();
        }
        let n_hits = pending.pinned.len() + pending.awaiting.len();
        self.counts.requests += 1;
        self.counts.hits += n_hits as u64;
        let n_misses = n_wanted - n_hits;
        self.counts.misses += n_misses as u64;
        self.layer_counts[layer.idx()].hits += n_hits as u64;
        self.layer_counts[layer.idx()].misses += n_misses as u64;
        self.note(|| EventKind::Request { layer, n_hits, n_misses });
        self.settle(layer);
        self.queue.cancel_layer(layer);
        let was_predicted = self.counts.prefetch_used > n_used_before;
        self.predictor.served(layer, n_hits == n_wanted && !was_predicted);
        if pending.pinned.len() == n_wanted {
            return (pending.pinned, None);
        }
        if n_misses > 0 {
            self.queue.cancel_prefetches();
        }
        self.n_tickets += 1;
        self.requests.insert(ticket, pending);
        self.issue(ticket);
        (Vec::new(), Some(ticket))
    }

    /// Starts reads of a request as long as there are slots. Returns whether any was started.
    pub(crate) fn issue(&mut self, ticket: RequestId) -> bool {
        let Some(mut pending) = self.requests.remove(&ticket) else { return false };
        let mut is_any = false;
        while let Some(&(index, target)) = pending.unissued.front() {
            let waiter = Waiter { ticket, index };
            if !self.join(&mut pending, waiter, target) {
                let Some(buf) = self.acquire_slot(Priority::Demand) else { break };
                self.start(target, buf, waiter);
                pending.n_coming += 1;
                is_any = true;
            }
            pending.unissued.pop_front();
        }
        self.requests.insert(ticket, pending);
        is_any
    }

    /// Adds an expert that is resident, queued or being read to a request. Returns false if it is
    /// none of these.
    fn join(&mut self, pending: &mut Pending, waiter: Waiter, target: Target) -> bool {
        let is_predicted = match &mut self.entries[target.ordinal.idx()] {
            Entry::Absent => return false,
            Entry::Coming { waiters, is_predicted, is_expected, .. } => {
                if waiters.is_empty() {
                    self.in_flight.promote(target);
                }
                *is_expected = false;
                waiters.push(waiter);
                pending.n_coming += 1;
                is_predicted
            }
            Entry::Resident { expert, holder, is_predicted, is_expected, n_awaiting } => {
                if mem::take(is_expected)
                    && let Some(slots) = &mut self.slots
                {
                    slots.policy.inserted(target.ordinal);
                }
                if pending.pinned.len() < self.max_pinned {
                    let is_held = Arc::strong_count(expert) > 1;
                    *holder = sole_holder(*holder, is_held, pending.owner);
                    pending.pinned.push((waiter.index, Arc::clone(expert)));
                } else {
                    *n_awaiting += 1;
                    pending.awaiting.push_back((waiter.index, target));
                }
                is_predicted
            }
        };
        self.counts.prefetch_used += u64::from(mem::take(is_predicted));
        true
    }

    /// Returns what has happened to a request since the last call.
    pub(crate) fn collect(&mut self, ticket: RequestId) -> Progress {
        let Some(pending) = self.requests.get_mut(&ticket) else { return Progress::Finished };
        if let Some(err) = pending.failed.pop_front() {
            Progress::Failed(err)
        } else if !pending.pinned.is_empty() {
            Progress::Arrived(mem::take(&mut pending.pinned))
        } else if pending.n_coming > 0 {
            Progress::Coming
        } else if !pending.unissued.is_empty() {
            Progress::NoFreeSlot(pending.unissued.len())
        } else {
            self.requests.remove(&ticket);
            Progress::Finished
        }
    }

    /// Pins resident experts of a request, as many at a time as `max_pinned` allows. Those that
    /// were evicted while the budget shrank wait for a slot again.
    pub(crate) fn pin(&mut self, ticket: RequestId) {
        let Some(pending) = self.requests.get_mut(&ticket) else { return };
        while pending.pinned.len() < self.max_pinned
            && let Some((index, target)) = pending.awaiting.pop_front()
        {
            match &mut self.entries[target.ordinal.idx()] {
                Entry::Resident { expert, holder, n_awaiting, .. } => {
                    *n_awaiting = n_awaiting.saturating_sub(1);
                    let is_held = Arc::strong_count(expert) > 1;
                    *holder = sole_holder(*holder, is_held, pending.owner);
                    pending.pinned.push((index, Arc::clone(expert)));
                }
                Entry::Absent | Entry::Coming { .. } => pending.unissued.push_back((index, target)),
            }
        }
    }

    /// Removes a request. Reads that have started finish, and their experts stay in the cache.
    pub(crate) fn abandon(&mut self, ticket: RequestId) {
        let pending = self.requests.remove(&ticket);
        for (_, target) in pending.iter().flat_map(|pending| &pending.awaiting) {
            if let Entry::Resident { n_awaiting, .. } = &mut self.entries[target.ordinal.idx()] {
                *n_awaiting = n_awaiting.saturating_sub(1);
            }
        }
        let is_unwanted = |target: Target| match &self.entries[target.ordinal.idx()] {
            Entry::Coming { waiters, .. } => {
                !waiters.iter().any(|waiter| self.requests.contains_key(&waiter.ticket))
            }
            _ => false,
        };
        for job in self.queue.cancel_demands(is_unwanted) {
            self.cancel(job);
        }
    }

    /// The next read for an idle reader, if one may start.
    pub(crate) fn next_part(&mut self, reader: &Reader) -> Option<Part> {
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
        let job = self.queue.start_demand().or_else(|| self.start_ahead())?;
        let (key, is_predicted) = (job.target.key, job.priority != Priority::Demand);
        self.note(|| EventKind::ReadStart { key, is_predicted });
        Some(job)
    }

    /// Whether another reader would find a read to start.
    pub(crate) fn has_work(&self) -> bool {
        let is_ahead = || self.in_flight.has_ahead() || self.queue.may_read_ahead();
        self.in_flight.may_start()
            && (self.in_flight.has_demands()
                || self.queue.has_waiting()
                || (!self.queue.has_demands() && is_ahead()))
    }

    /// Takes back a part after its read, successful or not. Returns whether it was the last part of
    /// its record.
    pub(crate) fn complete(
        &mut self,
        part: Part,
        outcome: Result<(), StoreError>,
        layout: &Arc<ExpertLayout>,
    ) -> bool {
        let target = part.target;
        let Some((priority, outcome)) = self.in_flight.complete(part, outcome) else {
            return false;
        };
        self.finish(target, priority, layout, outcome);
        true
    }

    fn finish(
        &mut self,
        target: Target,
        priority: Priority,
        layout: &Arc<ExpertLayout>,
        outcome: Outcome,
    ) {
        self.queue.finish(priority);
        let n_bytes = if outcome.is_ok() { layout.record_bytes() as u64 } else { 0 };
        self.note(|| EventKind::ReadEnd { key: target.key, n_bytes });
        if priority != Priority::Demand {
            self.reading_ahead.retain(|other| *other != target);
        }
        let entry = &mut self.entries[target.ordinal.idx()];
        let Entry::Coming { waiters, starter, is_predicted, is_expected } =
            mem::replace(entry, Entry::Absent)
        else {
            unreachable!("{} was read without being on its way", target.key);
        };
        match outcome {
            Ok(memory) => {
                self.counts.bytes_read += layout.record_bytes() as u64;
                let layout = Arc::clone(layout);
                let expert = Arc::new(Expert { key: target.key, layout, memory });
                let is_expected = is_expected && self.slots.is_some();
                self.admit(target, expert, &waiters, is_predicted, is_expected);
            }
            Err((err, buf)) => {
                self.release(buf);
                self.predictor.clear_prediction(target.key);
                self.report(target, err, &waiters, starter);
            }
        }
        if self.has_surplus() {
            self.shrink();
        }
    }

    fn admit(
        &mut self,
        target: Target,
        expert: Arc<Expert>,
        waiters: &[Waiter],
        is_predicted: bool,
        is_expected: bool,
    ) {
        let mut n_awaiting = 0;
        for waiter in waiters {
            let Some(pending) = self.requests.get_mut(&waiter.ticket) else { continue };
            pending.n_coming -= 1;
            pending.awaiting.push_back((waiter.index, target));
            n_awaiting += 1;
        }
        match &mut self.slots {
            Some(_) if is_expected => self.expected.push(target),
            Some(slots) => slots.policy.inserted(target.ordinal),
            None => {}
        }
        self.counts.resident += 1;
        self.device_copies.admit(target.ordinal);
        self.entries[target.ordinal.idx()] =
            Entry::Resident { expert, holder: None, is_predicted, is_expected, n_awaiting };
    }

    /// Passes a read error to the request that started the read. Requests that joined the read
    /// later queue the expert again, because the cause may be gone by now. They get an error only
    /// if the second read fails too.
    fn report(
        &mut self,
        target: Target,
        err: StoreError,
        waiters: &[Waiter],
        starter: Option<RequestId>,
    ) {
        let mut err = Some(err);
        for waiter in waiters {
            let Some(pending) = self.requests.get_mut(&waiter.ticket) else { continue };
            pending.n_coming -= 1;
            match err.take_if(|_| starter == Some(waiter.ticket)) {
                Some(err) => pending.failed.push_back(err),
                None => pending.unissued.push_back((waiter.index, target)),
            }
        }
    }

    fn start(&mut self, target: Target, buf: Option<HostBuf>, waiter: Waiter) {
        let (waiters, starter) = (vec![waiter], Some(waiter.ticket));
        let coming = Entry::Coming { waiters, starter, is_predicted: false, is_expected: false };
        self.entries[target.ordinal.idx()] = coming;
        self.queue.push(Job { target, buf, priority: Priority::Demand });
    }

    /// Whether no read that could free a slot is queued or in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    /// Whether no other thread holds an expert, as far as the recorded holders show.
    pub(crate) fn holds_all(&self, thread: ThreadId) -> bool {
        self.entries.iter().all(|entry| match entry {
            Entry::Resident { expert, holder, n_awaiting, .. } => {
                *holder == Some(thread) || (Arc::strong_count(expert) == 1 && *n_awaiting == 0)
            }
            _ => true,
        })
    }

    /// Counts a wait that began at `since` and ends now.
    pub(crate) fn add_stall(&mut self, layer: LayerIdx, since: Instant) {
        self.counts.stall_ns += nanoseconds(since.elapsed());
        if let Some(timeline) = &mut self.timeline {
            timeline.push_at(since, EventKind::StallStart { layer });
            timeline.push(EventKind::StallEnd { layer });
        }
    }

    /// Records events from now on, at most `capacity` of them.
    pub(crate) fn record_timeline(&mut self, capacity: usize) {
        self.timeline = Some(Timeline::new(capacity));
    }

    /// Stops recording and returns the events.
    pub(crate) fn take_timeline(&mut self) -> Timeline {
        let mut timeline = self.timeline.take().unwrap_or_default();
        // A wait is recorded when it ends, after the reads that ended during it.
        timeline.events.sort_by_key(|event| event.at);
        timeline
    }

    fn note(&mut self, what: impl FnOnce() -> EventKind) {
        if let Some(timeline) = &mut self.timeline {
            timeline.push(what());
        }
    }

    pub(crate) fn layer_counts(&self) -> &[LayerCounts] {
        &self.layer_counts
    }

    /// Evicts every expert that no consumer holds.
    pub(crate) fn clear(&mut self) {
        self.forget_predictions();
        while let Some(buf) = self.evict(Priority::Demand, Awaited::Stay) {
            self.release(Some(buf));
        }
        if self.slots.is_none() {
            for entry in &mut self.entries {
                if matches!(entry, Entry::Resident { .. }) {
                    *entry = Entry::Absent;
                    self.counts.resident -= 1;
                }
            }
        }
    }

    /// Whether a read that no request waits for could begin.
    pub(crate) fn may_read_ahead(&self) -> bool {
        self.queue.may_read_ahead()
    }

    pub(crate) fn is_worthwhile(&self, layer: LayerIdx) -> bool {
        self.counts.resident < self.entries.len() && self.predictor.is_worthwhile(layer)
    }

    pub(crate) fn policy(&mut self) -> Option<&mut dyn Policy> {
        Some(&mut *self.slots.as_mut()?.policy)
    }

    pub(crate) fn tuner(&self) -> &Tuner {
        &self.tuner
    }

    /// Passes the cost of a decode step to the tuner.
    pub(crate) fn end_decode_step(&mut self, time: Duration) {
        let now = (Duration::from_nanos(self.counts.stall_ns), self.queue.busy());
        let (stall, busy) = std::mem::replace(&mut self.last_step, now);
        let (stall, busy) = (now.0.saturating_sub(stall), now.1.saturating_sub(busy));
        self.tuner.step(StepCost { time, stall: stall.min(time), busy: busy.min(time) });
    }

    pub(crate) fn stats(&self) -> StoreStats {
        let n_slots = self.slots.as_ref().map_or(0, Slots::n_slots);
        let (read_ns, cache_bytes) = (nanoseconds(self.queue.busy()), self.made_bytes());
        StoreStats { read_ns, n_slots, cache_bytes, ..self.counts }
    }

    pub(crate) fn reset_stats(&mut self) {
        self.queue.reset_busy();
        self.layer_counts.fill(LayerCounts::default());
        // Prefetch uses are counted only of reads since the reset, so that they never exceed these.
        for entry in &mut self.entries {
            if let Entry::Coming { is_predicted, .. } | Entry::Resident { is_predicted, .. } = entry
            {
                *is_predicted = false;
            }
        }
        self.counts = StoreStats { resident: self.counts.resident, ..StoreStats::default() };
    }

    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }
}

impl CacheState {
    /// Records that a device got a copy of an expert, or dropped it.
    pub(crate) fn set_on_device(&mut self, target: Target, is_there: bool) {
        let DeviceCopies { experts, spare } = &mut self.device_copies;
        if is_there {
            experts.insert(target.ordinal);
            if matches!(self.entries[target.ordinal.idx()], Entry::Resident { .. }) {
                spare.insert(target.ordinal);
            }
        } else {
            experts.remove(&target.ordinal);
            spare.remove(&target.ordinal);
        }
    }

    /// Whether a device has a copy of the expert.
    pub(super) fn is_on_device(&self, target: Target) -> bool {
        self.device_copies.experts.contains(&target.ordinal)
    }
}

/// The only thread that may hold an expert after `taker` got it; `None` if others may hold it too.
fn sole_holder(before: Option<ThreadId>, is_held: bool, taker: ThreadId) -> Option<ThreadId> {
    if is_held && before != Some(taker) { None } else { Some(taker) }
}
