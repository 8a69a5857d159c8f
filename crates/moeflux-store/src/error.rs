//! The errors of a store.

use std::path::PathBuf;
use std::{fmt, io};

use moeflux_core::{ExpertKey, OptionId, OutOfMemory};

/// What a read was for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordName {
    /// An expert.
    Expert(ExpertKey),
    /// Rows of the table of this name.
    Rows(String),
}

impl fmt::Display for RecordName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordName::Expert(key) => key.fmt(f),
            RecordName::Rows(table) => write!(f, "rows of {table}"),
        }
    }
}

/// Why the store could not be opened, or an expert did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A layer's file is not there.
    #[error(
        "layer {layer}: no expert file {}: restore it, or zero the layer's routed output with {}",
        path.display(), OptionId::AllowMissingExperts
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// The first layer that needs it.
        layer: u16,
    },
    /// The path leads to a directory, a device or the like.
    #[error("{} is not a regular file: put the expert file in its place", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file exists and cannot be opened.
    #[error("cannot open {}: {source}; make the file readable", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file cannot be mapped.
    #[error(
        "cannot map {}: {source}; {} pread reads without mapping",
        path.display(),
        OptionId::ExpertIo
    )]
    Map {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file cannot be read past the page cache.
    #[error(
        "{} cannot be read directly: {source}; {} pread reads it through the page cache",
        path.display(), OptionId::ExpertIo
    )]
    NoDirect {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is longer or shorter than the checkpoint says.
    #[error(
        "{} has {actual} bytes where {expected} belong: it was cut or replaced; fetch or pack it again",
        path.display()
    )]
    Resized {
        /// The file.
        path: PathBuf,
        /// Bytes that the file should have.
        expected: u64,
        /// Bytes that the file has now.
        actual: u64,
    },
    /// The file was written to after the model was opened.
    #[error("{}: it was written to while the model runs; start again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A read met the end of the file although the file has its full length.
    #[error(
        "{}: {record}: {got} of {wanted} bytes at offset {offset}: check the drive",
        path.display()
    )]
    ShortRead {
        /// The file.
        path: PathBuf,
        /// What the read was for.
        record: RecordName,
        /// Offset in the file at which the read began.
        offset: u64,
        /// Bytes requested.
        wanted: usize,
        /// Bytes read.
        got: usize,
    },
    /// A read failed.
    #[error(
        "{}: {record}: {got} of {wanted} bytes at offset {offset}: {source}; check the drive",
        path.display()
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// What the read was for.
        record: RecordName,
        /// Offset in the file at which the read began.
        offset: u64,
        /// Bytes requested.
        wanted: usize,
        /// Bytes read before the failure.
        got: usize,
        /// The error of the system.
        source: io::Error,
    },
    /// An expert cannot be computed from what the checkpoint holds.
    #[error("{source}, in {record}")]
    Malformed {
        /// The expert.
        record: RecordName,
        /// What is wrong, and in which file.
        source: io::Error,
    },
    /// An expert's bytes are not those that were packed.
    #[error(
        "{}: {record} does not have the checksum that it was packed with: the file is damaged; copy it again or pack the model anew",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The expert.
        record: RecordName,
    },
    /// A row of a table has a value that is no finite number.
    #[error(
        "{}: row {row} of {table}, at offset {offset}, has a value that is no finite number: the file is damaged; copy it again",
        path.display()
    )]
    DamagedRow {
        /// The file.
        path: PathBuf,
        /// The table.
        table: String,
        /// The row.
        row: u64,
        /// Offset of the row in the file.
        offset: u64,
    },
    /// The length of an open file cannot be queried.
    #[error("cannot inspect {}: {source}; check the drive", path.display())]
    Inspect {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The cache cannot hold the experts that one layer needs at once.
    #[error(
        "an expert cache of {budget} bytes is too small: {top_k} experts of {record} bytes need {needed} ({} {needed})",
        OptionId::ExpertCache
    )]
    BudgetTooSmall {
        /// Bytes of the budget.
        budget: u64,
        /// Bytes needed at least.
        needed: u64,
        /// Experts that one token uses in one layer.
        top_k: usize,
        /// Bytes of one slot.
        record: usize,
    },
    /// Every slot is held, and no read that could free one is queued or in progress. The request
    /// stays usable: drop experts, then call [`Arrivals::next_batch`](crate::Arrivals::next_batch)
    /// again.
    #[error(
        "all {n_slots} cache slots are held while {n_waiting} experts of layer {layer} wait: drop experts that have been used, or raise {}",
        OptionId::ExpertCache
    )]
    SlotsHeld {
        /// Slots of the cache.
        n_slots: usize,
        /// Experts of the request that have no slot.
        n_waiting: usize,
        /// The layer of the request.
        layer: u16,
    },
    /// The system gives no memory for a slot, and no other slot is free.
    #[error(
        "{0} for an expert; a smaller {ctx} or {cache} leaves more",
        ctx = OptionId::Ctx,
        cache = OptionId::ExpertCache
    )]
    OutOfMemory(OutOfMemory),
    /// The system gives no memory for rows, or for the reads that bring them.
    #[error(
        "{0} for rows of tables; a smaller {ctx}, {cache} or {rows} leaves more",
        ctx = OptionId::Ctx,
        cache = OptionId::ExpertCache,
        rows = OptionId::RowCache
    )]
    NoRowMemory(OutOfMemory),
    /// The reader threads cannot be started.
    #[error("cannot start {n_readers} {what} ({source}): allow this process more threads")]
    Threads {
        /// What they are.
        what: &'static str,
        /// Number of threads that were to be started.
        n_readers: usize,
        /// The error of the system.
        source: io::Error,
    },
    /// The text is not the name of an I/O mode.
    #[error("unknown expert I/O mode {value:?}: choose auto, mmap, pread or direct")]
    UnknownIoMode {
        /// The text.
        value: String,
    },
}

impl StoreError {
    /// The option of which another value helps.
    pub fn option(&self) -> Option<OptionId> {
        match self {
            StoreError::Missing { .. } => Some(OptionId::AllowMissingExperts),
            StoreError::Map { .. } | StoreError::NoDirect { .. } => Some(OptionId::ExpertIo),
            StoreError::BudgetTooSmall { .. } | StoreError::SlotsHeld { .. } => {
                Some(OptionId::ExpertCache)
            }
            StoreError::OutOfMemory(_) | StoreError::NoRowMemory(_) => Some(OptionId::Ctx),
            _ => None,
        }
    }
}
