//! A source between readers and files that records, delays and spoils reads.

use std::io;
use std::sync::{Arc, Condvar, Mutex};

use moeflux_core::FileIdx;

use crate::drive::{Files, Source};

/// A fault of one read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The call fails.
    Error(io::ErrorKind),
    /// The call reports the end of the file.
    End,
}

/// Controls a probe from a test.
#[derive(Debug, Default)]
pub(super) struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_held: bool,
    /// The reads, in the order of their calls: file and offset.
    reads: Vec<(FileIdx, u64)>,
    /// Faults for the next reads of a file; each occurs once.
    faults: Vec<(FileIdx, Fault)>,
    /// The most bytes that one call returns.
    chunk_bytes: Option<usize>,
    /// Block size of direct reads in bytes; `None` allows all reads. Offset, length and address of
    /// each read must be multiples of it.
    block: Option<usize>,
}

impl Control {
    /// Reads that begin do not end until `release`.
    pub(super) fn hold(&self) {
        self.state.lock().unwrap().is_held = true;
    }

    pub(super) fn release(&self) {
        self.state.lock().unwrap().is_held = false;
        self.changed.notify_all();
    }

    pub(super) fn spoil(&self, file: u32, fault: Fault) {
        self.state.lock().unwrap().faults.push((FileIdx(file), fault));
    }

    pub(super) fn limit(&self, chunk_bytes: usize) {
        self.state.lock().unwrap().chunk_bytes = Some(chunk_bytes);
    }

    /// Checks that reads are direct reads in blocks of `block` bytes.
    pub(super) fn expect_blocks(&self, block: usize) {
        self.state.lock().unwrap().block = Some(block);
    }

    /// Waits until `n_reads` reads have begun, and returns all that have.
    pub(super) fn begun(&self, n_reads: usize) -> Vec<(FileIdx, u64)> {
        let state = self.state.lock().unwrap();
        let state = self.changed.wait_while(state, |state| state.reads.len() < n_reads).unwrap();
        state.reads.clone()
    }
}

#[derive(Debug)]
pub(super) struct Probe {
    files: Files,
    control: Arc<Control>,
}

impl Probe {
    pub(super) fn new(files: Files, control: Arc<Control>) -> Probe {
        Probe { files, control }
    }
}

impl Source for Probe {
    fn read_at(&self, file: FileIdx, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.control.state.lock().unwrap();
        state.reads.push((file, offset));
        if let Some(block) = state.block {
            let parts = [usize::try_from(offset).unwrap(), buf.as_ptr().addr(), buf.len()];
            if parts.iter().any(|part| !part.is_multiple_of(block)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        self.control.changed.notify_all();
        let mut state = self.control.changed.wait_while(state, |state| state.is_held).unwrap();
        if let Some(found) = state.faults.iter().position(|fault| fault.0 == file) {
            return match state.faults.remove(found).1 {
                Fault::Error(kind) => Err(kind.into()),
                Fault::End => Ok(0),
            };
        }
        let len = state.chunk_bytes.unwrap_or(usize::MAX).min(buf.len());
        drop(state);
        self.files.read_at(file, &mut buf[..len], offset)
    }

    fn len(&self, file: FileIdx) -> io::Result<u64> {
        self.files.len(file)
    }

    fn is_changed(&self, file: FileIdx) -> bool {
        self.files.is_changed(file)
    }
}
