//! How long the rows of tables take that a token needs, read as the store of rows reads them.

use std::time::{Duration, Instant};

use moeflux_core::{RowBank, SplitMix64};
use moeflux_store::{DEFAULT_ROW_READERS, IoMode, RowStore, RowStoreOptions};

/// Bytes of the cache of rows: too few for random rows to come again.
const CACHE_BYTES: u64 = 1 << 16;

/// Tokens whose rows are read at least.
const MIN_TOKENS: u32 = 4;

/// Seconds for the rows of one token, which are `per_token` random ones of each table, measured for
/// `time`. `None` where there are no tables, or where files cannot be read directly.
pub(crate) fn row_seconds(tables: &RowBank, per_token: &[usize], time: Duration) -> Option<f64> {
    if tables.tables.is_empty() {
        return None;
    }
    let options = RowStoreOptions {
        mode: IoMode::Direct,
        may_fall_back: false,
        cache_bytes: CACHE_BYTES,
        n_readers: DEFAULT_ROW_READERS,
    };
    let store = RowStore::open(tables.clone(), options).ok()?;
    let mut random = SplitMix64::new(1);
    let (mut rows, mut out) = (Vec::new(), Vec::new());
    let start = Instant::now();
    let mut n_tokens = 0;
    while n_tokens < MIN_TOKENS || start.elapsed() < time {
        for (table, n_rows) in per_token.iter().enumerate() {
            let n_stored = usize::try_from(tables.tables[table].rows()).ok()?;
            rows.clear();
            rows.extend((0..*n_rows).map(|_| random.below(n_stored) as u64));
            store.gather(table, &rows, &mut out).ok()?;
        }
        n_tokens += 1;
    }
    Some(start.elapsed().as_secs_f64() / f64::from(n_tokens))
}
