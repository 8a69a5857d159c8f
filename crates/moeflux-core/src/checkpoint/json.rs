//! Files that a checkpoint names: JSON of bounded length, paths that stay inside its directory.

use std::path::{Component, Path};

use super::FormatError;
use crate::files::read_bounded;

/// Longest JSON file that is read; the index of the largest model has 20 MB.
const MAX_JSON_BYTES: u64 = 512 << 20;

/// The bytes of a JSON file of believable length.
pub(super) fn read_json(path: &Path) -> Result<Vec<u8>, FormatError> {
    read_bounded(path, MAX_JSON_BYTES).map_err(FormatError::io(path))
}

/// Whether a path stays below where it starts, on every system.
pub(super) fn is_plain_path(path: &str) -> bool {
    let only_names = Path::new(path).components().all(|it| matches!(it, Component::Normal(_)));
    !path.is_empty() && only_names && !path.contains(['\\', ':', '\0'])
}
