//! Where the binary keeps files of its own.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use moeflux_core::files::check_target;
use moeflux_core::private;

use crate::error::UsageError;

/// `$MOEFLUX_CACHE`, else the system's place for caches.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    let dir =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = dir("MOEFLUX_CACHE") {
        return Ok(dir);
    }
    let base = if cfg!(target_os = "windows") {
        dir("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        dir("HOME").map(|dir| dir.join("Library/Caches"))
    } else {
        dir("XDG_CACHE_HOME").or_else(|| dir("HOME").map(|dir| dir.join(".cache")))
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
pub fn gpu_tuning() -> Option<PathBuf> {
    cache_dir().ok().map(|dir| dir.join("gpu"))
}

/// The file of lines that were typed into `chat`; `None` where the system has no place for it. Created
/// for its owner only; one that an earlier version kept among the caches is moved here.
pub(crate) fn history() -> io::Result<Option<PathBuf>> {
    let old = cache_dir().ok().map(|dir| dir.join("history"));
    match state_dir(|name| std::env::var_os(name)) {
        Some(dir) => history_in(&dir, old.as_deref()).map(Some),
        None => Ok(None),
    }
}

/// The file of the keys of `moeflux keys`, whose directory is made for its owner only.
pub(crate) fn keys_file() -> Result<PathBuf> {
    let dir = state_dir(|name| std::env::var_os(name)).ok_or_else(|| {
        UsageError(String::from("no home directory: name a file of keys with --keys FILE"))
    })?;
    private::create_own_dir(&dir)
        .with_context(|| format!("cannot make the directory {}", dir.display()))?;
    Ok(dir.join("keys.json"))
}

fn history_in(dir: &Path, old: Option<&Path>) -> io::Result<PathBuf> {
    private::create_own_dir(dir)?;
    let file = dir.join("history");
    if let Some(old) = old.filter(|old| old.is_file() && !file.exists())
        && fs::rename(old, &file).is_err()
    {
        // It may be on another drive.
        let lines = fs::read(old)?;
        fs::write(open(&file).map(|_| &file)?, lines)?;
        fs::remove_file(old)?;
    }
    open(&file).map(|_| file)
}

fn open(file: &Path) -> io::Result<File> {
    // A pipe of that name would wait for a reader.
    check_target(file)?;
    private::open(File::options().create(true).append(true), file)
}

/// The system's directory for what a program remembers: `$XDG_STATE_HOME/moeflux`, else
/// `~/.local/state/moeflux`; `~/Library/Application Support/moeflux` on macOS and
/// `%LOCALAPPDATA%\moeflux` on Windows.
fn state_dir(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // Relative ones are to be ignored, says the XDG Base Directory Specification.
    let dir = |name| variable(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let base = if cfg!(target_os = "windows") {
        dir("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        dir("HOME").map(|home| home.join("Library/Application Support"))
    } else {
        dir("XDG_STATE_HOME").or_else(|| dir("HOME").map(|home| home.join(".local/state")))
    };
    Some(base?.join("moeflux"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_state_directory_is_that_of_the_specification() {
        let state = |own: &'static str, home: &'static str| {
            let value = move |name: &str| match name {
                "XDG_STATE_HOME" => Some(own),
                "HOME" => Some(home),
                _ => None,
            };
            state_dir(|name| value(name).filter(|value| !value.is_empty()).map(OsString::from))
        };
        assert_eq!(state("/s", "/h").unwrap(), Path::new("/s/moeflux"));
        for own in ["", "relative"] {
            assert_eq!(state(own, "/h").unwrap(), Path::new("/h/.local/state/moeflux"));
        }
        assert_eq!(state("", ""), None);
    }

    #[test]
    fn an_old_history_moves_once() {
        let dir = tempfile::tempdir().unwrap();
        let (state, old) = (dir.path().join("state/moeflux"), dir.path().join("history"));
        fs::write(&old, "first\n").unwrap();
        let file = history_in(&state, Some(&old)).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"first\n");
        assert!(!old.exists());
        fs::write(&old, "of an older version that ran again\n").unwrap();
        history_in(&state, Some(&old)).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"first\n");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!([mode(&file), mode(&state)], [0o600, 0o700]);
        }
    }
}
