//! Why a file could not be written.

use std::io;
use std::path::{Path, PathBuf};

use crate::show_bytes;

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The drive is full.
    #[error(
        "{}: no space left on the drive; free {} and run again",
        path.display(), missing.map_or_else(|| String::from("some"), show_bytes)
    )]
    NoSpace {
        /// The file that was being written.
        path: PathBuf,
        /// Bytes that must be freed so that everything can be written; `None` if unknown.
        missing: Option<u64>,
    },
    /// The drive has too little free space for the files.
    #[error(
        "{}: {} are needed, the drive has {} free; free {} or choose another drive",
        path.display(), show_bytes(*needed), show_bytes(*available), show_bytes(needed.saturating_sub(*available))
    )]
    TooSmall {
        /// The directory.
        path: PathBuf,
        /// Bytes that are still to be written.
        needed: u64,
        /// Bytes that are free.
        available: u64,
    },
    /// The system refused to write.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl WriteError {
    /// The error of an I/O call on `path`.
    pub fn at(path: &Path) -> impl Fn(io::Error) -> WriteError {
        let path = path.to_path_buf();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                WriteError::NoSpace { path: path.clone(), missing: None }
            }
            _ => WriteError::Io { path: path.clone(), source },
        }
    }
}
