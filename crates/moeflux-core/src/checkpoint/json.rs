//! Reads JSON files of bounded length, and checks paths that must stay inside a directory.

use std::path::{Component, Path};

use super::FormatError;
use crate::StandIn;
use crate::files::read_bounded;

/// Length in bytes of the longest JSON file that is read; the index of the largest model has 20 MB.
const MAX_JSON_BYTES: u64 = 512 << 20;

/// Reads a JSON file of bounded length.
pub(super) fn read_json(path: &Path) -> Result<Vec<u8>, FormatError> {
    let bytes = read_bounded(path, MAX_JSON_BYTES).map_err(FormatError::io(path))?;
    if bytes.is_empty() { Err(FormatError::io(path)(StandIn::Empty.into())) } else { Ok(bytes) }
}

/// Whether a relative path stays below its start, on every system.
pub(super) fn is_plain_path(path: &str) -> bool {
    let only_names =
        Path::new(path).components().all(|component| matches!(component, Component::Normal(_)));
    !path.is_empty() && only_names && !path.contains(['\\', ':', '\0'])
}
