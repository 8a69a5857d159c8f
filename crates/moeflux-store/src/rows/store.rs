//! The public interface of the row store.

use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use moeflux_core::{HostBuf, RowBank};

use super::desk::{Awaited, RowDesk};
use super::layout::{Layout, RowKey};
use super::mailbox::Mailbox;
use super::reader::{BufAlloc, RowReader};
use super::slots::RowSlots;
use super::stats::RowStats;
use crate::drive::{self, Drive, Files, Native, Opened, Readers, Source, System, Threads, Wanted};
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
    readers: Readers<RowDesk>,
    warning: Option<String>,
}

type Shared = drive::Shared<RowDesk>;

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
        source: impl FnOnce(Files) -> Box<dyn Source>,
        alloc: BufAlloc,
    ) -> Result<RowStore, StoreError> {
        let RowStoreOptions { mode, may_fall_back, cache_bytes, n_readers } = options;
        let parts = || bank.tables.iter().flat_map(|table| &table.parts);
        let wanted = Wanted {
            files: &bank.files,
            is_used: &|file| parts().any(|part| part.file == file),
            may_miss: false,
            mode: if mode == IoMode::Mmap { IoMode::Pread } else { mode },
            may_fall_back,
            n_readers,
            what: "rows of tables",
        };
        let Opened { files, block, warning, .. } = Files::open(&wanted, system)?;
        let drive = Drive::new(&bank.files, source(files), block);
        let layout = Layout::new(bank, block);
        let slots = RowSlots::new(cache_bytes, layout.max_row_bytes());
        let slots = slots.map_err(StoreError::NoRowMemory)?;
        let threads = Threads {
            n: n_readers,
            name: "row-reader",
            stack_bytes: Some(STACK_BYTES),
            what: "readers of rows",
        };
        let desk = RowDesk::new(slots, n_readers.max(1));
        let readers = Readers::start(RowReader { layout, drive, alloc }, desk, threads)?;
        Ok(RowStore { readers, warning })
    }

    /// What the user should know although the store opened.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The tables.
    pub fn bank(&self) -> &RowBank {
        &self.readers.shared.reader.layout.bank
    }

    /// Names rows of a table that will be gathered, in about that order, and returns at once. Rows
    /// may be named several times.
    ///
    /// # Panics
    /// If the table has no such row.
    pub fn request(&self, table: usize, rows: Vec<u64>) -> RowRequest {
        let (shared, rows) = (Arc::clone(&self.readers.shared), Arc::<[u64]>::from(rows));
        let mut desk = shared.lock();
        let id = desk.request(&shared.reader.layout, table, Arc::clone(&rows));
        wake_readers(&shared, desk);
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
        let mut gather = Gather::new(&self.readers.shared, table, rows, out);
        gather.take_ready();
        gather.wait_for_others()?;
        gather.finish()
    }

    /// What the store did since the last reset.
    pub fn stats(&self) -> RowStats {
        self.readers.shared.lock().stats()
    }

    /// Starts counting anew.
    pub fn reset_stats(&self) {
        self.readers.shared.lock().reset_stats();
    }
}

impl Drop for RowRequest {
    fn drop(&mut self) {
        self.shared.lock().requests.withdraw(self.id);
        for rows in self.rows.chunks(LOCKED_ROWS) {
            let mut desk = self.shared.lock();
            if desk.n_expected() == 0 {
                return;
            }
            desk.give_up(self.table, rows);
        }
    }
}

/// Wakes as many readers as there are reads to begin.
fn wake_readers(shared: &Shared, desk: MutexGuard<'_, RowDesk>) {
    let n_queued = desk.n_queued();
    drop(desk);
    match n_queued {
        0..MANY_READS => (0..n_queued).for_each(|_| shared.work.notify_one()),
        _ => shared.work.notify_all(),
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
        self.shared.lock().requests.pass(table, rows);
        for (i, part) in rows.chunks(LOCKED_ROWS).enumerate() {
            let mut desk = self.shared.lock();
            let n_missing = self.missing.len();
            for (position, row) in (i * LOCKED_ROWS..).zip(part) {
                match desk.slots.take(RowKey { table, row: *row }) {
                    Some(bytes) => self.decode(*row, bytes, position),
                    None => self.missing.push(Missing { row: *row, position }),
                }
            }
            let n_ready = part.len() - (self.missing.len() - n_missing);
            desk.count_gathered(part.len(), n_ready);
            if n_ready > 0 {
                // Rows that were gathered make room for those of waiting requests.
                desk.take_parts(&self.shared.reader.layout);
                wake_readers(self.shared, desk);
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
        let outcome = self.put_arrivals(&mailbox, awaited.len());
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
            let mut desk = self.shared.lock();
            for missing in part {
                desk.slots.take(RowKey { table: self.table, row: missing.row });
            }
            desk.take_parts(layout);
            wake_readers(self.shared, desk);
        }
    }

    /// Has each missing row read once.
    fn await_missing(&mut self, mailbox: &Arc<Mailbox>) -> Awaited {
        let mut rows: Vec<u64> = self.missing.iter().map(|missing| missing.row).collect();
        rows.dedup();
        let mut awaited = Awaited::default();
        let (shared, table) = (self.shared, self.table);
        for rows in rows.chunks(LOCKED_ROWS) {
            let mut desk = shared.lock();
            let found = &mut |row, bytes: &[u8]| self.put(row, bytes);
            let layout = &shared.reader.layout;
            desk.await_rows(layout, table, rows, &mut awaited, mailbox, found);
            wake_readers(shared, desk);
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
