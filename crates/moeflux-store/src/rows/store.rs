//! The public interface of the row store, and the threads that read.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use moeflux_core::{HostBuf, RowBank, explain_thread_error};

use super::cache::RowCache;
use super::files::{OpenedRows, RowFiles};
use super::layout::{Layout, RowKey};
use super::mailbox::Mailbox;
use super::reader::{BufAlloc, Failure, ReadBuf, RowReader};
use super::state::{Awaited, MOST_BEGUN, Started, State};
use super::stats::RowStats;
use crate::files::{Native, Source, System};
use crate::{IoMode, StoreError};

/// Threads that read rows: the reads in flight that suit an NVMe drive.
pub const DEFAULT_ROW_READERS: usize = 32;

/// Rows that are looked up while the state is locked.
const LOCKED_ROWS: usize = 2048;

/// Reads for which all readers are woken together.
const MANY_READS: usize = 32;

/// Bytes of the stack of a thread that reads.
const STACK_BYTES: usize = 128 << 10;

/// The options of a row store.
#[derive(Clone, Copy, Debug)]
pub struct RowStoreOptions {
    /// How rows come into memory. Files are not mapped for rows: [`IoMode::Mmap`] reads as
    /// [`IoMode::Pread`] does.
    pub mode: IoMode,
    /// Whether files that refuse [`IoMode::Direct`] are read with [`IoMode::Pread`] and a warning.
    pub may_fall_back: bool,
    /// Budget of the cache of rows in bytes. Values are the same with any.
    pub cache_bytes: u64,
    /// Reads in progress at the same time; at least one.
    pub n_readers: usize,
}

/// Delivers rows of tables, and reads those that are not in its cache.
#[derive(Debug)]
pub struct RowStore {
    shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
    warning: Option<String>,
}

#[derive(Debug)]
struct Shared {
    reader: RowReader,
    state: Mutex<State>,
    /// There may be a read to begin, or the store closes.
    work: Condvar,
}

/// Rows that will be gathered. They are read meanwhile, as far as the cache has room, and stay there
/// until they are gathered or this is dropped.
#[derive(Debug)]
pub struct RowRequest {
    shared: Arc<Shared>,
    id: u64,
    table: usize,
    rows: Arc<[u64]>,
}

impl RowStore {
    /// Opens and checks the files of a bank.
    ///
    /// # Errors
    /// If a file is missing, is not a regular file, has a length other than the bank says, or cannot
    /// be opened or read directly. If there is no memory for the cache or threads cannot be started.
    ///
    /// # Panics
    /// If a table has no rows, or a part of one is outside its file.
    pub fn open(bank: RowBank, options: RowStoreOptions) -> Result<RowStore, StoreError> {
        RowStore::open_with(
            bank,
            options,
            &Native,
            |files| Box::new(files),
            Box::new(HostBuf::try_zeroed),
        )
    }

    /// Opens a store as [`RowStore::open`] does. `system` opens the files, `source` wraps them, and
    /// `alloc` allocates what they are read into.
    pub(super) fn open_with(
        bank: RowBank,
        options: RowStoreOptions,
        system: &dyn System,
        source: impl FnOnce(RowFiles) -> Box<dyn Source>,
        alloc: BufAlloc,
    ) -> Result<RowStore, StoreError> {
        let n_readers = options.n_readers.max(1);
        // Windows allows one read at a time through a handle.
        let n_handles = if cfg!(windows) { n_readers } else { 1 };
        let OpenedRows { files, block, warning } =
            RowFiles::open(&bank, options.mode, options.may_fall_back, n_handles, system)?;
        let layout = Layout::new(bank, block);
        let cache = RowCache::new(options.cache_bytes, layout.max_row_bytes())
            .map_err(StoreError::NoRowMemory)?;
        let shared = Arc::new(Shared {
            reader: RowReader::new(layout, source(files), alloc),
            state: Mutex::new(State::new(cache)),
            work: Condvar::new(),
        });
        let mut store = RowStore { shared, readers: Vec::new(), warning };
        for i in 0..n_readers {
            let shared = Arc::clone(&store.shared);
            let thread = thread::Builder::new().name(format!("row-reader-{i}"));
            let thread = thread.stack_size(STACK_BYTES).spawn(move || shared.serve(n_readers));
            let no_thread =
                |err| StoreError::RowThreads { n_readers, source: explain_thread_error(err) };
            store.readers.push(thread.map_err(no_thread)?);
        }
        Ok(store)
    }

    /// What the user should know although the store opened.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The tables.
    pub fn bank(&self) -> &RowBank {
        &self.shared.reader.layout.bank
    }

    /// Names rows of a table that will be gathered, in about that order, and returns at once. Rows
    /// may be named several times.
    ///
    /// # Panics
    /// If the table has no such row.
    pub fn request(&self, table: usize, rows: Vec<u64>) -> RowRequest {
        let (shared, rows) = (Arc::clone(&self.shared), Arc::<[u64]>::from(rows));
        let mut state = shared.lock();
        let id = state.request(&shared.reader.layout, table, Arc::clone(&rows));
        shared.wake_readers(state);
        RowRequest { shared, id, table, rows }
    }

    /// Replaces `out` with the floats of these rows of a table. Waits for those that are not in the
    /// cache.
    ///
    /// # Errors
    /// If a row cannot be read, or has a value that is no finite number. Other gathers are not
    /// concerned.
    ///
    /// # Panics
    /// If the table has no such row.
    pub fn gather(&self, table: usize, rows: &[u64], out: &mut Vec<f32>) -> Result<(), StoreError> {
        let mut gather = Gather::new(&self.shared, table, rows, out);
        gather.take_ready();
        gather.wait_for_others()?;
        gather.finish()
    }

    /// What the store did since the last reset.
    pub fn stats(&self) -> RowStats {
        self.shared.lock().stats()
    }

    /// Starts counting anew.
    pub fn reset_stats(&self) {
        self.shared.lock().reset_stats();
    }
}

impl Drop for RowStore {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.work.notify_all();
        for reader in self.readers.drain(..) {
            // A reader that panicked has nothing to return.
            let _ = reader.join();
        }
    }
}

impl Drop for RowRequest {
    fn drop(&mut self) {
        self.shared.lock().withdraw(self.id);
        for rows in self.rows.chunks(LOCKED_ROWS) {
            let mut state = self.shared.lock();
            if !state.has_expected() {
                return;
            }
            state.give_up(self.table, rows);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes as many readers as there are reads to begin.
    fn wake_readers(&self, state: MutexGuard<'_, State>) {
        let n_queued = state.n_queued();
        drop(state);
        match n_queued {
            0..MANY_READS => (0..n_queued).for_each(|_| self.work.notify_one()),
            _ => self.work.notify_all(),
        }
    }

    /// Runs reads as one of `n_readers` readers, until the store closes.
    fn serve(&self, n_readers: usize) {
        let layout = &self.reader.layout;
        let mut bufs: [ReadBuf; MOST_BEGUN] = Default::default();
        let (mut started, mut outcomes) = (Vec::new(), Vec::new());
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return;
            }
            let n_queued = state.n_queued();
            state.begin(layout, n_readers, &mut started);
            if started.is_empty() {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if state.n_queued() > n_queued {
                // A part of a long request was taken up.
                self.work.notify_all();
            }
            drop(state);
            let reads = started.iter().zip(&mut bufs);
            outcomes.extend(reads.map(|(read, buf)| self.reader.read(&read.extent, buf)));
            state = self.lock();
            for ((read, buf), outcome) in started.drain(..).zip(&bufs).zip(outcomes.drain(..)) {
                self.end(&mut state, &read, buf, outcome);
            }
        }
    }

    fn end(
        &self,
        state: &mut State,
        started: &Started,
        buf: &ReadBuf,
        outcome: Result<(), Failure>,
    ) {
        let layout = &self.reader.layout;
        match outcome {
            Ok(()) => state.end(layout, started, Ok(buf.bytes(started.extent.len))),
            Err(failure) => {
                let error = || self.reader.error(&started.extent, &failure);
                state.end(layout, started, Err(&error));
            }
        }
    }
}

/// A row that a gather did not find in the cache, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Missing {
    row: u64,
    position: usize,
}

/// One call of [`RowStore::gather`].
struct Gather<'a> {
    shared: &'a Shared,
    table: usize,
    rows: &'a [u64],
    out: &'a mut [f32],
    missing: Vec<Missing>,
    /// The first row found that has a value which is no finite number.
    damaged: Option<u64>,
}

impl<'a> Gather<'a> {
    fn new(shared: &'a Shared, table: usize, rows: &'a [u64], out: &'a mut Vec<f32>) -> Gather<'a> {
        out.clear();
        out.resize(rows.len() * shared.reader.layout.table(table).cols, 0.0);
        Gather { shared, table, rows, out, missing: Vec::new(), damaged: None }
    }

    /// Decodes the rows that are in the cache.
    fn take_ready(&mut self) {
        let (table, rows) = (self.table, self.rows);
        self.shared.lock().pass(table, rows);
        for (i, part) in rows.chunks(LOCKED_ROWS).enumerate() {
            let mut state = self.shared.lock();
            let n_missing = self.missing.len();
            for (position, row) in (i * LOCKED_ROWS..).zip(part) {
                match state.cache.take(RowKey { table, row: *row }) {
                    Some(bytes) => self.decode(*row, bytes, position),
                    None => self.missing.push(Missing { row: *row, position }),
                }
            }
            let n_ready = part.len() - (self.missing.len() - n_missing);
            state.count_gathered(part.len(), n_ready);
            if n_ready > 0 {
                // Rows that were gathered make room for those of waiting requests.
                state.take_parts(&self.shared.reader.layout);
                self.shared.wake_readers(state);
            }
        }
        self.missing.sort_unstable();
    }

    /// Has the missing rows read, and decodes them as they arrive.
    fn wait_for_others(&mut self) -> Result<(), StoreError> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        let mailbox = Arc::new(Mailbox::default());
        let awaited = self.await_missing(&mailbox);
        let outcome = self.put_arrivals(&mailbox, awaited.n_reads());
        self.shared.lock().count_stall(start.elapsed());
        self.release_missing();
        outcome
    }

    /// Decodes rows as they arrive, until `n_left` reads have ended or one has failed.
    fn put_arrivals(&mut self, mailbox: &Mailbox, mut n_left: usize) -> Result<(), StoreError> {
        let row_bytes = self.shared.reader.layout.table(self.table).row_bytes();
        while n_left > 0 {
            let arrivals = mailbox.take(n_left);
            n_left -= arrivals.len();
            for arrived in arrivals {
                let arrived = arrived?;
                for (row, bytes) in arrived.rows.iter().zip(arrived.bytes.chunks(row_bytes)) {
                    self.put(*row, bytes);
                }
            }
        }
        Ok(())
    }

    /// Lets the rows leave the cache that came with reads for requests and are gathered now.
    fn release_missing(&self) {
        let layout = &self.shared.reader.layout;
        for part in self.missing.chunks(LOCKED_ROWS) {
            let mut state = self.shared.lock();
            for missing in part {
                state.cache.take(RowKey { table: self.table, row: missing.row });
            }
            state.take_parts(layout);
            self.shared.wake_readers(state);
        }
    }

    /// Has each missing row read once.
    fn await_missing(&mut self, mailbox: &Arc<Mailbox>) -> Awaited {
        let mut rows: Vec<u64> = self.missing.iter().map(|missing| missing.row).collect();
        rows.dedup();
        let mut awaited = Awaited::default();
        let (shared, table) = (self.shared, self.table);
        for rows in rows.chunks(LOCKED_ROWS) {
            let mut state = shared.lock();
            let found = &mut |row, bytes: &[u8]| self.put(row, bytes);
            let layout = &shared.reader.layout;
            state.await_rows(layout, table, rows, &mut awaited, mailbox, found);
            shared.wake_readers(state);
        }
        awaited
    }

    /// Decodes a row that was missing, wherever it goes.
    fn put(&mut self, row: u64, bytes: &[u8]) {
        let first = self.missing.partition_point(|missing| missing.row < row);
        for i in first..self.missing.len() {
            let missing = self.missing[i];
            if missing.row != row {
                break;
            }
            self.decode(row, bytes, missing.position);
        }
    }

    fn decode(&mut self, row: u64, bytes: &[u8], position: usize) {
        let table = self.shared.reader.layout.table(self.table);
        let out = &mut self.out[position * table.cols..][..table.cols];
        table.decode(bytes, out);
        if out.iter().any(|value| !value.is_finite()) {
            self.damaged.get_or_insert(row);
        }
    }

    fn finish(self) -> Result<(), StoreError> {
        let Some(row) = self.damaged else { return Ok(()) };
        let layout = &self.shared.reader.layout;
        Err(layout.damaged(RowKey { table: self.table, row }))
    }
}
