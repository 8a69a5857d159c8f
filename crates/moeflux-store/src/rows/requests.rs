//! Long requests, which are taken up part by part.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Rows of a part: sorted by their place on the drive, and about as many as a chunk of a prompt needs.
const PART_ROWS: usize = 16 << 10;

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

/// The rows of a request that are taken up next.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) table: usize,
    rows: Arc<[u64]>,
    range: Range<usize>,
}

impl Part {
    pub(super) fn rows(&self) -> &[u64] {
        &self.rows[self.range.clone()]
    }
}

/// The requests that wait for room.
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: VecDeque<Waiting>,
    last_id: u64,
}

impl Requests {
    /// A number for a request, by which it is withdrawn.
    pub(super) fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(super) fn add(&mut self, id: u64, table: usize, rows: Arc<[u64]>) {
        self.waiting.push_back(Waiting { id, table, rows, n_taken: 0, n_gathered: 0 });
    }

    /// Takes up no more rows of a request.
    pub(super) fn withdraw(&mut self, id: u64) {
        self.waiting.retain(|waiting| waiting.id != id);
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

    /// The next part, of the requests in turn, if there is room for its rows: `room` of at most
    /// `most` rows.
    pub(super) fn next_part(&mut self, most: usize, room: usize) -> Option<Part> {
        let mut waiting = self.waiting.pop_front()?;
        let n_left = waiting.rows.len() - waiting.n_taken;
        // Small parts would bring little order into the reads.
        let n = n_left.min(PART_ROWS).min(most.max(1));
        if room < n {
            self.waiting.push_front(waiting);
            return None;
        }
        let range = waiting.n_taken..waiting.n_taken + n;
        waiting.n_taken = range.end;
        let part = Part { table: waiting.table, rows: Arc::clone(&waiting.rows), range };
        if waiting.n_taken < waiting.rows.len() {
            self.waiting.push_back(waiting);
        }
        Some(part)
    }
}
