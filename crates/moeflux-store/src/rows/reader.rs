//! Runs the reads of rows.

use std::{fmt, io};

use moeflux_core::{HostBuf, OutOfMemory, PAGE_BYTES};

use super::layout::{Extent, Layout};
use crate::StoreError;
use crate::files::Source;

/// Allocates a buffer of the given length in bytes for reads.
pub(super) type BufAlloc = Box<dyn Fn(usize) -> Result<HostBuf, OutOfMemory> + Send + Sync>;

/// The files of the tables, and where their rows are.
pub(super) struct RowReader {
    pub(super) layout: Layout,
    source: Box<dyn Source>,
    alloc: BufAlloc,
}

impl fmt::Debug for RowReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RowReader { layout, source, .. } = self;
        f.debug_struct("RowReader").field("layout", layout).field("source", source).finish()
    }
}

/// Memory of a thread for one read at a time. A read that needs more than there is allocates it, so
/// that a lack of memory fails this read and no thread.
#[derive(Debug, Default)]
pub(super) struct ReadBuf(Option<HostBuf>);

impl ReadBuf {
    /// The first `len` bytes, which a read has brought.
    ///
    /// # Panics
    /// If no read brought as many.
    pub(super) fn bytes(&self, len: usize) -> &[u8] {
        self.0
            .as_deref()
            .and_then(|bytes| bytes.get(..len))
            .expect("a read should have brought them")
    }

    fn room(&mut self, len: usize, alloc: &BufAlloc) -> Result<&mut [u8], OutOfMemory> {
        if self.0.as_ref().is_none_or(|buf| buf.len() < len) {
            // The old memory goes back before more is taken.
            self.0 = None;
            self.0 = Some(alloc(len.max(PAGE_BYTES))?);
        }
        Ok(&mut self.0.as_mut().expect("it was allocated")[..len])
    }
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
    pub(super) fn new(layout: Layout, source: Box<dyn Source>, alloc: BufAlloc) -> RowReader {
        RowReader { layout, source, alloc }
    }

    /// Reads an extent into `buf`, which grows where it is too short.
    pub(super) fn read(&self, extent: &Extent, buf: &mut ReadBuf) -> Result<(), Failure> {
        let out = buf.room(extent.len, &self.alloc).map_err(Failure::OutOfMemory)?;
        let block = self.layout.block;
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
            Failure::OutOfMemory(err) => StoreError::NoRowMemory(*err),
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
