//! Tables in files that are removed with the store over them.

use std::fs;
use std::time::{Duration, Instant};

use moeflux_core::quant::Float;
use moeflux_core::{FileIdx, HostBuf, RowBank, RowEncoding, RowPart, RowTable, SourceFile};
use tempfile::TempDir;

use super::super::reader::BufAlloc;
use super::super::{RowStats, RowStore, RowStoreOptions};
use crate::IoMode;
use crate::drive::{Files, Source};
use crate::tests::Pretended;

pub(super) const COLS: usize = 16;
pub(super) const SCALE: f32 = 0.5;

/// Rows of the parts of each table, and bytes in front of each part.
const PARTS: [&[(u64, usize)]; 2] = [&[(700, 96), (1, 3), (1300, 4097)], &[(50, 5000)]];

pub(super) struct Fixture {
    pub(super) dir: TempDir,
    pub(super) store: RowStore,
    encoding: RowEncoding,
}

pub(super) fn options(mode: IoMode, cache_bytes: u64) -> RowStoreOptions {
    RowStoreOptions { mode, may_fall_back: false, cache_bytes, n_readers: 4 }
}

/// The bytes of a row: codes that follow from its place.
pub(super) fn encoded(encoding: RowEncoding, table: usize, row: u64) -> Vec<u8> {
    let code = |col: usize| {
        let mixed = (row * 31 + col as u64 * 7 + table as u64 * 101).wrapping_mul(0x9E37_79B9);
        (mixed >> 8) as u8 % 0x7E
    };
    let codes = (0..COLS).map(code);
    match encoding {
        RowEncoding::F8E4M3 => codes.collect(),
        RowEncoding::Float(Float::F32) => {
            codes.flat_map(|code| (f32::from(code) - 40.0).to_le_bytes()).collect()
        }
        RowEncoding::Ggml(_) => unreachable!("tables here have plain elements"),
        // Any bits below the largest exponent are a number.
        RowEncoding::Float(_) => {
            codes.flat_map(|code| [code.wrapping_mul(3), code % 0x70]).collect()
        }
    }
}

pub(super) fn value(encoding: RowEncoding, table: usize, row: u64, col: usize) -> f32 {
    let mut out = vec![0.0; COLS];
    table_of(encoding, table, Vec::new()).decode(&encoded(encoding, table, row), &mut out);
    out[col]
}

fn table_of(encoding: RowEncoding, table: usize, parts: Vec<RowPart>) -> RowTable {
    let name = format!("layers.{table}.table");
    RowTable { name, cols: COLS, encoding, scale: SCALE, parts }
}

impl Fixture {
    pub(super) fn new(encoding: RowEncoding, options: RowStoreOptions) -> Fixture {
        Fixture::with(
            encoding,
            options,
            None,
            |files| Box::new(files),
            Box::new(HostBuf::try_zeroed),
        )
    }

    /// With a row of the first table that is no number.
    pub(super) fn damaged(encoding: RowEncoding, options: RowStoreOptions, row: u64) -> Fixture {
        Fixture::with(
            encoding,
            options,
            Some(row),
            |files| Box::new(files),
            Box::new(HostBuf::try_zeroed),
        )
    }

    pub(super) fn with(
        encoding: RowEncoding,
        options: RowStoreOptions,
        damaged: Option<u64>,
        source: impl FnOnce(Files) -> Box<dyn Source>,
        alloc: BufAlloc,
    ) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let mut bank = RowBank::default();
        for (table, parts) in PARTS.iter().enumerate() {
            let (mut first, mut placed) = (0, Vec::new());
            for (rows, offset) in *parts {
                let mut bytes = vec![0xFF; *offset];
                for row in first..first + rows {
                    let is_damaged = table == 0 && damaged == Some(row);
                    let row = encoded(encoding, table, row);
                    bytes.extend(if is_damaged { vec![0xFF; row.len()] } else { row });
                }
                first += rows;
                let path = dir.path().join(format!("{}.bin", bank.files.len()));
                fs::write(&path, &bytes).unwrap();
                let file = FileIdx(bank.files.len() as u32);
                bank.files.push(SourceFile::new(path, bytes.len() as u64));
                placed.push(RowPart { file, offset: *offset as u64, rows: *rows });
            }
            bank.tables.push(table_of(encoding, table, placed));
        }
        let system = Pretended { direct: || Ok(512) };
        let store = RowStore::open_with(bank, options, &system, source, alloc).unwrap();
        Fixture { dir, store, encoding }
    }

    pub(super) fn rows(&self, table: usize) -> u64 {
        self.store.bank().tables[table].rows()
    }

    /// Gathers rows and compares them with what the files were written from.
    pub(super) fn check(&self, table: usize, rows: &[u64]) {
        let mut out = vec![1.0; 3];
        self.store.gather(table, rows, &mut out).unwrap();
        assert_eq!(out.len(), rows.len() * COLS);
        for (row, values) in rows.iter().zip(out.chunks(COLS)) {
            for (col, found) in values.iter().enumerate() {
                let expected = value(self.encoding, table, *row, col);
                assert_eq!(found.to_bits(), expected.to_bits(), "row {row}, column {col}");
            }
        }
    }

    pub(super) fn wait_until(&self, is_done: impl Fn(&RowStats) -> bool) {
        let start = Instant::now();
        while !is_done(&self.store.stats()) {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", self.store.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
