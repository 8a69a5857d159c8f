//! The options of a store, and the choice of how experts are read.

use std::fmt;
use std::str::FromStr;

use moeflux_core::{HostBuf, OutOfMemory};

use crate::StoreError;

/// Reader threads that suit an NVMe drive. This many reads of small ranges keep it busy; of large
/// ranges fewer are in progress at once.
pub const DEFAULT_READERS: usize = 8;

/// Allocates one slot: at least the requested number of bytes, or an error if there is no memory.
pub type SlotAlloc = Box<dyn FnMut(usize) -> Result<HostBuf, OutOfMemory> + Send>;

/// The options of a store, fixed while it is open.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// How records come into memory.
    pub mode: IoMode,
    /// Whether files that refuse [`IoMode::Direct`] are read with [`IoMode::Pread`] and a warning.
    pub may_fall_back: bool,
    /// Budget of the cache in bytes; ignored when files are mapped.
    pub cache_bytes: u64,
    /// If set, the cache shrinks while other processes need memory, and grows again up to
    /// `cache_bytes`. It shrinks down to this number of bytes, or to what one layer needs if that
    /// is more.
    pub shrinks_to: Option<u64>,
    /// Bytes that stay free while the budget may shrink. Other processes may take them before slots
    /// have been freed. See [`headroom`](crate::headroom).
    pub headroom: u64,
    /// Bytes of experts that a request pins at a time, but never fewer than `top_k` experts; `None`
    /// pins all requested experts. A pinned expert cannot be evicted.
    pub max_pinned_bytes: Option<usize>,
    /// Which expert is evicted when a slot is needed.
    pub policy: CachePolicy,
    /// Reader threads; at least one is started.
    pub n_readers: usize,
    /// Which experts are read before they are requested.
    pub prefetch: Prefetch,
    /// Whether a layer whose file is missing is accepted; its routed output is then zero.
    pub allow_missing: bool,
    /// Experts that one token uses in one layer.
    pub top_k: usize,
}

/// How records come into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// The files are mapped, and the system's page cache holds them without a bound.
    Mmap,
    /// Records are read into the slots of a bounded cache, through the
    /// system's page cache, which keeps a copy where memory is free.
    Pread,
    /// Records are read into the slots of a bounded cache and bypass the page cache (`O_DIRECT`,
    /// `F_NOCACHE`, `FILE_FLAG_NO_BUFFERING`).
    Direct,
}

/// The user's choice of how records come into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// The mode that [`resolve_io`] selects.
    #[default]
    Auto,
    /// [`IoMode::Mmap`].
    Mmap,
    /// [`IoMode::Pread`].
    Pread,
    /// [`IoMode::Direct`].
    Direct,
}

/// Which expert is evicted when a slot is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachePolicy {
    /// The expert that has been unused for longest.
    Lru,
    /// The expert whose next use is farthest, estimated from its recent uses and from the number of
    /// layers until its layer comes next.
    #[default]
    Frequency,
}

/// Which experts are read before they are requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// No experts.
    Off,
    /// The experts that the last token used in the same layer.
    LastToken,
    /// The experts that the next layer's router would choose if its input were this layer's output.
    Lookahead,
    /// [`Prefetch::Lookahead`] if trials with and without it show that it saves time.
    #[default]
    Auto,
}

impl fmt::Display for IoMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoMode::Mmap => "mmap",
            IoMode::Pread => "pread",
            IoMode::Direct => "direct",
        })
    }
}

impl FromStr for IoChoice {
    type Err = StoreError;

    fn from_str(value: &str) -> Result<IoChoice, StoreError> {
        match value {
            "auto" => Ok(IoChoice::Auto),
            "mmap" => Ok(IoChoice::Mmap),
            "pread" => Ok(IoChoice::Pread),
            "direct" => Ok(IoChoice::Direct),
            _ => Err(StoreError::UnknownIoMode { value: value.to_owned() }),
        }
    }
}

/// Resolves a choice. All experts together have `expert_bytes` bytes, and this process may use
/// `memory_bytes` bytes of memory.
///
/// [`IoChoice::Auto`] decides by memory. Experts of more than three quarters of it cannot stay in
/// the page cache. Every page that passes through the page cache costs a copy and evicts another
/// page, so they bypass it: [`IoMode::Direct`], or [`IoMode::Pread`] on systems other than Linux
/// and Windows. Smaller banks are mapped. An explicit cache budget is a bound, which mapped pages
/// do not have. It selects [`IoMode::Pread`], where the page cache serves as a second tier in
/// memory that is otherwise free.
pub fn resolve_io(
    choice: IoChoice,
    expert_bytes: u64,
    memory_bytes: u64,
    explicit_budget: bool,
) -> IoMode {
    let is_scarce = expert_bytes > memory_bytes / 4 * 3;
    match choice {
        IoChoice::Mmap => IoMode::Mmap,
        IoChoice::Pread => IoMode::Pread,
        IoChoice::Direct => IoMode::Direct,
        IoChoice::Auto if is_scarce && cfg!(any(target_os = "linux", windows)) => IoMode::Direct,
        IoChoice::Auto if is_scarce || explicit_budget => IoMode::Pread,
        IoChoice::Auto => IoMode::Mmap,
    }
}
