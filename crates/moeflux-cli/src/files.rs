//! Files that a user names: read whole, but never without end, and written
//! whole or not at all.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use moeflux_core::atomic_file::{Access, AtomicFile, Durability, remove_abandoned};

use crate::interrupt::RemovedOnInterrupt;
use crate::report;

/// Longest file that is read whole.
const MAX_BYTES: u64 = 256 << 20;

/// How long the other end of a pipe may be missing before that is said, and before it is an error.
const QUIET_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Opens a file for reading. A pipe waits for the process that writes to it (`<(command)` has one at
/// once), but not for ever.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if !is_pipe(path) {
        return File::open(path);
    }
    let (sender, opened) = mpsc::channel();
    let name = path.to_owned();
    // Opening blocks until there is a writer. The thread ends with the process.
    thread::Builder::new().spawn(move || sender.send(File::open(name)))?;
    let missing = |_| {
        let seconds = LONGEST_WAIT.as_secs();
        let what = format!("a pipe that no process opened for writing within {seconds} s");
        io::Error::new(io::ErrorKind::TimedOut, what)
    };
    opened.recv_timeout(QUIET_WAIT).or_else(|_| {
        let seconds = LONGEST_WAIT.as_secs();
        let name = path.display();
        report::note(false, &format!("waiting {seconds} s for a process that writes to {name}"));
        opened.recv_timeout(LONGEST_WAIT).map_err(missing)
    })?
}

#[cfg(unix)]
fn is_pipe(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;

    path.metadata().is_ok_and(|facts| facts.file_type().is_fifo())
}

#[cfg(not(unix))]
fn is_pipe(_path: &Path) -> bool {
    false
}

/// The bytes of a file; pipes will do, endless devices are refused.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("longer than {} MiB, shorten it", MAX_BYTES >> 20),
        ));
    }
    Ok(bytes)
}

/// A file that gets its name when it is whole; a device or a pipe is written as
/// it is.
pub(crate) enum OutFile {
    Regular { file: AtomicFile, removal: Option<RemovedOnInterrupt> },
    Device(File),
}

impl OutFile {
    pub(crate) fn create(target: &Path) -> io::Result<OutFile> {
        if target.metadata().is_ok_and(|facts| !facts.is_file()) {
            return Ok(OutFile::Device(File::options().write(true).open(target)?));
        }
        remove_abandoned(target);
        let file = AtomicFile::create(target, Access::Shared)?;
        let removal = RemovedOnInterrupt::new(file.partial());
        Ok(OutFile::Regular { file, removal })
    }

    pub(crate) fn file(&self) -> &File {
        match self {
            OutFile::Regular { file, .. } => file.file(),
            OutFile::Device(file) => file,
        }
    }

    pub(crate) fn publish(self) -> io::Result<()> {
        match self {
            OutFile::Regular { file, removal } => {
                let published = file.publish(Durability::Synced);
                drop(removal);
                published
            }
            OutFile::Device(_) => Ok(()),
        }
    }
}
