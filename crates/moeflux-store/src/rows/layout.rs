//! Where rows are stored, and which reads bring them.

use moeflux_core::{FileIdx, RowBank, RowTable};

use crate::StoreError;
use crate::drive::Blocks;

/// Bytes between two rows up to which one read brings both: a block costs a drive less than another
/// read.
const MAX_GAP: u64 = 4096;

/// Bytes of the longest read that several rows share.
const MAX_SHARED_READ: u64 = 32 << 10;

/// A row of one of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RowKey {
    /// The table's index.
    pub(super) table: usize,
    /// The row's index in the table.
    pub(super) row: u64,
}

/// One read: whole blocks of a file, and the rows that it brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) table: usize,
    pub(super) blocks: Blocks,
    /// The rows, ascending by their place.
    pub(super) rows: Vec<PlacedRow>,
}

impl Extent {
    /// The rows, in the same order.
    pub(super) fn keys(&self) -> impl Iterator<Item = RowKey> {
        self.rows.iter().map(|placed| RowKey { table: self.table, row: placed.row })
    }
}

/// A row in the buffer of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlacedRow {
    pub(super) row: u64,
    /// Offset of its first byte in the buffer.
    pub(super) start: usize,
}

/// The tables, and the blocks that their files are read in.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) bank: RowBank,
    /// For each table, the first row of each part.
    firsts: Vec<Vec<u64>>,
    /// Reads begin and end at multiples of this many bytes.
    block: usize,
}

impl Layout {
    /// # Panics
    /// If a part is outside its file, or a table has no row.
    pub(super) fn new(bank: RowBank, block: usize) -> Layout {
        for table in &bank.tables {
            let row_bytes = table.row_bytes() as u64;
            assert!(row_bytes > 0 && table.rows() > 0, "table {} has no rows", table.name);
            for part in &table.parts {
                let len = bank.files[part.file.0 as usize].len;
                let end = part.rows.checked_mul(row_bytes).and_then(|n| n.checked_add(part.offset));
                assert!(
                    end.is_some_and(|end| end <= len),
                    "a part of {} leaves its file",
                    table.name
                );
            }
        }
        let firsts = |table: &RowTable| {
            let mut first = 0;
            let parts = table.parts.iter().map(|part| {
                first += part.rows;
                first - part.rows
            });
            parts.collect()
        };
        let firsts = bank.tables.iter().map(firsts).collect();
        Layout { bank, firsts, block }
    }

    pub(super) fn table(&self, table: usize) -> &RowTable {
        &self.bank.tables[table]
    }

    /// Bytes of the longest row of all tables.
    pub(super) fn max_row_bytes(&self) -> usize {
        self.bank.tables.iter().map(RowTable::row_bytes).max().unwrap_or(0)
    }

    /// File and offset of a row.
    ///
    /// # Panics
    /// If the table has no such row.
    fn locate(&self, key: RowKey) -> (FileIdx, u64) {
        let (table, firsts) = (self.table(key.table), &self.firsts[key.table]);
        let idx = firsts.partition_point(|first| *first <= key.row) - 1;
        let (part, row) = (&table.parts[idx], key.row - firsts[idx]);
        assert!(row < part.rows, "table {} has no row {}", table.name, key.row);
        (part.file, part.offset + row * table.row_bytes() as u64)
    }

    /// The reads that bring `rows` of a table, ascending by their place on the drive. No row may be
    /// there twice.
    pub(super) fn extents(&self, table: usize, rows: impl Iterator<Item = u64>) -> Vec<Extent> {
        let located = rows.map(|row| {
            let (file, offset) = self.locate(RowKey { table, row });
            (file, offset, row)
        });
        let mut located: Vec<(FileIdx, u64, u64)> = located.collect();
        located.sort_unstable();
        let row_bytes = self.table(table).row_bytes();
        let mut extents: Vec<Extent> = Vec::new();
        for (file, offset, row) in located {
            if let Some(Extent { blocks, rows, .. }) = extents.last_mut()
                && blocks.file == file
                && offset <= blocks.offset + blocks.wanted as u64 + MAX_GAP
                && offset + row_bytes as u64 - blocks.offset <= MAX_SHARED_READ
            {
                let start = in_memory(offset - blocks.offset);
                rows.push(PlacedRow { row, start });
                blocks.wanted = start + row_bytes;
                blocks.len = blocks.wanted.next_multiple_of(self.block);
                continue;
            }
            let blocks = Blocks::around(file, offset, row_bytes, self.block);
            let start = in_memory(offset - blocks.offset);
            extents.push(Extent { table, blocks, rows: vec![PlacedRow { row, start }] });
        }
        extents
    }

    /// The error for a row that has a value which is no finite number.
    pub(super) fn damaged(&self, key: RowKey) -> StoreError {
        let (file, offset) = self.locate(key);
        let path = self.bank.files[file.0 as usize].path.clone();
        let table = self.table(key.table).name.clone();
        StoreError::DamagedRow { path, table, row: key.row, offset }
    }
}

fn in_memory(n_bytes: u64) -> usize {
    usize::try_from(n_bytes).expect("rows are short")
}
