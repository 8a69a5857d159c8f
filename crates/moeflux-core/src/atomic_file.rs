//! Files that get their name when they are whole.
//!
//! Until then a file is called `NAME.PROCESS-N.partial` and its writer holds a lock on it. What a
//! killed process leaves under such a name has no lock, which is how another process knows that it may
//! remove it: ids of processes are used again, and say nothing of other hosts that share a directory.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{files, private};

/// Who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its owner.
    Private,
    /// Everybody that the umask allows.
    Shared,
}

/// Whether a file must outlast a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It is on the drive before it has its name.
    Synced,
    /// It may come out damaged, which its reader must notice.
    Cached,
}

/// Ends the names of files that are not whole.
const SUFFIX: &str = ".partial";

/// Where a file system has no locks, what was not written to for so long belongs to a dead process.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A file that is being written. Dropped before it is published, it is removed.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    is_published: bool,
}

impl AtomicFile {
    /// Begins the file `path`, in the directory where it will be.
    ///
    /// # Errors
    /// Where no file can be created there, or something else than a file has that name.
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
                // A dead process of the same id, or one of another host.
                Err(err) if err.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created?,
            };
            // Another process may have found it without a lock, and removed it.
            let is_ours = !matches!(file.try_lock(), Err(TryLockError::WouldBlock));
            if is_ours && partial.exists() {
                let path = path.to_path_buf();
                return Ok(AtomicFile { path, partial, file, is_published: false });
            }
        }
    }

    /// The file under its working name.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The working name.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// Gives the file its name, in place of what had that name before.
    ///
    /// # Errors
    /// Those of the file system; then what had the name before still has it.
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
            // Should that fail too, another process removes it later.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Writes a file whole or not at all.
///
/// # Errors
/// Those of the file system; then what had the name before still has it.
pub fn write(path: &Path, bytes: &[u8], access: Access, durability: Durability) -> io::Result<()> {
    let mut file = AtomicFile::create(path, access)?;
    file.write_all(bytes)?;
    file.publish(durability)
}

/// Puts the names in a directory on the drive.
///
/// # Errors
/// Those of the file system.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(path)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// The directory that a path names a file of.
pub fn directory_of(path: &Path) -> &Path {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    dir.unwrap_or(Path::new("."))
}

/// Removes what dead processes left of a file that they were writing.
pub fn remove_abandoned(path: &Path) {
    let target = path.file_name().unwrap_or_default().to_string_lossy();
    remove_abandoned_in(directory_of(path), |name| name == target);
}

/// Removes what dead processes left in a directory of files that `is_ours` accepts the names of.
/// What cannot be removed stays.
pub fn remove_abandoned_in(dir: &Path, is_ours: impl Fn(&str) -> bool) {
    let Ok(entries) = dir.read_dir() else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_partial = target_of(&name.to_string_lossy()).is_some_and(&is_ours);
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        // Its lock is held until it is gone: a writer that has just created it begins another.
        if is_partial
            && is_file
            && let Some(_lock) = claim_abandoned(&entry.path())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The name that a file will get which has this one while it is written: `NAME.PROCESS-N.partial` or
/// `NAME.PROCESS.partial`.
fn target_of(name: &str) -> Option<&str> {
    let (target, writer) = name.strip_suffix(SUFFIX)?.rsplit_once('.')?;
    let (process, nth) = writer.split_once('-').unwrap_or((writer, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(process) && is_number(nth) && !target.is_empty()).then_some(target)
}

/// The file, locked where the file system has locks; `None` where a process may be writing it.
fn claim_abandoned(path: &Path) -> Option<File> {
    // Some network drives lock only what may be written to.
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

    /// A socket stands for devices, which only an administrator can make.
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
        // The second has the id of a process that lives.
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
