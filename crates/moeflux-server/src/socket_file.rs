//! A Unix socket: a file by which programs of this machine reach the server.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use moeflux_core::private;

/// The name of the socket in the directory in which it is made.
const NEW: &str = "s";

/// A socket that listens. Its file is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// By which the file is known.
    inode: u64,
}

impl SocketFile {
    /// Listens at a path with the rights `mode`, in place of a socket at which no program listens.
    ///
    /// # Errors
    /// Where another program listens there or the path is no socket, and those of the system.
    pub(crate) fn bind(path: &Path, mode: u32) -> io::Result<SocketFile> {
        if let Ok(facts) = fs::symlink_metadata(path) {
            if !facts.file_type().is_socket() {
                let message = "there is a file that is no socket: name another path";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
            }
            if UnixStream::connect(path).is_ok() {
                let message = "another program listens there";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
        }
        // A directory of its own, in which no one connects before the socket has its rights.
        static N_BOUND: AtomicU32 = AtomicU32::new(0);
        let nth = N_BOUND.fetch_add(1, Ordering::Relaxed);
        let dir = path.with_file_name(format!(".{}-{nth}", process::id()));
        private::create_own_dir(&dir)?;
        let bound = bind_in(&dir, path, mode);
        let _ = fs::remove_file(dir.join(NEW));
        let _ = fs::remove_dir(&dir);
        bound
    }
}

fn bind_in(dir: &Path, path: &Path, mode: u32) -> io::Result<SocketFile> {
    let new = dir.join(NEW);
    let listener = UnixListener::bind(&new)?;
    listener.set_nonblocking(true)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    let inode = fs::symlink_metadata(&new)?.ino();
    fs::rename(&new, path)?;
    Ok(SocketFile { listener, path: path.to_owned(), inode })
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another server may have taken the path.
        if fs::symlink_metadata(&self.path).is_ok_and(|facts| facts.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_its_rights_and_goes_with_its_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.sock");
        let first = SocketFile::bind(&path, 0o660).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o660);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let taken = SocketFile::bind(&path, 0o600).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_at_which_no_one_listens_is_replaced_and_a_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let socket = SocketFile::bind(&path, 0o600).unwrap();
        UnixStream::connect(&path).unwrap();
        // What another server puts there stays.
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
        drop(other);
        let file = dir.path().join("file");
        fs::write(&file, "text").unwrap();
        let refused = SocketFile::bind(&file, 0o600).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&file).unwrap(), b"text");
    }
}
