//! Records that are being read. Each record has one part for each of its ranges in files, and
//! several parts are read at once.

use std::collections::{HashMap, VecDeque};

use moeflux_core::{ExpertMemory, FileIdx, HostBuf};

use super::plan::{Ordinal, Placement, Run, Target};
use super::queue::{Job, Priority};
use crate::StoreError;

/// Another read starts only while those in progress bring fewer bytes than this. So a few large
/// reads are in progress at once, or many small ones.
const ENOUGH_BYTES: usize = 8 << 20;

/// One read: a part of a record.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) target: Target,
    pub(super) priority: Priority,
    /// Index of the part in its record.
    index: usize,
    /// The range in the file, and the memory for it; `None` for a mapped record, which has only one
    /// part.
    pub(super) piece: Option<(Run, HostBuf)>,
}

/// A record that has parts which are not read yet.
#[derive(Debug)]
struct Record {
    priority: Priority,
    buffers: Buffers,
    n_left: usize,
    failed: Option<StoreError>,
}

#[derive(Debug)]
enum Buffers {
    /// The pieces of the slot, in order; each is `Some` when its part has been read.
    Slot {
        pieces: Vec<Option<HostBuf>>,
        starts: Vec<usize>,
    },
    Mapped(ExpertMemory),
}

/// All records that are being read.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    records: HashMap<Ordinal, Record>,
    /// Parts that requests wait for and that no reader has taken.
    demands: VecDeque<Part>,
    /// Parts that no request waits for and that no reader has taken.
    ahead: VecDeque<Part>,
    n_reading: usize,
    n_bytes: usize,
}

impl InFlight {
    /// Adds a record that is to be read into its slot.
    pub(super) fn submit(&mut self, job: Job, placement: Placement) {
        let Job { target, buf, priority } = job;
        let mut rest = buf.expect("a record that is read has a slot");
        let runs: Vec<Run> = placement.runs.into_iter().filter(|run| run.len > 0).collect();
        let mut bufs = Vec::with_capacity(runs.len().max(1));
        for run in runs.iter().skip(1).rev() {
            bufs.push(rest.split_off(run.page()));
        }
        bufs.push(rest);
        let pieces = bufs.iter().map(|_| None).collect();
        let buffers = Buffers::Slot { pieces, starts: placement.starts };
        let n_left = bufs.len();
        self.records.insert(target.ordinal, Record { priority, buffers, n_left, failed: None });
        for (index, buf) in bufs.into_iter().rev().enumerate() {
            // A record without bytes has one part that reads nothing.
            let nothing = Run { file: FileIdx(0), offset: 0, len: 0, at: 0 };
            let run = runs.get(index).copied().unwrap_or(nothing);
            self.push(Part { target, priority, index, piece: Some((run, buf)) });
        }
    }

    /// Adds a mapped record whose pages are to be populated.
    pub(super) fn submit_mapped(&mut self, job: Job, memory: ExpertMemory) {
        let Job { target, priority, .. } = job;
        let buffers = Buffers::Mapped(memory);
        self.records.insert(target.ordinal, Record { priority, buffers, n_left: 1, failed: None });
        self.push(Part { target, priority, index: 0, piece: None });
    }

    fn push(&mut self, part: Part) {
        match part.priority {
            Priority::Demand => self.demands.push_back(part),
            Priority::Prefetch | Priority::WarmUp => self.ahead.push_back(part),
        }
    }

    /// Whether another read may start.
    pub(super) fn may_start(&self) -> bool {
        self.n_reading == 0 || self.n_bytes < ENOUGH_BYTES
    }

    pub(super) fn has_demands(&self) -> bool {
        !self.demands.is_empty()
    }

    pub(super) fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Starts the next part that a request waits for.
    pub(super) fn next_demand(&mut self) -> Option<Part> {
        let part = self.demands.pop_front()?;
        Some(self.start(part))
    }

    /// Starts the next part that no request waits for.
    pub(super) fn next_ahead(&mut self) -> Option<Part> {
        let part = self.ahead.pop_front()?;
        Some(self.start(part))
    }

    fn start(&mut self, part: Part) -> Part {
        self.n_reading += 1;
        self.n_bytes += part.n_bytes();
        part
    }

    /// Moves the parts of a record that no reader has taken to those that requests wait for.
    pub(super) fn promote(&mut self, target: Target) {
        let parts = std::mem::take(&mut self.ahead);
        let (urgent, others) = parts.into_iter().partition(|part| part.target == target);
        self.ahead = others;
        self.demands.extend::<VecDeque<Part>>(urgent);
    }

    /// Takes back a part after its read, successful or not. Returns the outcome of the record if it
    /// was the last part.
    pub(super) fn complete(
        &mut self,
        part: Part,
        outcome: Result<(), StoreError>,
    ) -> Option<(Priority, Outcome)> {
        self.n_reading -= 1;
        self.n_bytes -= part.n_bytes();
        let target = part.target;
        let record = self.records.get_mut(&target.ordinal).expect("a part has its record");
        record.take_back(part);
        if let Err(err) = outcome {
            record.failed.get_or_insert(err);
            for queue in [&mut self.demands, &mut self.ahead] {
                let parts = std::mem::take(queue);
                let (own, others): (VecDeque<Part>, VecDeque<Part>) =
                    parts.into_iter().partition(|part| part.target == target);
                *queue = others;
                own.into_iter().for_each(|part| record.take_back(part));
            }
        }
        if record.n_left > 0 {
            return None;
        }
        let record = self.records.remove(&target.ordinal)?;
        Some((record.priority, record.outcome()))
    }
}

impl Part {
    fn n_bytes(&self) -> usize {
        self.piece.as_ref().map_or(0, |piece| piece.0.len)
    }
}

impl Record {
    fn take_back(&mut self, part: Part) {
        self.n_left -= 1;
        if let (Buffers::Slot { pieces, .. }, Some((_, buf))) = (&mut self.buffers, part.piece) {
            pieces[part.index] = Some(buf);
        }
    }

    fn outcome(self) -> Outcome {
        match (self.buffers, self.failed) {
            (Buffers::Slot { pieces, starts }, failed) => {
                let buf = pieces.into_iter().flatten().reduce(|mut whole, next| {
                    whole.join(next);
                    whole
                });
                match (failed, buf) {
                    (None, Some(buf)) => Ok(ExpertMemory::Owned { buf, starts }),
                    (Some(err), buf) => Err((err, buf)),
                    (None, None) => unreachable!("a slot has at least one piece"),
                }
            }
            (Buffers::Mapped(memory), None) => Ok(memory),
            (Buffers::Mapped(_), Some(err)) => Err((err, None)),
        }
    }
}

/// A record in memory, or the error and the slot that was to hold the record.
pub(super) type Outcome = Result<ExpertMemory, (StoreError, Option<HostBuf>)>;
