//! Rows of tables on demand: small reads, many at the same time, behind a cache of rows.
//!
//! [`RowStore::request`] names rows that will be needed and returns at once; their reads begin in the
//! order of their offsets, those of neighbours as one. [`RowStore::gather`] gives rows as floats and
//! waits for the reads that are not done.

mod desk;
mod hash;
mod layout;
mod mailbox;
mod reader;
mod reads;
mod requests;
mod slots;
mod stats;
mod store;
#[cfg(test)]
mod tests;

pub use slots::whole_row_cache_bytes;
pub use stats::RowStats;
pub use store::{DEFAULT_ROW_READERS, RowRequest, RowStore, RowStoreOptions};
