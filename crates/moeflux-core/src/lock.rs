//! A lock between processes, which the system releases when its holder dies.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::private;

/// A lock that this process holds, as an empty file. The file is removed when the lock is dropped.
/// A file that a killed process left is not locked.
#[derive(Debug)]
pub struct FileLock {
    path: PathBuf,
    file: File,
}

impl FileLock {
    /// Takes the lock at `path`; `None` if another process, or another part of this one, holds it.
    /// On a file system without locks it is always granted.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn acquire(path: &Path) -> io::Result<Option<FileLock>> {
        // The last holder may remove the file between these steps. Then it is created again.
        for _ in 0..100 {
            let Some(file) = open_locked(path)? else { return Ok(None) };
            if is_at(&file, path) {
                return Ok(Some(FileLock { path: path.to_path_buf(), file }));
            }
        }
        Err(io::Error::other("the lock is no file of its own"))
    }

    /// The path of the lock's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // A lock file is empty, so a file with content is not a lock and stays. On Windows the
        // system removes the file.
        let is_ours = self.file.metadata().is_ok_and(|facts| facts.len() == 0);
        if cfg!(not(windows)) && is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens the file of a lock and locks it; `None` if another handle has the lock.
#[cfg(not(windows))]
fn open_locked(path: &Path) -> io::Result<Option<File>> {
    let file = private::open(File::options().create(true).truncate(false).write(true), path)?;
    match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(err)) if err.kind() != io::ErrorKind::Unsupported => Err(err),
        _ => Ok(Some(file)),
    }
}

/// Opens the file of a lock so that no other handle can open it; `None` if another handle has. The
/// system removes the file with its handle.
#[cfg(windows)]
fn open_locked(path: &Path) -> io::Result<Option<File>> {
    use std::os::windows::fs::OpenOptionsExt;

    /// `FILE_FLAG_DELETE_ON_CLOSE` of `CreateFileW`.
    const DELETE_ON_CLOSE: u32 = 0x0400_0000;
    /// `ERROR_SHARING_VIOLATION`.
    const IS_SHARED: Option<i32> = Some(32);
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    options.share_mode(0).custom_flags(DELETE_ON_CLOSE);
    match private::open(&mut options, path) {
        Err(err) if err.raw_os_error() == IS_SHARED => Ok(None),
        opened => opened.map(Some),
    }
}

/// Whether `path` still names the open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let identity = |facts: fs::Metadata| (facts.dev(), facts.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => identity(open) == identity(named),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_nothing_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lock");
        let lock = FileLock::acquire(&path).unwrap().expect("free");
        assert!(FileLock::acquire(&path).unwrap().is_none());
        drop(lock);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn the_file_of_a_dead_process_locks_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lock");
        fs::write(&path, "").unwrap();
        assert!(FileLock::acquire(&path).unwrap().is_some());
        assert!(!path.exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_file_with_content_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lock");
        fs::write(&path, "a user's").unwrap();
        drop(FileLock::acquire(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"a user's");
    }

    #[test]
    fn many_threads_hold_it_one_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lock");
        let n_holders = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut n_taken = 0;
                    while n_taken < 50 {
                        let Some(lock) = FileLock::acquire(&path).unwrap() else { continue };
                        assert_eq!(n_holders.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        n_holders.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(lock);
                        n_taken += 1;
                    }
                });
            }
        });
    }
}
