//! One verification: what was found, and how far it is.

use std::path::{Path, PathBuf};

use moeflux_core::WriteError;
use serde::Serialize;

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

/// A verification under way.
pub(crate) struct Run<'a, 'p> {
    pub(super) found: Verification,
    pub(super) total: u64,
    pub(super) progress: &'a mut OnVerifyProgress<'p>,
}

impl<'a, 'p> Run<'a, 'p> {
    pub(super) fn new(root: PathBuf, progress: &'a mut OnVerifyProgress<'p>) -> Run<'a, 'p> {
        let found = Verification { root, ..Verification::default() };
        Run { found, total: 0, progress }
    }

    pub(super) fn checked(&mut self, what: impl Into<String>) {
        self.found.checked.push(what.into());
    }

    pub(super) fn damage(&mut self, file: &Path, part: Option<String>, what: impl Into<String>) {
        self.found.damage.push(Damage { file: file.to_path_buf(), part, what: what.into() });
    }

    /// A file that could not be read.
    pub(super) fn unreadable(&mut self, file: &Path, err: &WriteError) {
        let what = match err {
            WriteError::Io { source, .. } => source.to_string(),
            err => err.to_string(),
        };
        self.damage(file, None, what);
    }

    pub(super) fn expect(&mut self, n_bytes: u64) {
        self.total += n_bytes;
    }

    pub(super) fn read(&mut self, file: &Path, n_bytes: u64) {
        self.found.n_bytes += n_bytes;
        let done = self.found.n_bytes;
        (self.progress)(VerifyProgress { file, done, total: self.total.max(done) });
    }
}
