//! Routed experts on demand, and rows of tables: bounded caches over files on the drive.
//!
//! [`ExpertStore::request`] asks for the experts that a router chose. Those in
//! the cache arrive at once, the others are read by a small pool of threads,
//! all of them at the same time, and arrive in the order in which the drive
//! delivers them. Buffers travel by value to the readers and back, and an
//! `Arc<Expert>` keeps its slot from being reused.
//!
//! [`RowStore`] does the same for rows of tables that tokens need, known from token ids alone.

#![forbid(unsafe_code)]

mod ahead;
mod arrivals;
mod cache;
mod direct;
mod error;
mod files;
mod gauge;
mod in_flight;
mod memory;
mod options;
mod plan;
mod policy;
mod predict;
mod pressure;
mod queue;
mod reader;
mod replay;
mod rows;
mod shared;
mod slots;
mod stats;
mod store;
mod timeline;
mod trace;
mod tuner;

pub use arrivals::Arrivals;
pub use cache::Batch;
pub use direct::{open_direct, read_at};
pub use error::StoreError;
pub use memory::{MemoryLimit, usable_memory};
pub use options::{
    CachePolicy, DEFAULT_READERS, IoChoice, IoMode, Prefetch, SlotAlloc, StoreOptions, gate,
};
pub use pressure::headroom;
pub use replay::{PrefetchReplay, Replay, Replayer};
pub use rows::{
    DEFAULT_ROW_READERS, RowRequest, RowStats, RowStore, RowStoreOptions, whole_row_cache_bytes,
};
pub use stats::StoreStats;
pub use store::ExpertStore;
pub use timeline::{Event, EventKind, LayerCounts, Timeline};
pub use trace::{RoutingTrace, TraceError, TraceShape, TracedLayer};
pub use tuner::{PrefetchTrial, TrialSide};

#[cfg(test)]
mod tests;
