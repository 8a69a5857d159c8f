//! Files and directories that only their owner may read: conversations, prompts, and records of how
//! a model was used.
//!
//! On Unix a file has mode 0600 and a directory 0700, whatever the umask is. On other systems the
//! rights of the parent directory apply.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::path::Path;

/// Creates a directory and its missing parents for their owner only. Existing directories keep
/// their rights.
///
/// # Errors
/// The errors of the file system.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Creates a directory that belongs to this program, and its missing parents, for their owner only.
/// If the directory exists, it is restricted to its owner.
///
/// # Errors
/// The errors of the file system.
pub fn create_own_dir(path: &Path) -> io::Result<()> {
    create_dir_all(path)?;
    restrict(path)
}

/// Restricts an existing file or directory to its owner. Devices, pipes, and files of other users
/// keep their rights.
///
/// # Errors
/// The errors of the file system.
pub fn restrict(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        let facts = fs::metadata(path)?;
        match fs::set_permissions(
            path,
            match restricted(&facts) {
                Some(mode) => mode,
                None => return Ok(()),
            },
        ) {
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            done => done,
        }
    }
    #[cfg(not(unix))]
    fs::metadata(path).map(|_| ())
}

/// Opens a file with `options`. If it is a regular file that other users may read, or if this
/// creates it, it is restricted to its owner.
///
/// # Errors
/// The errors of the file system.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    let file = options.open(path)?;
    #[cfg(unix)]
    if let Some(mode) = restricted(&file.metadata()?) {
        match file.set_permissions(mode) {
            Err(err) if err.kind() != io::ErrorKind::PermissionDenied => return Err(err),
            _ => {}
        }
    }
    Ok(file)
}

/// The restricted rights of a file or directory; `None` if its rights need no change.
#[cfg(unix)]
fn restricted(facts: &fs::Metadata) -> Option<fs::Permissions> {
    use std::os::unix::fs::PermissionsExt;

    let mode = facts.permissions().mode();
    let is_open = (facts.is_file() || facts.is_dir()) && mode & 0o077 != 0;
    is_open.then(|| fs::Permissions::from_mode(mode & 0o700))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn new_directories_are_for_their_owner_and_old_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        set_mode(dir.path(), 0o755);
        let inner = dir.path().join("a/b");
        create_dir_all(&inner).unwrap();
        assert_eq!([mode(&inner), mode(inner.parent().unwrap())], [0o700; 2]);
        set_mode(&inner, 0o755);
        create_dir_all(&inner).unwrap();
        assert_eq!(mode(&inner), 0o755);
        create_own_dir(&inner).unwrap();
        assert_eq!(mode(&inner), 0o700);
        assert_eq!(mode(dir.path()), 0o755);
    }

    #[test]
    fn files_are_for_their_owner_new_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let create = || open(File::options().write(true).create(true), &path).unwrap();
        create();
        assert_eq!(mode(&path), 0o600);
        for (before, after) in [(0o644, 0o600), (0o777, 0o700), (0o400, 0o400)] {
            set_mode(&path, before);
            restrict(&path).unwrap();
            assert_eq!(mode(&path), after, "{before:o}");
        }
        set_mode(&path, 0o666);
        create();
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn devices_stay_as_they_are() {
        let null = Path::new("/dev/null");
        let before = mode(null);
        open(File::options().write(true), null).unwrap();
        restrict(null).unwrap();
        assert_eq!(mode(null), before);
    }
}
