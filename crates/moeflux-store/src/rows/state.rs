//! What is being read, what is read next, and who waits for it. No thread waits here.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cache::RowCache;
use super::hash::BuildNumberHasher;
use super::layout::{Extent, Layout, RowKey};
use super::mailbox::{ArrivedRows, Mailbox};
use super::stats::RowStats;
use crate::StoreError;

/// Requests of at most this many rows are those of decoded tokens and drafts, whose step is about to
/// begin: they are read at once. Longer ones are prompts, read part by part as the cache has room.
const IMMEDIATE_ROWS: usize = 1024;

/// Rows of a part: sorted by their place on the drive, and about as many as a chunk of a prompt needs.
const PART_ROWS: usize = 16 << 10;

/// Quarters of the cache that rows of prompts may take which were requested and not gathered; the rest
/// has rows that come again, and those of the next step.
const EXPECTED_QUARTERS: usize = 3;

/// Reads that a reader begins at once and runs one after the other, at most.
pub(super) const MOST_BEGUN: usize = 16;

/// A read and its number.
#[derive(Clone, Debug)]
pub(super) struct Started {
    pub(super) id: u64,
    pub(super) extent: Arc<Extent>,
}

/// A request whose rows have not all been taken up.
#[derive(Debug)]
struct Waiting {
    id: u64,
    table: usize,
    rows: Arc<[u64]>,
    /// How many of its first rows were taken up, and how many were gathered, as far as gathers
    /// follow its order.
    n_taken: usize,
    n_gathered: usize,
}

#[derive(Debug)]
struct Read {
    extent: Arc<Extent>,
    waiters: Vec<Arc<Mailbox>>,
    /// Whether its rows stay in the cache until they are gathered.
    is_expected: bool,
    has_begun: bool,
}

/// The rows of a gather that are not in the cache.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// Reads that the gather waits for.
    reads: HashSet<u64, BuildNumberHasher>,
}

impl Awaited {
    pub(super) fn n_reads(&self) -> usize {
        self.reads.len()
    }
}

/// The state of a store, behind its lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) cache: RowCache,
    /// The read that brings each row which is not in the cache and whose read has not ended.
    reading: HashMap<RowKey, u64, BuildNumberHasher>,
    reads: HashMap<u64, Read, BuildNumberHasher>,
    /// Reads that a gather waits for, and those of the next step.
    demands: VecDeque<u64>,
    /// Other reads; entries that are also in `demands`, or have ended, are passed over.
    ahead: VecDeque<u64>,
    waiting: VecDeque<Waiting>,
    /// Rows of expected reads that have not ended.
    n_expected_reading: usize,
    next_id: u64,
    pub(super) is_closed: bool,
    n_reading: usize,
    /// When the drive last became busy; `None` while it is idle.
    busy_since: Option<Instant>,
    busy: Duration,
    stats: RowStats,
}

impl State {
    pub(super) fn new(cache: RowCache) -> State {
        State {
            cache,
            reading: HashMap::default(),
            reads: HashMap::default(),
            demands: VecDeque::new(),
            ahead: VecDeque::new(),
            waiting: VecDeque::new(),
            n_expected_reading: 0,
            next_id: 0,
            is_closed: false,
            n_reading: 0,
            busy_since: None,
            busy: Duration::ZERO,
            stats: RowStats::default(),
        }
    }

    pub(super) fn stats(&self) -> RowStats {
        let busy = self.busy + self.busy_since.map_or(Duration::ZERO, |since| since.elapsed());
        RowStats {
            read_ns: moeflux_core::nanoseconds(busy),
            n_slots: self.cache.n_slots(),
            resident: self.cache.n_resident(),
            ..self.stats
        }
    }

    pub(super) fn reset_stats(&mut self) {
        self.stats = RowStats::default();
        self.busy = Duration::ZERO;
        self.busy_since = self.busy_since.map(|_| Instant::now());
    }

    /// Takes note of a gather, whose rows need not be read ahead any more.
    pub(super) fn pass(&mut self, table: usize, rows: &[u64]) {
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.table == table) {
            let done = waiting.n_gathered;
            if waiting.rows[done..].starts_with(rows) {
                waiting.n_gathered = done + rows.len();
                waiting.n_taken = waiting.n_taken.max(waiting.n_gathered);
            }
        }
    }

    /// Counts the rows of a gather: all, and those that were in the cache.
    pub(super) fn count_gathered(&mut self, n_rows: usize, n_ready: usize) {
        self.stats.rows += n_rows as u64;
        self.stats.ready += n_ready as u64;
    }

    pub(super) fn count_stall(&mut self, stall: Duration) {
        self.stats.stall_ns += moeflux_core::nanoseconds(stall);
    }

    /// Reads that have not begun; some may be counted twice.
    pub(super) fn n_queued(&self) -> usize {
        self.demands.len() + self.ahead.len()
    }

    /// Takes up a request and returns its number.
    pub(super) fn request(&mut self, layout: &Layout, table: usize, rows: Arc<[u64]>) -> u64 {
        let id = self.new_id();
        if rows.len() <= IMMEDIATE_ROWS {
            let n = rows.len().min(self.room_below(self.cache.n_slots()));
            for read in self.expect_rows(layout, table, &rows[..n]) {
                self.demands.push_back(read);
            }
        } else {
            self.waiting.push_back(Waiting { id, table, rows, n_taken: 0, n_gathered: 0 });
            self.take_parts(layout);
        }
        id
    }

    /// Takes up no more rows of a request.
    pub(super) fn withdraw(&mut self, id: u64) {
        self.waiting.retain(|waiting| waiting.id != id);
    }

    /// Rows of a request that was withdrawn need not stay until they are gathered, and are not read
    /// for its sake.
    pub(super) fn give_up(&mut self, table: usize, rows: &[u64]) {
        for row in rows {
            let key = RowKey { table, row: *row };
            self.cache.give_up(key);
            let Some(id) = self.reading.get(&key).copied() else { continue };
            self.not_expected(id);
            let read = &self.reads[&id];
            if !read.has_begun && read.waiters.is_empty() {
                let extent = Arc::clone(&read.extent);
                self.reads.remove(&id);
                self.forget_reading(&extent);
            }
        }
    }

    /// Whether rows that were requested are in the cache or on their way.
    pub(super) fn has_expected(&self) -> bool {
        self.cache.n_expected() + self.n_expected_reading > 0
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
            if let Some(bytes) = self.cache.take(key) {
                found(*row, bytes);
                continue;
            }
            let Some(id) = self.reading.get(&key).copied() else {
                unread.push(*row);
                continue;
            };
            self.stats.awaited += 1;
            if awaited.reads.insert(id) {
                let read = self.reads.get_mut(&id).expect("its rows are being read");
                read.waiters.push(Arc::clone(mailbox));
                if !read.has_begun {
                    self.demands.push_back(id);
                }
            }
        }
        for extent in layout.extents(table, unread.into_iter()) {
            let waiters = vec![Arc::clone(mailbox)];
            let read =
                Read { extent: extent.into(), waiters, is_expected: false, has_begun: false };
            let id = self.add(read);
            awaited.reads.insert(id);
            self.demands.push_back(id);
        }
    }

    /// Begins reads for one of `n_readers` readers and adds them to `started`: several where many are
    /// queued, so that the lock is taken seldom.
    pub(super) fn begin(&mut self, layout: &Layout, n_readers: usize, started: &mut Vec<Started>) {
        let n = (self.n_queued() / (2 * n_readers)).clamp(1, MOST_BEGUN);
        started.extend((0..n).map_while(|_| self.begin_one(layout)));
    }

    /// Begins the next read: one that a gather waits for, else one that was requested.
    fn begin_one(&mut self, layout: &Layout) -> Option<Started> {
        if self.demands.is_empty() && self.ahead.is_empty() {
            self.take_parts(layout);
        }
        while let Some(id) = self.demands.pop_front().or_else(|| self.ahead.pop_front()) {
            let Some(read) = self.reads.get_mut(&id).filter(|read| !read.has_begun) else {
                continue;
            };
            read.has_begun = true;
            let extent = Arc::clone(&read.extent);
            if self.n_reading == 0 {
                self.busy_since = Some(Instant::now());
            }
            self.n_reading += 1;
            return Some(Started { id, extent });
        }
        None
    }

    /// Ends a read: its rows enter the cache, and those who wait for it get them. `bytes` has those
    /// of its blocks, or says why they are not there.
    pub(super) fn end(
        &mut self,
        layout: &Layout,
        started: &Started,
        bytes: Result<&[u8], &dyn Fn() -> StoreError>,
    ) {
        self.n_reading -= 1;
        if self.n_reading == 0 {
            self.busy += self.busy_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        }
        let extent = &*started.extent;
        let is_expected = self.reads[&started.id].is_expected;
        self.not_expected(started.id);
        let read = self.reads.remove(&started.id).expect("it was being read");
        self.forget_reading(extent);
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                for waiter in read.waiters {
                    waiter.deliver(Err(error()));
                }
                return;
            }
        };
        self.stats.reads += 1;
        self.stats.bytes_read += extent.len as u64;
        self.stats.rows_read += extent.rows.len() as u64;
        let row_bytes = layout.table(extent.table).row_bytes();
        for placed in &extent.rows {
            let key = RowKey { table: extent.table, row: placed.row };
            self.cache.insert(key, &bytes[placed.start..placed.start + row_bytes], is_expected);
        }
        if read.waiters.is_empty() {
            return;
        }
        let mut arrived = ArrivedRows { rows: Vec::new(), bytes: Vec::new() };
        for placed in &extent.rows {
            arrived.rows.push(placed.row);
            arrived.bytes.extend_from_slice(&bytes[placed.start..placed.start + row_bytes]);
        }
        let arrived = Arc::new(arrived);
        for waiter in read.waiters {
            waiter.deliver(Ok(Arc::clone(&arrived)));
        }
    }

    /// Takes up parts of the waiting requests in turn, as long as the cache has room for their rows.
    pub(super) fn take_parts(&mut self, layout: &Layout) {
        while let Some(mut waiting) = self.waiting.pop_front() {
            let n_left = waiting.rows.len() - waiting.n_taken;
            let n = n_left.min(PART_ROWS);
            let most = self.most_expected();
            // Small parts would bring little order into the reads.
            let n = n.min(most.max(1));
            if self.room_below(most) < n {
                self.waiting.push_front(waiting);
                return;
            }
            let rows = Arc::clone(&waiting.rows);
            let part = &rows[waiting.n_taken..waiting.n_taken + n];
            let reads = self.expect_rows(layout, waiting.table, part);
            self.ahead.extend(reads);
            waiting.n_taken += n;
            if waiting.n_taken < waiting.rows.len() {
                self.waiting.push_back(waiting);
            }
        }
    }

    /// How many rows of prompts are kept until they are gathered.
    fn most_expected(&self) -> usize {
        self.cache.n_slots() / 4 * EXPECTED_QUARTERS
    }

    /// How many more rows are kept until they are gathered, if all are at most `most`.
    fn room_below(&self, most: usize) -> usize {
        most.saturating_sub(self.cache.n_expected() + self.n_expected_reading)
    }

    /// Expects rows in the cache. Returns the reads that bring those that neither are there nor
    /// being read.
    fn expect_rows(&mut self, layout: &Layout, table: usize, rows: &[u64]) -> Vec<u64> {
        let mut unread: Vec<u64> = Vec::new();
        for row in rows {
            let key = RowKey { table, row: *row };
            if !self.cache.expect(key) && !self.reading.contains_key(&key) {
                unread.push(*row);
            }
        }
        unread.sort_unstable();
        unread.dedup();
        let mut ids = Vec::new();
        for extent in layout.extents(table, unread.into_iter()) {
            self.n_expected_reading += extent.rows.len();
            let waiters = Vec::new();
            let read = Read { extent: extent.into(), waiters, is_expected: true, has_begun: false };
            ids.push(self.add(read));
        }
        ids
    }

    fn add(&mut self, read: Read) -> u64 {
        let id = self.new_id();
        for placed in &read.extent.rows {
            let key = RowKey { table: read.extent.table, row: placed.row };
            self.reading.insert(key, id);
        }
        self.reads.insert(id, read);
        id
    }

    /// The rows of a read need not stay until they are gathered.
    fn not_expected(&mut self, id: u64) {
        let Some(read) = self.reads.get_mut(&id).filter(|read| read.is_expected) else { return };
        read.is_expected = false;
        self.n_expected_reading -= read.extent.rows.len();
    }

    fn forget_reading(&mut self, extent: &Extent) {
        for placed in &extent.rows {
            self.reading.remove(&RowKey { table: extent.table, row: placed.row });
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
