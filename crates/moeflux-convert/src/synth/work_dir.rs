//! The directory of a synthetic checkpoint while it is made.

use std::fs;
use std::path::{Path, PathBuf};

use moeflux_core::WriteError;

use super::error::SynthError;
use crate::files::sync_dir;

/// The directory in which the files of `out` are made, before it gets that name.
pub fn partial_of(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    out.with_file_name(name)
}

/// A directory in the making; removed where it is dropped before its end.
pub(super) struct WorkDir {
    pub(super) path: PathBuf,
    is_published: bool,
}

/// Marks a working directory as this program's own.
pub(super) const MARKER: &str = "moeflux.synth.partial";

/// The file in `out` that says that it is not whole, for a moment after it has got its name.
pub fn marker_of(out: &Path) -> PathBuf {
    out.join(MARKER)
}

impl WorkDir {
    /// The path of the working directory, where nothing is, or is left.
    pub(super) fn claim(out: &Path) -> Result<PathBuf, SynthError> {
        let path = partial_of(out);
        if path.exists() {
            // A run that was killed before it wrote the marker left nothing else.
            let is_empty = || path.read_dir().is_ok_and(|mut entries| entries.next().is_none());
            if !path.join(MARKER).is_file() && !is_empty() {
                return Err(SynthError::InTheWay { path });
            }
            fs::remove_dir_all(&path).map_err(WriteError::at(&path))?;
        }
        Ok(path)
    }

    pub(super) fn create(path: PathBuf) -> Result<WorkDir, SynthError> {
        fs::create_dir_all(&path).map_err(WriteError::at(&path))?;
        let dir = WorkDir { path, is_published: false };
        fs::write(dir.path.join(MARKER), "").map_err(WriteError::at(&dir.path))?;
        Ok(dir)
    }

    pub(super) fn publish(mut self, out: &Path) -> Result<(), SynthError> {
        // Windows puts no directory in the place of another.
        if cfg!(windows) && out.is_dir() {
            fs::remove_dir(out).map_err(WriteError::at(out))?;
        }
        fs::rename(&self.path, out).map_err(WriteError::at(out))?;
        self.is_published = true;
        // Only now: a run that is killed before it leaves a directory that the next one knows.
        let marker = marker_of(out);
        fs::remove_file(&marker).map_err(WriteError::at(&marker))?;
        let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
        Ok(sync_dir(parent.unwrap_or(Path::new(".")))?)
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if !self.is_published {
            // Nothing to do about a second failure; the name says what it is.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
