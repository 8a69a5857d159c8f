//! Where a server keeps evaluated prompts by default.

use std::path::Path;

use moeflux_core::private;
use moeflux_engine::{MIN_PROMPT_TOKENS, PromptCacheOptions};
use moeflux_hub::free_bytes_at;

use crate::paths::cache_dir;
use crate::report::note;

/// Bytes of a folder that the user names, where no size is said.
pub(crate) const DEFAULT_BYTES: u64 = 4 << 30;

/// Most bytes of the default folder, and the part of what it and the drive have room for.
const MOST_BYTES: u64 = 8 << 30;
const SHARE: u64 = 4;

/// The folder for prompts in the cache's. Where it cannot be made, a warning says so.
pub(crate) fn default_options(asked: Option<u64>) -> Option<PromptCacheOptions> {
    let Ok(cache) = cache_dir() else {
        note(false, "warning: evaluated prompts are not kept on the drive: set MOEFLUX_CACHE");
        return None;
    };
    let dir = cache.join("prompts");
    if let Err(err) = private::create_own_dir(&dir) {
        let dir = dir.display();
        note(
            false,
            &format!(
                "warning: evaluated prompts are not kept on the drive: cannot make {dir}: {err} \
                 (--prompt-cache names another folder)"
            ),
        );
        return None;
    }
    let max_bytes = asked.unwrap_or_else(|| default_bytes(&dir));
    Some(PromptCacheOptions { dir, max_bytes, min_tokens: MIN_PROMPT_TOKENS })
}

/// A part of what is free, what the folder has counted as free: it stays the same while the folder
/// fills.
fn default_bytes(dir: &Path) -> u64 {
    let files = dir.read_dir().into_iter().flatten().flatten();
    let held: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    let free = free_bytes_at(dir).unwrap_or(u64::MAX);
    share_of(free.saturating_add(held))
}

fn share_of(room: u64) -> u64 {
    MOST_BYTES.min(room / SHARE).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_size_is_a_part_of_what_is_free_and_bounded() {
        assert_eq!([0, 4 << 30, 400 << 30, u64::MAX].map(share_of), [1, 1 << 30, 8 << 30, 8 << 30]);
        let dir = tempfile::tempdir().unwrap();
        assert!((1..=MOST_BYTES).contains(&default_bytes(dir.path())));
    }
}
