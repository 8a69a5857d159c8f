//! The bank's files: opened once, checked, read at positions.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use moeflux_core::{FileIdx, MappedFile, SourceFile};

use crate::plan::Plan;
use crate::{IoMode, StoreError};

/// Positional access to the files of a bank.
pub(crate) trait Source: Debug + Send + Sync {
    /// Reads up to `buf.len()` bytes; 0 at the end of the file.
    fn read_at(&self, file: FileIdx, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The length that the file has now.
    fn len(&self, file: FileIdx) -> io::Result<u64>;
}

/// The files of a bank; `None` where no layer needs it or it may be missing.
#[derive(Debug)]
pub(crate) struct Files {
    files: Vec<Option<File>>,
}

/// What opening found.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) files: Files,
    /// By file; empty unless files are mapped.
    pub(crate) maps: Vec<Option<Arc<MappedFile>>>,
    /// Files that are not there.
    pub(crate) missing: Vec<FileIdx>,
}

impl Files {
    /// Opens every file that a layer needs, by means of `opener`.
    pub(crate) fn open(
        plan: &Plan,
        mode: IoMode,
        opener: &dyn Fn(&Path) -> io::Result<File>,
    ) -> Result<Opened, StoreError> {
        let mut opened = Opened { files: Files { files: vec![] }, maps: vec![], missing: vec![] };
        for (file_idx, source) in (0u32..).zip(&plan.bank().files) {
            let mut file = None;
            if plan.is_used(FileIdx(file_idx)) {
                file = open_checked(source, opener)?;
                if file.is_none() {
                    opened.missing.push(FileIdx(file_idx));
                }
            }
            match mode {
                IoMode::Mmap => {
                    opened.maps.push(file.as_ref().map(|it| map(it, source)).transpose()?)
                }
                IoMode::Pread => file.iter().for_each(expect_random_reads),
            }
            opened.files.files.push(file);
        }
        Ok(opened)
    }

    fn file(&self, file: FileIdx) -> &File {
        self.files[file.0 as usize].as_ref().expect("missing files should not be read")
    }
}

impl Source for Files {
    fn read_at(&self, file: FileIdx, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        #[cfg(unix)]
        return std::os::unix::fs::FileExt::read_at(self.file(file), buf, offset);
        #[cfg(windows)]
        return std::os::windows::fs::FileExt::seek_read(self.file(file), buf, offset);
    }

    fn len(&self, file: FileIdx) -> io::Result<u64> {
        Ok(self.file(file).metadata()?.len())
    }
}

/// `None` if there is no such file.
fn open_checked(
    source: &SourceFile,
    opener: &dyn Fn(&Path) -> io::Result<File>,
) -> Result<Option<File>, StoreError> {
    let path = || source.path.clone();
    // Opening a pipe would wait for somebody to write to it.
    if fs::metadata(&source.path).is_ok_and(|it| !it.is_file()) {
        return Err(StoreError::NotAFile { path: path() });
    }
    let file = match opener(&source.path) {
        Ok(file) => file,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(StoreError::Open { path: path(), source: err }),
    };
    let found = file.metadata().map_err(|err| StoreError::Inspect { path: path(), source: err })?;
    if !found.is_file() {
        return Err(StoreError::NotAFile { path: path() });
    }
    let (expected, actual) = (source.len, found.len());
    if actual != expected {
        return Err(StoreError::Resized { path: path(), expected, actual });
    }
    Ok(Some(file))
}

fn map(file: &File, source: &SourceFile) -> Result<Arc<MappedFile>, StoreError> {
    let map = MappedFile::map(file);
    let map = map.map_err(|err| StoreError::Map { path: source.path.clone(), source: err })?;
    Ok(Arc::new(map))
}

/// Reading ahead brings neighbours that nobody asked for. The advice is no more
/// than that: where it is refused, reads work the same.
fn expect_random_reads(file: &File) {
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}
