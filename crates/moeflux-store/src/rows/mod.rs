//! Rows of tables on demand: small reads, many at the same time, behind a cache of rows.
//!
//! [`RowStore::request`] names rows that will be needed and returns at once; their reads begin in the
//! order of their offsets, those of neighbours as one. [`RowStore::gather`] gives rows as floats and
//! waits for the reads that are not done.

mod cache;
mod files;
mod hash;
mod layout;
mod mailbox;
mod reader;
mod state;
mod stats;
mod store;
#[cfg(test)]
mod tests;

pub use cache::whole_row_cache_bytes;
pub use stats::RowStats;
pub use store::{DEFAULT_ROW_READERS, RowRequest, RowStore, RowStoreOptions};
