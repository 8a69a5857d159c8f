//! The counters of a row store.

/// Counters since the store was opened or last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowStats {
    /// Rows gathered.
    pub rows: u64,
    /// Those of `rows` that were in the cache, requested ahead of time or used before.
    pub ready: u64,
    /// Those of `rows` whose reads had begun or were queued.
    pub awaited: u64,
    /// Rows read from the drive.
    pub rows_read: u64,
    /// Reads, each of one row or of several neighbours.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes_read: u64,
    /// Time in which at least one read was in progress, in nanoseconds.
    pub read_ns: u64,
    /// Time that consumers waited for rows, in nanoseconds.
    pub stall_ns: u64,
    /// Rows that the cache has room for.
    pub n_slots: usize,
    /// Rows in the cache.
    pub resident: usize,
}

impl RowStats {
    /// Reads a second while at least one was in progress; `None` where there was none.
    pub fn reads_s(&self) -> Option<f64> {
        (self.reads > 0 && self.read_ns > 0).then(|| self.reads as f64 * 1e9 / self.read_ns as f64)
    }

    /// Share of gathered rows that needed no read of their own; 0 before the first.
    pub fn hit_rate(&self) -> f64 {
        match self.rows {
            0 => 0.0,
            rows => 1.0 - self.rows_read.min(rows) as f64 / rows as f64,
        }
    }

    /// Share of gathered rows that were in the cache when they were needed; 0 before the first.
    pub fn ready_rate(&self) -> f64 {
        if self.rows == 0 { 0.0 } else { self.ready as f64 / self.rows as f64 }
    }
}
