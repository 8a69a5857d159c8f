//! Runs the reads of rows.

use std::io;

use moeflux_core::{HostBuf, OutOfMemory};

use super::layout::{Extent, Layout};
use crate::StoreError;
use crate::files::Source;

/// The files of the tables, and where their rows are.
#[derive(Debug)]
pub(super) struct RowReader {
    pub(super) layout: Layout,
    source: Box<dyn Source>,
}

/// A read that did not bring its rows.
#[derive(Debug)]
pub(super) enum Failure {
    /// The system gives no memory for its bytes.
    OutOfMemory(OutOfMemory),
    /// The file ended, or the system returned an error.
    Read {
        /// Bytes that arrived before.
        got: usize,
        /// `None` at the end of the file.
        source: Option<io::Error>,
    },
}

impl RowReader {
    pub(super) fn new(layout: Layout, source: Box<dyn Source>) -> RowReader {
        RowReader { layout, source }
    }

    /// Reads an extent into `buf`, which grows where it is too short.
    pub(super) fn read(&self, extent: &Extent, buf: &mut HostBuf) -> Result<(), Failure> {
        if buf.len() < extent.len {
            *buf = HostBuf::try_zeroed(extent.len).map_err(Failure::OutOfMemory)?;
        }
        let (block, out) = (self.layout.block, &mut buf[..extent.len]);
        let mut got = 0;
        while got < extent.wanted {
            // Reads begin at the start of a block, so a block that was read in part is read again.
            let from = got - got % block;
            let offset = extent.offset + from as u64;
            match self.source.read_at(extent.file, &mut out[from..], offset) {
                Ok(n_bytes) if from + n_bytes <= got => {
                    return Err(Failure::Read { got, source: None });
                }
                Ok(n_bytes) => got = from + n_bytes,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(Failure::Read { got, source: Some(err) }),
            }
        }
        Ok(())
    }

    /// The error of a failed read, for each of those who wait for it.
    pub(super) fn error(&self, extent: &Extent, failure: &Failure) -> StoreError {
        let expected = &self.layout.bank.files[extent.file.0 as usize];
        let table = self.layout.table(extent.table).name.clone();
        let (path, offset, wanted) = (expected.path.clone(), extent.offset, extent.wanted);
        match failure {
            Failure::OutOfMemory(err) => StoreError::OutOfMemory(*err),
            Failure::Read { got, source: None } => match self.source.len(extent.file) {
                Ok(actual) if actual != expected.len => {
                    StoreError::Resized { path, expected: expected.len, actual }
                }
                _ => StoreError::ShortRowRead { path, table, offset, wanted, got: *got },
            },
            Failure::Read { got, source: Some(err) } => {
                let is_direct = self.layout.block > 1;
                if is_direct && err.kind() == io::ErrorKind::InvalidInput {
                    return StoreError::NoDirect { path, source: copy_of(err) };
                }
                let (got, source) = (*got, copy_of(err));
                StoreError::RowIo { path, table, offset, wanted, got, source }
            }
        }
    }
}

/// An error that says the same.
fn copy_of(err: &io::Error) -> io::Error {
    match err.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(err.kind(), err.to_string()),
    }
}
