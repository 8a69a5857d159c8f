//! Reads bytes of a checkpoint's files.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::error::FormatError;
use crate::files::open_regular;
use crate::{Extent, FileIdx, SourceFile};

/// A file, and when it was last written to before it was opened, where the system says it.
#[derive(Debug)]
struct OpenedFile {
    file: File,
    modified: Option<SystemTime>,
}

/// Files that are opened when they are first read, and read at any offset.
#[derive(Debug)]
pub struct FileReader {
    files: Vec<(SourceFile, OnceLock<OpenedFile>)>,
}

impl FileReader {
    /// A reader of these files, none of which is open yet.
    pub fn new(files: &[SourceFile]) -> FileReader {
        FileReader { files: files.iter().map(|file| (file.clone(), OnceLock::new())).collect() }
    }

    /// Fills `out` from byte `offset` of a file.
    ///
    /// # Errors
    /// If the file cannot be opened, ends too early, or was written to since it was opened.
    pub fn read_at(&self, file: FileIdx, offset: u64, out: &mut [u8]) -> Result<(), FormatError> {
        let (source, handle) = &self.files[file.0 as usize];
        if let Some(derived) = &source.derived {
            let n = derived.read_at(offset, out)?;
            let ends_early = || FormatError::io(&source.path)(io::ErrorKind::UnexpectedEof.into());
            return if n == out.len() { Ok(()) } else { Err(ends_early()) };
        }
        let handle = match handle.get() {
            Some(handle) => handle,
            None => {
                let file = open_regular(&source.path).map_err(FormatError::io(&source.path))?;
                let modified = modified(&file);
                handle.get_or_init(|| OpenedFile { file, modified })
            }
        };
        read_exact_at(&handle.file, out, offset).map_err(FormatError::io(&source.path))?;
        // What was read before and after would be of two models.
        match handle.modified.zip(modified(&handle.file)) {
            Some((then, now)) if then != now => {
                Err(FormatError::Changed { path: source.path.clone() })
            }
            _ => Ok(()),
        }
    }

    /// The path of a file.
    pub(crate) fn path(&self, file: FileIdx) -> &Path {
        &self.files[file.0 as usize].0.path
    }

    /// Reads the bytes of an extent.
    ///
    /// # Errors
    /// If the file cannot be opened, or ends too early.
    pub fn read(&self, extent: Extent) -> Result<Vec<u8>, FormatError> {
        let mut out = vec![0; extent.len];
        self.read_at(extent.file, extent.offset, &mut out)?;
        Ok(out)
    }
}

fn modified(file: &File) -> Option<SystemTime> {
    file.metadata().and_then(|found| found.modified()).ok()
}

#[cfg(unix)]
fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !out.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_read(file, out, offset)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out = &mut out[n..];
        offset += n as u64;
    }
    Ok(())
}
