//! Routed experts on demand, and rows of tables: bounded caches over files on the drive.
//!
//! [`ExpertStore::request`] asks for the experts that a router chose. Those in
//! the cache arrive at once, the others are read by a small pool of threads,
//! all of them at the same time, and arrive in the order in which the drive
//! delivers them. Buffers travel by value to the readers and back, and an
//! `Arc<Expert>` keeps its slot from being reused.
//!
//! [`RowStore`] does the same for rows of tables that tokens need, known from token ids alone.
//!
//! Both are a desk behind a lock, with threads that read from one drive (`drive`). They differ in
//! what a record is: an expert is read into a slot of its own, in several reads, and lent out; rows
//! are short, so one read brings many, and they are copied in and out.

#![forbid(unsafe_code)]

mod drive;
mod error;
mod experts;
mod memory;
mod options;
mod replay;
mod rows;
mod trace;

pub use drive::{open_direct, read_at};
pub use error::{RecordName, StoreError};
pub use experts::{
    Arrivals, Batch, Event, EventKind, ExpertStore, LayerCounts, PrefetchTrial, StoreStats,
    Timeline, TrialSide,
};
pub use memory::{MemoryLimit, headroom, unallocated_bytes, usable_memory};
pub use options::{
    CachePolicy, DEFAULT_READERS, IoChoice, IoMode, Prefetch, SlotAlloc, StoreOptions, resolve_io,
};
pub use replay::{PrefetchReplay, Replay, Replayer};
pub use rows::{
    DEFAULT_ROW_READERS, RowRequest, RowStats, RowStore, RowStoreOptions, whole_row_cache_bytes,
};
pub use trace::{RoutingTrace, TraceError, TraceShape, TracedLayer};

#[cfg(test)]
mod tests;
