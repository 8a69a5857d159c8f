//! The state of the row store: which rows are there, which are read and for whom, and which are
//! requested.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use moeflux_core::nanoseconds;

use super::hash::BuildNumberHasher;
use super::layout::{Layout, RowKey};
use super::mailbox::{ArrivedRows, Mailbox};
use super::reader::{ReadBuf, Refusal, RowReader};
use super::reads::{ReadId, Reads, Started};
use super::requests::Requests;
use super::slots::RowSlots;
use super::stats::RowStats;
use crate::drive::{BusyTime, Desk, Wake};

/// Requests of at most this many rows are those of decoded tokens and drafts, whose step is about to
/// begin: they are read at once. Longer ones are prompts, read part by part as the cache has room.
const IMMEDIATE_ROWS: usize = 1024;

/// Quarters of the cache that rows of prompts may take which were requested and not gathered; the rest
/// has rows that come again, and those of the next step.
const EXPECTED_QUARTERS: usize = 3;

/// Reads that a reader begins at once and runs one after the other, at most.
const MOST_BEGUN: usize = 16;

/// Reads that a gather waits for.
pub(super) type Awaited = HashSet<ReadId, BuildNumberHasher>;

/// The state of a row store.
#[derive(Debug)]
pub(super) struct RowDesk {
    pub(super) slots: RowSlots,
    reads: Reads,
    pub(super) requests: Requests,
    n_readers: usize,
    busy: BusyTime,
    stats: RowStats,
}

impl RowDesk {
    pub(super) fn new(slots: RowSlots, n_readers: usize) -> RowDesk {
        RowDesk {
            slots,
            reads: Reads::default(),
            requests: Requests::default(),
            n_readers,
            busy: BusyTime::default(),
            stats: RowStats::default(),
        }
    }

    pub(super) fn stats(&self) -> RowStats {
        RowStats {
            read_ns: nanoseconds(self.busy.total()),
            n_slots: self.slots.n_slots(),
            resident: self.slots.n_resident(),
            ..self.stats
        }
    }

    pub(super) fn reset_stats(&mut self) {
        self.stats = RowStats::default();
        self.busy.reset();
    }

    /// Counts the rows of a gather: all, and those that were in the cache.
    pub(super) fn count_gathered(&mut self, n_rows: usize, n_ready: usize) {
        self.stats.rows += n_rows as u64;
        self.stats.ready += n_ready as u64;
    }

    pub(super) fn count_stall(&mut self, stall: Duration) {
        self.stats.stall_ns += nanoseconds(stall);
    }

    /// Reads that have not begun; some may be counted twice.
    pub(super) fn n_queued(&self) -> usize {
        self.reads.n_queued()
    }

    /// Takes up a request and returns its number.
    pub(super) fn request(&mut self, layout: &Layout, table: usize, rows: Arc<[u64]>) -> u64 {
        let id = self.requests.new_id();
        if rows.len() <= IMMEDIATE_ROWS {
            let n = rows.len().min(self.room_below(self.slots.n_slots()));
            self.expect_rows(layout, table, &rows[..n], true);
        } else {
            self.requests.add(id, table, rows);
            self.take_parts(layout);
        }
        id
    }

    /// Rows of a request that was withdrawn need not stay until they are gathered, and are not read
    /// for its sake.
    pub(super) fn give_up(&mut self, table: usize, rows: &[u64]) {
        for row in rows {
            let key = RowKey { table, row: *row };
            self.slots.give_up(key);
            self.reads.give_up(key);
        }
    }

    /// Rows that were requested and are in the cache or on their way.
    pub(super) fn n_expected(&self) -> usize {
        self.slots.n_expected() + self.reads.n_expected()
    }

    /// Looks for rows, each once, that a gather did not find in the cache. `found` is called with
    /// those that are there now; the others are read, and `mailbox` gets them.
    pub(super) fn await_rows(
        &mut self,
        layout: &Layout,
        table: usize,
        rows: &[u64],
        awaited: &mut Awaited,
        mailbox: &Arc<Mailbox>,
        found: &mut dyn FnMut(u64, &[u8]),
    ) {
        let mut unread = Vec::new();
        for row in rows {
            let key = RowKey { table, row: *row };
            if let Some(bytes) = self.slots.take(key) {
                found(*row, bytes);
            } else if let Some(id) = self.reads.of(key) {
                self.stats.awaited += 1;
                if awaited.insert(id) {
                    self.reads.wait_for(id, mailbox);
                }
            } else {
                unread.push(*row);
            }
        }
        for extent in layout.extents(table, unread.into_iter()) {
            awaited.insert(self.reads.demand(extent, mailbox));
        }
    }

    /// Takes up parts of the waiting requests in turn, as long as the cache has room for their rows.
    pub(super) fn take_parts(&mut self, layout: &Layout) {
        let most = self.slots.n_slots() / 4 * EXPECTED_QUARTERS;
        while let Some(part) = self.requests.next_part(most, self.room_below(most)) {
            self.expect_rows(layout, part.table, part.rows(), false);
        }
    }

    /// How many more rows are kept until they are gathered, if all are at most `most`.
    fn room_below(&self, most: usize) -> usize {
        most.saturating_sub(self.n_expected())
    }

    /// Expects rows in the cache, and reads those that neither are there nor being read.
    fn expect_rows(&mut self, layout: &Layout, table: usize, rows: &[u64], is_urgent: bool) {
        let mut unread: Vec<u64> = Vec::new();
        for row in rows {
            let key = RowKey { table, row: *row };
            if !self.slots.expect(key) && self.reads.of(key).is_none() {
                unread.push(*row);
            }
        }
        unread.sort_unstable();
        unread.dedup();
        self.reads.expect(layout.extents(table, unread.into_iter()), is_urgent);
    }
}

impl Desk for RowDesk {
    type Reader = RowReader;
    type Read = Started;
    type Memory = ReadBuf;
    type Outcome = Result<(), Refusal>;

    const SURVIVES_PANICS: bool = true;

    /// Begins several reads where many are queued, so that the lock is taken seldom.
    fn begin(&mut self, reader: &RowReader, started: &mut Vec<Started>) -> Wake {
        let n_queued = self.n_queued();
        let n = (n_queued / (2 * self.n_readers)).clamp(1, MOST_BEGUN);
        for _ in 0..n {
            if self.n_queued() == 0 {
                self.take_parts(&reader.layout);
            }
            let Some(read) = self.reads.begin() else { break };
            self.busy.begin();
            started.push(read);
        }
        // A part of a long request was taken up.
        if self.n_queued() > n_queued { Wake::All } else { Wake::None }
    }

    fn run(reader: &RowReader, read: &mut Started, buf: &mut ReadBuf) -> Result<(), Refusal> {
        reader.read(&read.extent, buf)
    }

    /// Ends a read: its rows enter the cache, and those who wait for it get them, or the reason why
    /// they are not there.
    fn end(
        &mut self,
        reader: &RowReader,
        read: Started,
        buf: &ReadBuf,
        outcome: Result<(), Refusal>,
    ) -> bool {
        self.busy.end();
        let extent = &*read.extent;
        let read = self.reads.end(read.id);
        if let Err(refusal) = outcome {
            for waiter in read.waiters {
                waiter.deliver(Err(reader.error(extent, &refusal)));
            }
            return false;
        }
        self.stats.reads += 1;
        self.stats.bytes_read += extent.blocks.len as u64;
        self.stats.rows_read += extent.rows.len() as u64;
        let bytes = buf.bytes(extent.blocks.len);
        let row_bytes = reader.layout.table(extent.table).row_bytes();
        let rows = extent.rows.iter().map(|row| &bytes[row.start..row.start + row_bytes]);
        for (key, row) in extent.keys().zip(rows.clone()) {
            self.slots.insert(key, row, read.is_expected);
        }
        if !read.waiters.is_empty() {
            let mut bytes = Vec::with_capacity(rows.len() * row_bytes);
            rows.for_each(|row| bytes.extend_from_slice(row));
            let rows = extent.rows.iter().map(|placed| placed.row).collect();
            let arrived = Arc::new(ArrivedRows { rows, bytes });
            for waiter in read.waiters {
                waiter.deliver(Ok(Arc::clone(&arrived)));
            }
        }
        false
    }
}
