//! Where prompts are kept, and how many.

use std::path::PathBuf;

/// Where snapshots of prompts are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptCacheOptions {
    /// The directory; created where it is missing, for its owner only. All
    /// snapshots in it are for their owner only.
    pub dir: PathBuf,
    /// Bytes of all snapshots together; the least recently used leave.
    pub max_bytes: u64,
}
