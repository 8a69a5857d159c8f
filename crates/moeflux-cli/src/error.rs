//! The binary's own errors.

/// A command line, a variable or an input that no command can work with: the exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);
