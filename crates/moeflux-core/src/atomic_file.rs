//! Files that get their name only when they are complete.
//!
//! Until then a file is called `NAME.PROCESS-N.partial`, and its writer holds a lock on it. If a
//! process is killed, its partial file remains without a lock. Other processes remove partial files
//! that have no lock. They do not rely on the process id: the system reuses ids, and a directory
//! can be shared with other hosts.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{files, private};

/// Which users may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only its owner.
    Private,
    /// All users that the umask allows.
    Shared,
}

/// Whether a file must survive a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The file is written to the drive before it gets its name.
    Synced,
    /// After a loss of power the file may be damaged, which its reader must detect.
    Cached,
}

/// The end of the names of files that are not complete.
const SUFFIX: &str = ".partial";

/// On a file system without locks, a partial file that was not written to for this long is taken to
/// belong to a dead process.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A file that is being written. If it is dropped before it is published, it is removed.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    is_published: bool,
}

impl AtomicFile {
    /// Creates a partial file for `path`, in the same directory.
    ///
    /// # Errors
    /// If no file can be created there, or if `path` exists and is not a regular file.
    pub fn create(path: &Path, access: Access) -> io::Result<AtomicFile> {
        files::check_target(path)?;
        static N_CREATED: AtomicU32 = AtomicU32::new(0);
        loop {
            let nth = N_CREATED.fetch_add(1, Ordering::Relaxed);
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(format!(".{}-{nth}{SUFFIX}", std::process::id()));
            let partial = path.with_file_name(name);
            let mut options = File::options();
            options.read(true).write(true).create_new(true);
            let created = match access {
                Access::Private => private::open(&mut options, &partial),
                Access::Shared => options.open(&partial),
            };
            let file = match created {
                // The name belongs to a dead process with the same id, or to a process of another
                // host.
                Err(err) if err.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created?,
            };
            // Another process may have removed the file before it was locked.
            let is_ours = !matches!(file.try_lock(), Err(TryLockError::WouldBlock));
            if is_ours && partial.exists() {
                let path = path.to_path_buf();
                return Ok(AtomicFile { path, partial, file, is_published: false });
            }
        }
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The present path of the file, which ends with `.partial`.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// Gives the file its name. An existing file of that name is replaced.
    ///
    /// # Errors
    /// The errors of the file system. Then an existing file keeps the name.
    pub fn publish(mut self, durability: Durability) -> io::Result<()> {
        if durability == Durability::Synced {
            self.file.sync_all()?;
        }
        fs::rename(&self.partial, &self.path)?;
        self.is_published = true;
        match durability {
            Durability::Synced => sync_dir(directory_of(&self.path)),
            Durability::Cached => Ok(()),
        }
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.is_published {
            // If this fails too, another process removes the file later.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Writes a file completely or not at all.
///
/// # Errors
/// The errors of the file system. Then an existing file keeps the name.
pub fn write(path: &Path, bytes: &[u8], access: Access, durability: Durability) -> io::Result<()> {
    let mut file = AtomicFile::create(path, access)?;
    file.write_all(bytes)?;
    file.publish(durability)
}

/// Writes the names in a directory to the drive.
///
/// # Errors
/// The errors of the file system.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(path)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// The directory of the file that a path names.
pub fn directory_of(path: &Path) -> &Path {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    dir.unwrap_or(Path::new("."))
}

/// Removes partial files of `path` that dead processes left.
pub fn remove_abandoned(path: &Path) {
    let target = path.file_name().unwrap_or_default().to_string_lossy();
    remove_abandoned_in(directory_of(path), |name| name == target);
}

/// Removes partial files that dead processes left in a directory. `is_ours` accepts the final names
/// of files to remove. Files that cannot be removed stay.
pub fn remove_abandoned_in(dir: &Path, is_ours: impl Fn(&str) -> bool) {
    let Ok(entries) = dir.read_dir() else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_partial = target_of(&name.to_string_lossy()).is_some_and(&is_ours);
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        // The lock is held until the file is removed. A writer that has just created the file then
        // creates another one.
        if is_partial
            && is_file
            && let Some(_lock) = claim_abandoned(&entry.path())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The final name of a file whose partial name is `name`: `NAME.PROCESS-N.partial` or
/// `NAME.PROCESS.partial`.
fn target_of(name: &str) -> Option<&str> {
    let (target, writer) = name.strip_suffix(SUFFIX)?.rsplit_once('.')?;
    let (process, nth) = writer.split_once('-').unwrap_or((writer, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(process) && is_number(nth) && !target.is_empty()).then_some(target)
}

/// Opens a partial file, and locks it where the file system has locks; `None` if a process may be
/// writing it.
fn claim_abandoned(path: &Path) -> Option<File> {
    // Some network drives lock only files that are open for writing.
    let file = File::options().read(true).write(true).open(path).ok()?;
    let is_abandoned = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => {
            let changed = file.metadata().and_then(|facts| facts.modified()).ok();
            changed.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > ABANDONED)
        }
    };
    is_abandoned.then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let names = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A socket represents devices, which only an administrator can create.
    #[cfg(unix)]
    #[test]
    fn what_is_no_file_keeps_its_place() {
        use std::os::unix::fs::FileTypeExt;

        let dir = tempfile::tempdir().unwrap();
        let (socket, link) = (dir.path().join("socket"), dir.path().join("link"));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        for path in [&socket, &link, &dir.path().to_path_buf()] {
            let refused = write(path, b"new", Access::Shared, Durability::Cached).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
        assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
        assert_eq!(names(dir.path()), ["link", "socket"]);
    }

    #[test]
    fn a_file_has_its_name_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        write(&path, b"old", Access::Private, Durability::Synced).unwrap();
        let mut file = AtomicFile::create(&path, Access::Private).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        file.publish(Durability::Cached).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        drop(AtomicFile::create(&path, Access::Shared).unwrap());
        assert_eq!(names(dir.path()), ["a"]);
    }

    #[test]
    fn what_the_living_write_stays_and_what_the_dead_wrote_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let live = AtomicFile::create(&path, Access::Private).unwrap();
        // The second file has the id of a running process.
        let dead = ["a.json.1.partial".into(), format!("a.json.{}-9.partial", std::process::id())];
        let others =
            ["a.json.partial", "a.json.x.partial", "b.json.1.partial", "a.json.1-.partial"];
        for name in dead.iter().map(String::as_str).chain(others) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        remove_abandoned(&path);
        let live_name = live.partial.file_name().unwrap().to_str().unwrap();
        let mut want = [&others[..], &[live_name]].concat();
        want.sort_unstable();
        assert_eq!(names(dir.path()), want);
        live.publish(Durability::Cached).unwrap();
        assert!(path.exists());
    }

    #[test]
    fn writers_and_removers_do_not_disturb_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    remove_abandoned(&path);
                }
            });
            for _ in 0..300 {
                write(&path, b"whole", Access::Private, Durability::Cached).unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(names(dir.path()), ["a"]);
    }

    #[cfg(unix)]
    #[test]
    fn access_is_what_was_asked_for() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        write(&path, b"", Access::Private, Durability::Cached).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
