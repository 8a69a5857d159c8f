//! Runs the reads of rows.

use std::fmt;

use moeflux_core::{HostBuf, OutOfMemory, PAGE_BYTES};

use super::layout::{Extent, Layout};
use crate::StoreError;
use crate::drive::{Drive, Failure};
use crate::error::RecordName;

/// Allocates a buffer of the given length in bytes for reads.
pub(super) type BufAlloc = Box<dyn Fn(usize) -> Result<HostBuf, OutOfMemory> + Send + Sync>;

/// The files of the tables, and where their rows are.
pub(super) struct RowReader {
    pub(super) layout: Layout,
    pub(super) drive: Drive,
    pub(super) alloc: BufAlloc,
}

impl fmt::Debug for RowReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RowReader { layout, drive, .. } = self;
        let mut out = f.debug_struct("RowReader");
        out.field("layout", layout).field("drive", drive).finish_non_exhaustive()
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

impl RowReader {
    /// Reads an extent into `buf`, which grows where it is too short.
    pub(super) fn read(&self, extent: &Extent, buf: &mut ReadBuf) -> Result<(), Refusal> {
        let out = buf.room(extent.blocks.len, &self.alloc).map_err(Refusal::OutOfMemory)?;
        self.drive.read_unchanged(&extent.blocks, out).map_err(Refusal::Read)
    }

    /// The error of a failed read, for one of those who wait for it.
    pub(super) fn error(&self, extent: &Extent, refusal: &Refusal) -> StoreError {
        match refusal {
            Refusal::OutOfMemory(err) => StoreError::NoRowMemory(*err),
            Refusal::Read(failure) => {
                let record = RecordName::Rows(self.layout.table(extent.table).name.clone());
                let Extent { blocks, .. } = extent;
                self.drive.error(failure.copy(), blocks, blocks.offset, record)
            }
        }
    }
}

/// Why a read did not bring its rows.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The system gives no memory for its bytes.
    OutOfMemory(OutOfMemory),
    Read(Failure),
}
