//! How a store is to work, and the gate that chooses how experts are read.

use std::fmt;
use std::str::FromStr;

use moeflux_core::{HostBuf, OutOfMemory};

use crate::StoreError;

/// Reader threads that suit an NVMe drive: as many reads of small ranges keep
/// it busy, and of large ones fewer are in progress at once.
pub const DEFAULT_READERS: usize = 8;

/// Gives the memory of one slot: at least as many bytes as it is asked for, or an error where there
/// is none.
pub type SlotAlloc = Box<dyn FnMut(usize) -> Result<HostBuf, OutOfMemory> + Send>;

/// How a store works; fixed for its life.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// How records come into memory.
    pub mode: IoMode,
    /// Whether files that refuse [`IoMode::Direct`] are read as by
    /// [`IoMode::Pread`], with a warning.
    pub may_fall_back: bool,
    /// Bytes that the cache may take; not looked at when files are mapped.
    pub cache_bytes: u64,
    /// Where present, the cache shrinks down to so many bytes, or what one layer
    /// needs, while others need memory, and grows again up to `cache_bytes`.
    pub shrinks_to: Option<u64>,
    /// Bytes that stay free while the budget may shrink: what others may take before slots have
    /// been given back. See [`headroom`](crate::headroom).
    pub headroom: u64,
    /// Bytes of experts that a request pins at a time, and never less than `top_k` of them; all
    /// that were asked for where absent. A pinned expert cannot be evicted.
    pub max_pinned_bytes: Option<usize>,
    /// Which expert leaves when a slot is needed.
    pub policy: CachePolicy,
    /// Threads that read; at least one runs.
    pub n_readers: usize,
    /// Which experts are read before they are asked for.
    pub prefetch: Prefetch,
    /// Whether a layer whose file is missing counts as a layer that adds nothing.
    pub allow_missing: bool,
    /// Experts that one token uses in one layer.
    pub top_k: usize,
}

/// How records come into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// The files are mapped and the system's page cache keeps them: no bound.
    Mmap,
    /// Records are read into the slots of a bounded cache, through the
    /// system's page cache, which keeps a copy where memory is free.
    Pread,
    /// As [`IoMode::Pread`], past the page cache (`O_DIRECT`, `F_NOCACHE`,
    /// `FILE_FLAG_NO_BUFFERING`).
    Direct,
}

/// How records shall come into memory, as a user says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// Whatever [`gate`] finds.
    #[default]
    Auto,
    /// [`IoMode::Mmap`].
    Mmap,
    /// [`IoMode::Pread`].
    Pread,
    /// [`IoMode::Direct`].
    Direct,
}

/// Which expert leaves when a slot is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachePolicy {
    /// The one unused for longest.
    Lru,
    /// The one whose next use is farthest, as how often it was used of late and
    /// the way to its layer tell.
    #[default]
    Frequency,
}

/// Which experts are read before they are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// None.
    Off,
    /// Those that the last token used in the same layer.
    LastToken,
    /// Those that the next layer's router would choose if it saw this layer's
    /// output.
    Lookahead,
    /// [`Prefetch::Lookahead`] where it saves time, by trying with and without.
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

/// Resolves a choice for experts of `expert_bytes` in all, on a machine where
/// this process may use `memory_bytes`.
///
/// Memory decides. Experts of more than three quarters of it cannot stay in
/// the page cache, and every page that passes through costs a copy and pushes
/// out another, so they are read past it: [`IoMode::Direct`]. Smaller banks are
/// mapped. An explicit cache budget is a bound, and mapped pages know none: it
/// selects [`IoMode::Pread`], where the page cache serves as a second tier of
/// memory that nobody else wants.
pub fn gate(
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
