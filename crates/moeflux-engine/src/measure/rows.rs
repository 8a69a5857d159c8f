//! How long the rows of tables take that a token needs, read as the store of rows reads them.

use std::fs::File;
use std::time::{Duration, Instant};

use moeflux_core::{RowBank, RowTable, SplitMix64};
use moeflux_store::{DEFAULT_ROW_READERS, IoMode, RowStore, RowStoreOptions};

use super::system::has_data;
use crate::engine::Engine;

/// Bytes of the cache of rows: too few for random rows to come again.
const CACHE_BYTES: u64 = 1 << 16;

/// Tokens whose rows are read at least.
const MIN_TOKENS: u32 = 4;

/// Random rows that are tried until one is stored on the drive, and not in a hole of its file.
const TRIED_ROWS: usize = 32;

/// Seconds for the rows of one token, which are `per_token` random ones of each table, measured for
/// `time`. `None` where there are no tables, where files cannot be read directly, or where so much of
/// a table is holes that its reads say nothing about the drive.
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
    let mut stored = StoredRows::open(tables)?;
    let (mut rows, mut out) = (Vec::new(), Vec::new());
    let (start, mut spent) = (Instant::now(), Duration::ZERO);
    let mut n_tokens = 0;
    while n_tokens < MIN_TOKENS || start.elapsed() < time {
        for (table, n_rows) in per_token.iter().enumerate() {
            rows.clear();
            for _ in 0..*n_rows {
                rows.push(stored.draw(&tables.tables[table])?);
            }
            let begin = Instant::now();
            store.gather(table, &rows, &mut out).ok()?;
            spent += begin.elapsed();
        }
        n_tokens += 1;
    }
    Some(spent.as_secs_f64() / f64::from(n_tokens))
}

/// Whether much of a table is holes of its file, which are read as zeros without the drive.
pub fn has_hollow_tables(engine: &Engine) -> bool {
    let bank = engine.row_bank();
    bank.and_then(|bank| Some((bank, StoredRows::open(bank)?))).is_some_and(|(bank, mut stored)| {
        bank.tables.iter().any(|table| stored.draw(table).is_none())
    })
}

/// Draws rows that the drive holds.
struct StoredRows {
    files: Vec<File>,
    random: SplitMix64,
}

impl StoredRows {
    fn open(tables: &RowBank) -> Option<StoredRows> {
        let files = tables.files.iter().map(|file| File::open(&file.path).ok());
        Some(StoredRows { files: files.collect::<Option<_>>()?, random: SplitMix64::new(1) })
    }

    /// A random row; `None` where many in a row are holes.
    fn draw(&mut self, table: &RowTable) -> Option<u64> {
        let n_rows = usize::try_from(table.rows()).ok()?;
        for _ in 0..TRIED_ROWS {
            let row = self.random.below(n_rows) as u64;
            if self.is_stored(table, row) {
                return Some(row);
            }
        }
        None
    }

    fn is_stored(&self, table: &RowTable, row: u64) -> bool {
        let mut first = 0;
        let part = table.parts.iter().find(|part| {
            let is_in = row - first < part.rows;
            first += if is_in { 0 } else { part.rows };
            is_in
        });
        part.is_some_and(|part| {
            let offset = part.offset + (row - first) * table.row_bytes() as u64;
            has_data(&self.files[part.file.0 as usize], offset, table.row_bytes())
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;

    use moeflux_core::{FileIdx, RowEncoding, RowPart, SourceFile};

    use super::*;

    /// Two parts of 4,096 rows of 256 bytes, of which the file has the first rows of the second part.
    #[test]
    fn rows_in_holes_are_not_drawn() {
        const ROWS: u64 = 4096;
        const LEN: u64 = 2 * ROWS * 256;
        for (n_written, wants_any) in [(0, false), (ROWS / 2 * 256, true)] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(ROWS * 256).unwrap();
            std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).unwrap();
            file.write_all(&vec![1; usize::try_from(n_written).unwrap()]).unwrap();
            file.as_file().set_len(LEN).unwrap();
            let part = |offset| RowPart { file: FileIdx(0), offset, rows: ROWS };
            let table = RowTable {
                name: String::from("table"),
                cols: 256,
                encoding: RowEncoding::F8E4M3,
                scale: 1.0,
                parts: vec![part(0), part(ROWS * 256)],
            };
            let files = vec![SourceFile::new(file.path().to_path_buf(), LEN)];
            let bank = RowBank { files, tables: vec![table] };
            let mut stored = StoredRows::open(&bank).unwrap();
            for _ in 0..50 {
                let row = stored.draw(&bank.tables[0]);
                assert_eq!(row.is_some(), wants_any);
                let is_written = |row: u64| (ROWS..ROWS + ROWS / 2 + 16).contains(&row);
                assert!(row.is_none_or(is_written), "{row:?}");
            }
        }
    }
}
