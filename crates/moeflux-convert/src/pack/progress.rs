//! How far packing is.

/// What packing is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackStage {
    /// Checks what an earlier run has finished.
    Resume,
    /// Writes.
    Write,
    /// Reads back what it wrote.
    Verify,
}

/// How far packing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackProgress<'a> {
    /// What it is at.
    pub stage: PackStage,
    /// The file, below the destination.
    pub file: &'a str,
    /// Bytes written, read back or found finished so far.
    pub done: u64,
    /// All of them.
    pub total: u64,
}

/// Is called with the progress of packing.
pub type OnPackProgress<'a> = dyn FnMut(PackProgress<'_>) + 'a;
