//! Reads of rows that have not ended: who waits for each, and which begins next.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::hash::BuildNumberHasher;
use super::layout::{Extent, RowKey};
use super::mailbox::Mailbox;

/// The number of a read.
pub(super) type ReadId = u64;

/// A read that has not ended.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) extent: Arc<Extent>,
    pub(super) waiters: Vec<Arc<Mailbox>>,
    /// Whether its rows stay in the cache until they are gathered.
    pub(super) is_expected: bool,
    has_begun: bool,
}

/// A read that has begun, and its number.
#[derive(Clone, Debug)]
pub(super) struct Started {
    pub(super) id: ReadId,
    pub(super) extent: Arc<Extent>,
}

/// All reads that have not ended.
#[derive(Debug, Default)]
pub(super) struct Reads {
    by_id: HashMap<ReadId, Read, BuildNumberHasher>,
    /// The read that brings each row.
    by_row: HashMap<RowKey, ReadId, BuildNumberHasher>,
    /// Reads that a gather waits for, and those of the next step.
    demands: VecDeque<ReadId>,
    /// Other reads; entries that are also in `demands`, or have ended, are passed over.
    ahead: VecDeque<ReadId>,
    /// Rows of expected reads.
    n_expected: usize,
    last_id: ReadId,
}

impl Reads {
    /// Reads that have not begun; some may be counted twice.
    pub(super) fn n_queued(&self) -> usize {
        self.demands.len() + self.ahead.len()
    }

    /// Rows on their way that stay in the cache until they are gathered.
    pub(super) fn n_expected(&self) -> usize {
        self.n_expected
    }

    /// The read that brings a row.
    pub(super) fn of(&self, key: RowKey) -> Option<ReadId> {
        self.by_row.get(&key).copied()
    }

    /// Adds a read that a gather waits for.
    pub(super) fn demand(&mut self, extent: Extent, waiter: &Arc<Mailbox>) -> ReadId {
        let waiters = vec![Arc::clone(waiter)];
        let extent = Arc::new(extent);
        let id = self.add(Read { extent, waiters, is_expected: false, has_begun: false });
        self.demands.push_back(id);
        id
    }

    /// Adds reads whose rows stay in the cache until they are gathered, to be read at once or as long
    /// as nothing else is to be read.
    pub(super) fn expect(&mut self, extents: Vec<Extent>, is_urgent: bool) {
        for extent in extents {
            self.n_expected += extent.rows.len();
            let (extent, waiters) = (Arc::new(extent), Vec::new());
            let id = self.add(Read { extent, waiters, is_expected: true, has_begun: false });
            let queue = if is_urgent { &mut self.demands } else { &mut self.ahead };
            queue.push_back(id);
        }
    }

    /// Has a gather wait for a read.
    pub(super) fn wait_for(&mut self, id: ReadId, waiter: &Arc<Mailbox>) {
        let read = self.by_id.get_mut(&id).expect("its rows are being read");
        read.waiters.push(Arc::clone(waiter));
        if !read.has_begun {
            self.demands.push_back(id);
        }
    }

    /// The rows of the read that brings a row need not stay until they are gathered. Nor are they
    /// read if no gather waits for them.
    pub(super) fn give_up(&mut self, key: RowKey) {
        let Some(id) = self.of(key) else { return };
        let read = self.by_id.get_mut(&id).expect("its rows are being read");
        if std::mem::take(&mut read.is_expected) {
            self.n_expected -= read.extent.rows.len();
        }
        if !read.has_begun && read.waiters.is_empty() {
            self.end(id);
        }
    }

    /// Begins the next read: one that a gather waits for, else one that was requested.
    pub(super) fn begin(&mut self) -> Option<Started> {
        while let Some(id) = self.demands.pop_front().or_else(|| self.ahead.pop_front()) {
            if let Some(read) = self.by_id.get_mut(&id).filter(|read| !read.has_begun) {
                read.has_begun = true;
                return Some(Started { id, extent: Arc::clone(&read.extent) });
            }
        }
        None
    }

    /// Removes a read.
    pub(super) fn end(&mut self, id: ReadId) -> Read {
        let read = self.by_id.remove(&id).expect("it has not ended");
        if read.is_expected {
            self.n_expected -= read.extent.rows.len();
        }
        for key in read.extent.keys() {
            self.by_row.remove(&key);
        }
        read
    }

    fn add(&mut self, read: Read) -> ReadId {
        self.last_id += 1;
        let id = self.last_id;
        self.by_row.extend(read.extent.keys().map(|key| (key, id)));
        self.by_id.insert(id, read);
        id
    }
}
