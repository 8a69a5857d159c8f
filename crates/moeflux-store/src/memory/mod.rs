//! The memory that this process may use, and a budget that follows it.

mod gauge;
mod limit;
mod pressure;

pub use limit::{MemoryLimit, unallocated_bytes, usable_memory};
pub use pressure::headroom;
pub(crate) use pressure::{Controller, Watcher};
#[cfg(test)]
pub(crate) use {
    limit::{stalled_under, unallocated_bytes_under, usable_memory_under},
    pressure::Reading,
};
