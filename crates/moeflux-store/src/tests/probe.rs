//! Stands between readers and files: sees what is read, delays it, spoils it.

use std::io;
use std::sync::{Arc, Condvar, Mutex};

use moeflux_core::FileIdx;

use crate::files::{Files, Source};

/// Spoils one read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The call fails.
    Error(io::ErrorKind),
    /// The call says that the file ends here.
    End,
}

/// What a test holds in its hands.
#[derive(Debug, Default)]
pub(super) struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_held: bool,
    /// Files read from, in the order of the calls.
    reads: Vec<(FileIdx, u64)>,
    /// Applied to the next reads of a file, each once.
    faults: Vec<(FileIdx, Fault)>,
    /// Bytes that one call may bring.
    chunk_bytes: Option<usize>,
    /// What reads and their memory must be multiples of, but for the lengths
    /// that a fault left.
    block: Option<usize>,
}

impl Control {
    /// Reads begin and do not end until `release`.
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

    /// Refuses what a file read directly, in blocks of so many bytes, would.
    pub(super) fn expect_blocks(&self, block: usize) {
        self.state.lock().unwrap().block = Some(block);
    }

    /// Waits until that many reads have begun, and returns all that have.
    pub(super) fn begun(&self, n_reads: usize) -> Vec<(FileIdx, u64)> {
        let state = self.state.lock().unwrap();
        let state = self.changed.wait_while(state, |it| it.reads.len() < n_reads).unwrap();
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
            if parts.iter().any(|it| !it.is_multiple_of(block)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        self.control.changed.notify_all();
        let mut state = self.control.changed.wait_while(state, |it| it.is_held).unwrap();
        if let Some(found) = state.faults.iter().position(|it| it.0 == file) {
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
}
