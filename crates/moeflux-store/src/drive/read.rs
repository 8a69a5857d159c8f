//! Reads of whole blocks, which go on where the system brings few bytes.

use std::io;

use moeflux_core::checkpoint::FormatError;
use moeflux_core::{FileIdx, SourceFile};

use super::files::Source;
use crate::StoreError;
use crate::error::RecordName;

/// Whole blocks of a file: what one read brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) file: FileIdx,
    /// Offset of the first block, in bytes.
    pub(crate) offset: u64,
    /// Bytes up to the end of the last block, which may be past the end of the file.
    pub(crate) len: usize,
    /// Bytes up to the end of what is wanted.
    pub(crate) wanted: usize,
}

impl Blocks {
    /// The blocks of `block` bytes around `len` bytes at `offset`.
    pub(crate) fn around(file: FileIdx, offset: u64, len: usize, block: usize) -> Blocks {
        let lead = offset % block as u64;
        let wanted = lead as usize + len;
        Blocks { file, offset: offset - lead, len: wanted.next_multiple_of(block), wanted }
    }
}

/// A read that did not bring what was wanted.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Bytes that arrived before.
    got: usize,
    why: Why,
}

/// Why a read did not bring what was wanted.
#[derive(Debug)]
enum Why {
    /// The file has ended.
    End,
    /// The file was written to while the model runs.
    Changed,
    /// The error of the system.
    System(io::Error),
}

impl Failure {
    /// A failure that says the same.
    pub(crate) fn copy(&self) -> Failure {
        let copy_of = |err: &io::Error| match err.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(err.kind(), err.to_string()),
        };
        let why = match &self.why {
            Why::End => Why::End,
            Why::Changed => Why::Changed,
            Why::System(err) => Why::System(copy_of(err)),
        };
        Failure { got: self.got, why }
    }
}

/// The files of a bank, and the blocks in which they are read.
#[derive(Debug)]
pub(crate) struct Drive {
    files: Vec<SourceFile>,
    source: Box<dyn Source>,
    /// Block size in bytes: reads begin and end at multiples of it.
    block: usize,
}

impl Drive {
    pub(crate) fn new(files: &[SourceFile], source: Box<dyn Source>, block: usize) -> Drive {
        Drive { files: files.to_vec(), source, block }
    }

    pub(crate) fn file(&self, file: FileIdx) -> &SourceFile {
        &self.files[file.0 as usize]
    }

    /// Reads blocks into `out`, which is as long as they are.
    pub(crate) fn read(&self, blocks: &Blocks, out: &mut [u8]) -> Result<(), Failure> {
        let mut got = 0;
        while got < blocks.wanted {
            // Reads begin at the start of a block, so a block that was read in part is read again.
            let from = got - got % self.block;
            let offset = blocks.offset + from as u64;
            match self.source.read_at(blocks.file, &mut out[from..], offset) {
                Ok(n_bytes) if from + n_bytes <= got => return Err(Failure { got, why: Why::End }),
                Ok(n_bytes) => got = from + n_bytes,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(Failure { got, why: Why::System(err) }),
            }
        }
        Ok(())
    }

    /// As [`read`](Drive::read), of a file that must not have been written to: what was read before and after would
    /// be of two models.
    pub(crate) fn read_unchanged(&self, blocks: &Blocks, out: &mut [u8]) -> Result<(), Failure> {
        self.read(blocks, out)?;
        if self.is_changed(blocks.file) {
            return Err(Failure { got: blocks.wanted, why: Why::Changed });
        }
        Ok(())
    }

    /// Whether a file was written to since it was opened.
    pub(crate) fn is_changed(&self, file: FileIdx) -> bool {
        self.source.is_changed(file)
    }

    /// The error of a read for `record`, whose bytes begin at `offset`. It is about the file if the
    /// read met its end and it was cut.
    pub(crate) fn error(
        &self,
        failure: Failure,
        blocks: &Blocks,
        offset: u64,
        record: RecordName,
    ) -> StoreError {
        let path = self.file(blocks.file).path.clone();
        let lead = (offset - blocks.offset) as usize;
        let (wanted, got) = (blocks.wanted - lead, failure.got.saturating_sub(lead));
        let source = match failure.why {
            Why::System(source) => source,
            Why::Changed => {
                let cut = self.check_len(blocks.file).err();
                return cut.unwrap_or(StoreError::Changed { path });
            }
            Why::End => {
                let cut = self.check_len(blocks.file).err();
                return cut.unwrap_or(StoreError::ShortRead { path, record, offset, wanted, got });
            }
        };
        if self.block > 1 && source.kind() == io::ErrorKind::InvalidInput {
            return StoreError::NoDirect { path, source };
        }
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref::<FormatError>());
        match inner {
            Some(FormatError::Changed { path }) => StoreError::Changed { path: path.clone() },
            Some(FormatError::Malformed { .. }) => StoreError::Malformed { record, source },
            _ => StoreError::Io { path, record, offset, wanted, got, source },
        }
    }

    /// Checks that a file still has its length and was not written to.
    pub(crate) fn check_file(&self, file: FileIdx) -> Result<(), StoreError> {
        self.check_len(file)?;
        if self.is_changed(file) {
            return Err(StoreError::Changed { path: self.file(file).path.clone() });
        }
        Ok(())
    }

    /// Checks that a file still has its length.
    pub(crate) fn check_len(&self, file: FileIdx) -> Result<(), StoreError> {
        let SourceFile { path, len, .. } = self.file(file);
        match self.source.len(file) {
            Ok(actual) if actual == *len => Ok(()),
            Ok(actual) => Err(StoreError::Resized { path: path.clone(), expected: *len, actual }),
            Err(source) => Err(StoreError::Inspect { path: path.clone(), source }),
        }
    }
}
