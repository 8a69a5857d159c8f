//! The binary's own errors.

use std::io;

/// A command line, a variable or an input that no command can work with: the exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// Standard output takes nothing more: its drive is full, or its reader is gone.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub(crate) struct OutputError(#[from] io::Error);

impl OutputError {
    /// Whether the reader has ended, as `head` does after its lines: no reason to complain.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}
