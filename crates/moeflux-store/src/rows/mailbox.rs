//! What a gather that waits gets from the readers: many arrivals for one wake-up.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::StoreError;

/// Arrivals that wake a gather which waits for more. It decodes them while others are read.
const WAKE_AT: usize = 256;

/// Rows that one read has brought.
#[derive(Debug)]
pub(super) struct ArrivedRows {
    /// Their indices in the table.
    pub(super) rows: Vec<u64>,
    /// Their bytes, one row after the other.
    pub(super) bytes: Vec<u8>,
}

/// What those who wait for a read get.
pub(super) type Arrival = Result<Arc<ArrivedRows>, StoreError>;

/// The arrivals of one gather.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    content: Mutex<Content>,
    is_enough: Condvar,
}

#[derive(Debug, Default)]
struct Content {
    arrived: Vec<Arrival>,
    /// The gather sleeps until there is this number of arrivals; `None` while it does not.
    n_wanted: Option<usize>,
}

impl Mailbox {
    /// Adds an arrival, and wakes the gather if it has waited for that.
    pub(super) fn deliver(&self, arrival: Arrival) {
        let mut content = self.lock();
        content.arrived.push(arrival);
        if content.n_wanted.is_some_and(|n| content.arrived.len() >= n) {
            self.is_enough.notify_one();
        }
    }

    /// Waits until there are arrivals that are worth waking up for, of `n_left` that will come.
    pub(super) fn take(&self, n_left: usize) -> Vec<Arrival> {
        let n_wanted = n_left.min(WAKE_AT);
        let mut content = self.lock();
        while content.arrived.len() < n_wanted {
            content.n_wanted = Some(n_wanted);
            content = self.is_enough.wait(content).unwrap_or_else(PoisonError::into_inner);
        }
        content.n_wanted = None;
        mem::take(&mut content.arrived)
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
