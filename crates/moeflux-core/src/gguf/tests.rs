//! Tests on whole GGUF files: damaged ones and split ones. Families test their architectures.

mod headers;
mod sets;
mod small;
mod writer;

use std::ops::Deref;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use self::small::dialects;
use self::writer::GgufWriter;
use crate::checkpoint::{Checkpoint, FormatError};

/// Opens a checkpoint as one of the architecture of these tests.
fn open_checkpoint(path: &Path) -> Result<Checkpoint, FormatError> {
    Checkpoint::open(path, &dialects())
}

/// A checkpoint whose file is there as long as it is.
struct Opened {
    checkpoint: Checkpoint,
    _dir: TempDir,
}

impl Deref for Opened {
    type Target = Checkpoint;

    fn deref(&self) -> &Checkpoint {
        &self.checkpoint
    }
}

/// Writes a file and opens it.
fn open(file: &GgufWriter) -> Result<Opened, FormatError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    file.write(&path);
    Ok(Opened { checkpoint: open_checkpoint(&path)?, _dir: dir })
}

/// The message for a path without its folder.
fn message(dir: &Path, result: Result<Checkpoint, FormatError>) -> String {
    let text = result.expect_err("refused").to_string();
    assert!(!text.contains('\n'), "{text}");
    text.replace(&format!("{}/", dir.display()), "").replace(&dir.display().to_string(), ".")
}

/// The message for a file that is refused.
#[track_caller]
fn refused(file: &GgufWriter) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("m.gguf");
    file.write(&path);
    message(dir.path(), open_checkpoint(&path))
}
