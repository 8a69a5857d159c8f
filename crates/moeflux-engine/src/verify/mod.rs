//! Whether a model's files are still what was written: compared with the checksums of packed
//! containers and of the Hub's cache, and looked through for what no intact model has.

mod container;
mod hub_cache;
mod weights;

use std::path::{Path, PathBuf};

use moeflux_core::checkpoint::{Checkpoint, CheckpointKind, Container};
use serde::Serialize;

use crate::error::EngineError;
use crate::load::LoadError;
use crate::pack::WriteError;

/// What was checked, and what is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// The model's directory.
    pub root: PathBuf,
    /// What the files are compared with, and what else was looked at; a sentence each.
    pub checked: Vec<String>,
    /// Files that were read.
    pub n_files: usize,
    /// Bytes that were read.
    pub n_bytes: u64,
    /// Every damage found; empty for a model that is intact as far as was checked.
    pub damage: Vec<Damage>,
}

/// Something wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// The tensor or the expert, where it is known.
    pub part: Option<String>,
    /// What is wrong.
    pub what: String,
}

/// How far a verification is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress<'a> {
    /// The file that is read.
    pub file: &'a Path,
    /// Bytes read so far.
    pub done: u64,
    /// All of them, as far as is known.
    pub total: u64,
}

/// Learns how far a verification is.
pub type OnVerifyProgress<'a> = dyn FnMut(VerifyProgress<'_>) + 'a;

/// Reads the files of the model at `path`, a directory or a file of one, and says what is wrong
/// with them.
///
/// # Errors
/// Where there is no model at all, or none of a known family.
pub fn verify(
    path: &Path,
    progress: &mut OnVerifyProgress<'_>,
) -> Result<Verification, EngineError> {
    let root = directory_of(path);
    let mut run = Run::new(root.clone(), progress);
    let n_hashed = hub_cache::verify(&root, &mut run);
    let is_packed = root.join(Container::FILE).is_file();
    if is_packed {
        container::verify(&root, &mut run)?;
    }
    // Damaged files need not open; that they do not is no news then.
    let opened = match Checkpoint::open(path) {
        Ok(checkpoint) => checkpoint,
        Err(_) if !run.found.damage.is_empty() => return Ok(run.found),
        Err(err) if n_hashed > 0 || is_packed => {
            run.damage(&root, None, err.to_string());
            return Ok(run.found);
        }
        Err(err) => return Err(LoadError::from(err).into()),
    };
    match weights::verify(&opened, &mut run) {
        Ok(()) => {}
        Err(_) if !run.found.damage.is_empty() => return Ok(run.found),
        Err(err) => return Err(err),
    }
    if n_hashed == 0 && !is_packed {
        let format = match opened.kind() {
            CheckpointKind::Prepared => "prepared directories have",
            _ => "safetensors have",
        };
        run.checked(format!(
            "nothing against checksums: {format} none, so changed numbers are not found"
        ));
    }
    Ok(run.found)
}

/// The directory of a model that is named by one of its files.
fn directory_of(path: &Path) -> PathBuf {
    if !path.is_file() {
        return path.to_path_buf();
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// A verification under way.
struct Run<'a, 'p> {
    found: Verification,
    total: u64,
    progress: &'a mut OnVerifyProgress<'p>,
}

impl<'a, 'p> Run<'a, 'p> {
    fn new(root: PathBuf, progress: &'a mut OnVerifyProgress<'p>) -> Run<'a, 'p> {
        let found = Verification { root, ..Verification::default() };
        Run { found, total: 0, progress }
    }

    fn checked(&mut self, what: impl Into<String>) {
        self.found.checked.push(what.into());
    }

    fn damage(&mut self, file: &Path, part: Option<String>, what: impl Into<String>) {
        self.found.damage.push(Damage { file: file.to_path_buf(), part, what: what.into() });
    }

    /// A file that could not be read.
    fn unreadable(&mut self, file: &Path, err: &WriteError) {
        let what = match err {
            WriteError::Io { source, .. } => source.to_string(),
            err => err.to_string(),
        };
        self.damage(file, None, what);
    }

    fn expect(&mut self, n_bytes: u64) {
        self.total += n_bytes;
    }

    fn read(&mut self, file: &Path, n_bytes: u64) {
        self.found.n_bytes += n_bytes;
        let done = self.found.n_bytes;
        (self.progress)(VerifyProgress { file, done, total: self.total.max(done) });
    }
}

#[cfg(test)]
mod tests;
