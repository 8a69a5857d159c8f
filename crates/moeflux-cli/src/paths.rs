//! Where the binary keeps files of its own.

use std::path::PathBuf;

use anyhow::Result;

use crate::error::UsageError;

/// `$MOEFLUX_CACHE`, else the system's place for caches.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    let dir = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    if let Some(dir) = dir("MOEFLUX_CACHE") {
        return Ok(dir);
    }
    let base = if cfg!(target_os = "windows") {
        dir("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        dir("HOME").map(|it| it.join("Library/Caches"))
    } else {
        dir("XDG_CACHE_HOME").or_else(|| dir("HOME").map(|it| it.join(".cache")))
    };
    let base = base.ok_or_else(|| {
        UsageError(String::from(
            "no home directory: set MOEFLUX_CACHE to a directory for the demo model",
        ))
    })?;
    Ok(base.join("moeflux"))
}

/// Where a GPU's measurements are kept; nowhere where there is no place for
/// caches.
pub(crate) fn gpu_tuning() -> Option<PathBuf> {
    cache_dir().ok().map(|it| it.join("gpu"))
}
