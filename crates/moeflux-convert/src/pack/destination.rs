//! The directory that a container is packed into: what may be there, and what an earlier packing left.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use moeflux_core::checkpoint::companions::TEMPLATE_FOLDER;
use moeflux_core::checkpoint::{Checkpoint, Container};

use super::companions::COMPANIONS;
use super::journal::{Journal, Loaded};
use super::layout::FOLDER;
use crate::error::PackError;
use crate::files::{PARTIAL, lock_directory, sync_dir};
use moeflux_core::WriteError;

/// Creates the destination and keeps others out of it until the result is
/// dropped.
pub(super) fn claim(checkpoint: &Checkpoint, dst: &Path) -> Result<File, PackError> {
    fs::create_dir_all(dst).map_err(WriteError::at(dst))?;
    let path = || dst.to_path_buf();
    let same = dst.canonicalize().ok() == checkpoint.root().canonicalize().ok();
    if same {
        return Err(PackError::SameDirectory { path: path() });
    }
    let lock = lock_directory(dst).map_err(WriteError::at(dst))?;
    lock.ok_or_else(|| PackError::Busy { path: path() })
}

/// The journal to continue, or `new`. Changes nothing.
///
/// A journal says that a packing did not end, whatever else is there: it is
/// written first and removed last.
pub(super) fn journal_of(dst: &Path, is_forced: bool, new: Journal) -> Result<Journal, PackError> {
    let is_packed = dst.join(Container::FILE).exists();
    let journal = Journal::load(dst)?;
    match journal {
        _ if is_forced && (is_packed || journal != Loaded::Missing) => Ok(new),
        Loaded::Whole(journal) => {
            journal.check_same(dst, &new)?;
            Ok(journal)
        }
        Loaded::Version(version) => Err(PackError::Differs {
            path: dst.join(Container::JOURNAL),
            what: format!("the journal's version is {version}"),
        }),
        Loaded::Missing | Loaded::Damaged if is_packed => {
            Err(PackError::AlreadyPacked { path: dst.to_path_buf() })
        }
        // Without a list of what is whole, all is written again.
        Loaded::Damaged => Ok(new),
        Loaded::Missing => {
            require_empty_but(dst, &[&partial(Container::JOURNAL)])?;
            Ok(new)
        }
    }
}

/// Refuses a directory that holds anything.
pub(crate) fn require_empty(dst: &Path) -> Result<(), PackError> {
    require_empty_but(dst, &[])
}

fn require_empty_but(dst: &Path, allowed: &[&str]) -> Result<(), PackError> {
    for entry in dst.read_dir().map_err(WriteError::at(dst))? {
        let name = entry.map_err(WriteError::at(dst))?.file_name();
        if !allowed.iter().any(|known| name == *known) {
            return Err(PackError::NotEmpty { path: dst.to_path_buf() });
        }
    }
    Ok(())
}

/// What an earlier packing left that is of no use to one which continues a journal.
pub(super) struct Remains {
    files: Vec<PathBuf>,
    /// Of all of them together.
    pub(super) n_bytes: u64,
}

impl Remains {
    /// Lists them: files that were not whole when a packing ended, a container's description, and the
    /// files that it lists and the journal does not.
    pub(super) fn find(dst: &Path, journal: &Journal) -> Remains {
        let container = dst.join(Container::FILE);
        let mut files = partial_files(dst);
        if let Some(old) = old_container(&container) {
            let unknown = old.files.iter().filter(|file| journal.find(&file.path).is_none());
            files.extend(unknown.map(|file| dst.join(&file.path)));
        }
        // Last, so that what is listed there can still be found if this is interrupted.
        files.push(container);
        files.retain(|path| path.is_file());
        let sizes = files.iter().filter_map(|path| path.metadata().ok());
        let n_bytes = sizes.map(|facts| facts.len()).sum();
        Remains { files, n_bytes }
    }

    pub(super) fn remove(self, dst: &Path) -> Result<(), PackError> {
        if self.files.is_empty() {
            return Ok(());
        }
        for path in &self.files {
            match fs::remove_file(path) {
                // The journal has got its name since.
                Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                done => done.map_err(WriteError::at(path))?,
            }
        }
        Ok(sync_dir(dst)?)
    }
}

fn old_container(path: &Path) -> Option<Container> {
    let bytes = fs::read(path).ok()?;
    Container::from_slice(path, &bytes).ok()
}

/// Files of a container that a killed process was writing.
fn partial_files(dst: &Path) -> Vec<PathBuf> {
    let own = [
        Container::FILE,
        Container::JOURNAL,
        Container::RESIDENT,
        Container::TOWER,
        Container::MMPROJ,
    ];
    let own = own.iter().chain(&COMPANIONS).map(|name| dst.join(partial(name)));
    let folders = [FOLDER, TEMPLATE_FOLDER].map(|folder| dst.join(folder).read_dir());
    let inner = folders.into_iter().flatten().flatten().flatten().map(|entry| entry.path());
    let is_partial =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == &PARTIAL[1..]);
    own.chain(inner.filter(is_partial)).collect()
}

fn partial(name: &str) -> String {
    format!("{name}{PARTIAL}")
}
