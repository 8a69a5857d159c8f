//! Files that a user names: read whole, but never without end, and written
//! whole or not at all.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

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
pub(crate) struct OutFile {
    pub(crate) file: File,
    partial: Option<PathBuf>,
    target: PathBuf,
}

impl OutFile {
    pub(crate) fn create(target: &Path) -> io::Result<OutFile> {
        let target = target.to_path_buf();
        if target.metadata().is_ok_and(|it| !it.is_file()) {
            let file = File::options().write(true).open(&target)?;
            return Ok(OutFile { file, partial: None, target });
        }
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".partial-{}", std::process::id()));
        let partial = target.with_file_name(name);
        let file = File::create(&partial)?;
        Ok(OutFile { file, partial: Some(partial), target })
    }

    pub(crate) fn publish(&self) -> io::Result<()> {
        let Some(partial) = &self.partial else { return Ok(()) };
        self.file.sync_all()?;
        fs::rename(partial, &self.target)
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Gone already if it was published.
            let _ = fs::remove_file(partial);
        }
    }
}
