//! Files that a user names: read whole, but never without end, and written
//! whole or not at all.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use moeflux_core::atomic_file::{Access, AtomicFile, Durability, remove_abandoned};

/// Longest file that is read whole.
const MAX_BYTES: u64 = 256 << 20;

/// The bytes of a file; pipes will do, endless devices are refused.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
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
    Regular(AtomicFile),
    Device(File),
}

impl OutFile {
    pub(crate) fn create(target: &Path) -> io::Result<OutFile> {
        if target.metadata().is_ok_and(|facts| !facts.is_file()) {
            return Ok(OutFile::Device(File::options().write(true).open(target)?));
        }
        remove_abandoned(target);
        Ok(OutFile::Regular(AtomicFile::create(target, Access::Shared)?))
    }

    pub(crate) fn file(&self) -> &File {
        match self {
            OutFile::Regular(file) => file.file(),
            OutFile::Device(file) => file,
        }
    }

    pub(crate) fn publish(self) -> io::Result<()> {
        match self {
            OutFile::Regular(file) => file.publish(Durability::Synced),
            OutFile::Device(_) => Ok(()),
        }
    }
}
