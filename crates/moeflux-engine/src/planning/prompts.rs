//! Memory for evaluated prompts whose sessions were given to others.

use crate::options::PromptMemory;

/// By default this much memory at most, and this part of what the expert cache and all else leave. A
/// cache that cannot have all experts leaves nothing.
const MOST_BYTES: u64 = 2 << 30;
const SHARE: u64 = 4;

/// What evaluated prompts may take where `free` bytes remain, of which activations take a part.
pub(super) fn bytes(prompts: PromptMemory, free: u64, activations: u64) -> u64 {
    let most = MOST_BYTES.min(free.saturating_sub(activations) / SHARE);
    match prompts {
        PromptMemory::Off => 0,
        PromptMemory::Bytes(bytes) => bytes,
        // A power of two, so that a plan is much the same at another time.
        PromptMemory::Planned => most.checked_ilog2().map_or(0, |log| 1 << log),
    }
}

/// What was asked for.
pub(super) fn asked(prompts: PromptMemory) -> u64 {
    match prompts {
        PromptMemory::Bytes(bytes) => bytes,
        PromptMemory::Off | PromptMemory::Planned => 0,
    }
}
