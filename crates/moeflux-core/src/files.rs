//! Opens files of untrusted origin: regular files only, read up to a limit.
//!
//! A checkpoint may have a pipe, a device or a link to `/proc` in place of a file. Reading one can
//! block, never end, or act on the machine, so it is refused before it is read. Links are followed,
//! and the kind of their target decides.
//!
//! Errors do not name the file, because every caller adds its path.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use crate::stand_in::StandIn;

/// Opens a regular file for reading.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for a directory, pipe, device or socket, and on Linux for a file
/// that the kernel generates (`/proc`, `/sys`). Else the error of the system.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Opening a device can already act on it, so the path is checked first.
    check_kind(&std::fs::metadata(path)?)?;
    let file = open(path)?;
    check_regular(&file)?;
    Ok(file)
}

/// Checks that an open file is one that [`open_regular`] accepts. For callers that open files with
/// other flags.
///
/// # Errors
/// The errors of [`open_regular`].
pub fn check_regular(file: &File) -> io::Result<()> {
    check_kind(&file.metadata()?)?;
    check_file_system(file)
}

/// Reads all bytes of a regular file.
///
/// # Errors
/// The errors of [`open_regular`], and [`io::ErrorKind::FileTooLarge`] for a file of more than
/// `max_bytes`, even if it grows beyond them only while it is read. A [`StandIn`] for a file that is there
/// in place of another.
pub fn read_bounded(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let n_bytes = file.metadata()?.len();
    if n_bytes > max_bytes {
        return Err(too_large(n_bytes, max_bytes));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(n_bytes).unwrap_or_default());
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        n_bytes if n_bytes > max_bytes => Err(too_large(n_bytes, max_bytes)),
        _ => match StandIn::of(&bytes) {
            Some(found) => Err(found.into()),
            None => Ok(bytes),
        },
    }
}

/// Reads the text of a regular file.
///
/// # Errors
/// The errors of [`read_bounded`], and [`io::ErrorKind::InvalidData`] if the file is not UTF-8.
pub fn read_text_bounded(path: &Path, max_bytes: u64) -> io::Result<String> {
    String::from_utf8(read_bounded(path, max_bytes)?).map_err(|err| {
        let what = format!("not UTF-8 text ({})", err.utf8_error());
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

/// Checks that a file may be created at, or renamed to, `path`: nothing is there, or a regular
/// file. A rename would replace a device or a pipe, which programs all over the system may be
/// using.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if `path` exists and is not a regular file.
pub fn check_target(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) => check_kind(&found),
        // Creating the file reports what is wrong with the directory.
        Err(_) => Ok(()),
    }
}

fn too_large(n_bytes: u64, max_bytes: u64) -> io::Error {
    let what =
        format!("{n_bytes} bytes or more are too many for this file, the limit is {max_bytes}");
    io::Error::new(io::ErrorKind::FileTooLarge, what)
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("this is {what}, not a regular file"))
}

fn check_kind(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        Ok(())
    } else if found.is_dir() {
        Err(refused("a directory"))
    } else {
        Err(refused(special_kind(found)))
    }
}

#[cfg(unix)]
fn special_kind(found: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;

    let kind = found.file_type();
    if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(not(unix))]
fn special_kind(_found: &Metadata) -> &'static str {
    "a device or a pipe"
}

/// Opens a file without waiting: a pipe may have replaced it after it was checked.
#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

#[cfg(not(unix))]
fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Refuses files of file systems that the kernel generates. They are regular files, but their sizes
/// mean nothing, and reading `/proc/kmsg` blocks.
#[cfg(target_os = "linux")]
fn check_file_system(file: &File) -> io::Result<()> {
    /// `PROC_SUPER_MAGIC`, `SYSFS_MAGIC`, `DEBUGFS_MAGIC`, `TRACEFS_MAGIC` and
    /// `CGROUP2_SUPER_MAGIC` of `linux/magic.h`.
    const MADE_UP: [u64; 5] = [0x9fa0, 0x6265_6572, 0x6462_6720, 0x7472_6163, 0x6367_7270];
    let kind = rustix::fs::fstatfs(file)?.f_type as u64;
    if MADE_UP.contains(&kind) { Err(refused("a file that the kernel makes up")) } else { Ok(()) }
}

#[cfg(not(target_os = "linux"))]
fn check_file_system(_file: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_fits_and_refuses_what_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, "0123456789").unwrap();
        assert_eq!(read_bounded(&path, 10).unwrap(), b"0123456789");
        assert_eq!(read_text_bounded(&path, 11).unwrap(), "0123456789");
        let err = read_bounded(&path, 9).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::FileTooLarge);
        assert!(err.to_string().contains("10 bytes") && err.to_string().contains("limit is 9"));
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_text_bounded(&path, 9).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let none = read_bounded(&dir.path().join("b"), 9).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        assert!(read_bounded(dir.path(), 9).unwrap_err().to_string().contains("a directory"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn refuses_what_is_no_regular_file_also_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (target, what) in [
            (pipe.as_path(), "a pipe"),
            (socket.as_path(), "a socket"),
            (Path::new("/dev/zero"), "a device"),
            (Path::new("/proc/self/status"), "the kernel makes up"),
            (dir.path(), "a directory"),
        ] {
            let link = dir.path().join("link");
            std::os::unix::fs::symlink(target, &link).unwrap();
            for path in [target, &link] {
                let err = open_regular(path).unwrap_err();
                assert_eq!(err.kind(), io::ErrorKind::InvalidInput);
                assert!(err.to_string().contains(what), "{err}");
            }
            std::fs::remove_file(&link).unwrap();
        }
    }
}
