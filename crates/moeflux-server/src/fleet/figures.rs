//! What engines count, of all models that are or were loaded.

use std::ops::AddAssign;
use std::time::Duration;

use crate::served::Served;

/// Counts of engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) n_prompt: u64,
    pub(crate) n_reused: u64,
    pub(crate) n_generated: u64,
    pub(crate) n_drafted: u64,
    pub(crate) n_accepted: u64,
    pub(crate) n_steps: u64,
    /// Rows of steps.
    pub(crate) n_rows: u64,
    pub(crate) busy: Duration,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) bytes_read: u64,
    pub(crate) read_time: Duration,
    pub(crate) stall_time: Duration,
    pub(crate) table_rows: u64,
    pub(crate) table_hits: u64,
    pub(crate) table_rows_read: u64,
    pub(crate) table_reads: u64,
    pub(crate) table_bytes: u64,
    pub(crate) table_stall: Duration,
}

impl Figures {
    pub(crate) fn of(served: &Served) -> Figures {
        let load = served.loaded.scheduler().stats();
        let store = served.loaded.engine().stats();
        let rows = served.loaded.engine().row_stats().unwrap_or_default();
        Figures {
            n_prompt: load.n_prompt,
            n_reused: load.n_reused,
            n_generated: load.n_generated,
            n_drafted: load.speculation.drafted,
            n_accepted: load.speculation.accepted,
            n_steps: load.n_steps,
            n_rows: load.n_rows,
            busy: load.busy,
            hits: store.hits,
            misses: store.misses,
            bytes_read: store.bytes_read,
            read_time: Duration::from_nanos(store.read_ns),
            stall_time: Duration::from_nanos(store.stall_ns),
            table_rows: rows.rows,
            table_hits: rows.ready,
            table_rows_read: rows.rows_read,
            table_reads: rows.reads,
            table_bytes: rows.bytes_read,
            table_stall: Duration::from_nanos(rows.stall_ns),
        }
    }

    /// The share of experts that were in memory when they were needed.
    pub(crate) fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

impl AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        self.n_prompt += other.n_prompt;
        self.n_reused += other.n_reused;
        self.n_generated += other.n_generated;
        self.n_drafted += other.n_drafted;
        self.n_accepted += other.n_accepted;
        self.n_steps += other.n_steps;
        self.n_rows += other.n_rows;
        self.busy += other.busy;
        self.hits += other.hits;
        self.misses += other.misses;
        self.bytes_read += other.bytes_read;
        self.read_time += other.read_time;
        self.stall_time += other.stall_time;
        self.table_rows += other.table_rows;
        self.table_hits += other.table_hits;
        self.table_rows_read += other.table_rows_read;
        self.table_reads += other.table_reads;
        self.table_bytes += other.table_bytes;
        self.table_stall += other.table_stall;
    }
}
