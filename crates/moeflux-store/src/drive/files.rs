//! The files of a bank, which are opened once, checked, and read at positions.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use moeflux_core::{DerivedBytes, FileIdx, MappedFile, SourceFile};

use super::direct::{open_direct, read_at};
use crate::{IoMode, StoreError};

/// Positional access to the files of a bank.
pub(crate) trait Source: Debug + Send + Sync {
    /// Reads up to `buf.len()` bytes; 0 at the end of the file.
    fn read_at(&self, file: FileIdx, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The length that the file has now.
    fn len(&self, file: FileIdx) -> io::Result<u64>;

    /// Whether the file was written to since it was opened.
    fn is_changed(&self, file: FileIdx) -> bool;
}

/// Opens files; tests substitute their implementations.
pub(crate) trait System {
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<File>;

    /// Opens a file as [`open_direct`] does.
    fn open_direct(&self, path: &Path) -> io::Result<(File, usize)>;
}

/// The operating system itself.
#[derive(Debug)]
pub(crate) struct Native;

impl System for Native {
    fn open(&self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    fn open_direct(&self, path: &Path) -> io::Result<(File, usize)> {
        open_direct(path)
    }
}

/// Which files of a bank are opened, and how.
pub(crate) struct Wanted<'a> {
    pub(crate) files: &'a [SourceFile],
    /// Whether a file is read at all; the others are not opened.
    pub(crate) is_used: &'a dyn Fn(FileIdx) -> bool,
    /// Whether files may be missing, which are listed then.
    pub(crate) may_miss: bool,
    pub(crate) mode: IoMode,
    /// Whether files that refuse direct reads are read through the page cache.
    pub(crate) may_fall_back: bool,
    pub(crate) n_readers: usize,
    /// What messages call the records.
    pub(crate) what: &'static str,
}

/// The files of a bank.
#[derive(Debug)]
pub(crate) struct Files {
    files: Vec<Handles>,
}

/// The handles of one file: none if the file is not used or missing. There are several where the
/// system allows only one read at a time through a handle.
#[derive(Debug, Default)]
struct Handles {
    all: Vec<File>,
    n_reads: AtomicUsize,
    /// When it was last written to before it was opened, where the system says it.
    modified: Option<SystemTime>,
    /// What computes the bytes, if no file holds them.
    derived: Option<Arc<dyn DerivedBytes>>,
}

impl Handles {
    /// The handle for the next read; the handles take turns.
    fn next(&self) -> &File {
        let turn = self.n_reads.fetch_add(1, Ordering::Relaxed);
        let handle = self.all.get(turn % self.all.len().max(1));
        handle.expect("missing files should not be read")
    }
}

/// The outcome of opening the files of a bank.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) files: Files,
    /// Indexed by file; empty unless files are mapped.
    pub(crate) maps: Vec<Option<Arc<MappedFile>>>,
    /// Files that do not exist.
    pub(crate) missing: Vec<FileIdx>,
    /// How the files are read: as wanted, or [`IoMode::Pread`] if direct reads were refused or bytes
    /// are computed.
    pub(crate) mode: IoMode,
    /// Block size in bytes: reads begin and end at multiples of it.
    pub(crate) block: usize,
    /// Why the files are not read as wanted.
    pub(crate) warning: Option<String>,
}

impl Files {
    /// Opens every file that is used, and checks its kind and length.
    pub(crate) fn open(wanted: &Wanted<'_>, system: &dyn System) -> Result<Opened, StoreError> {
        let (mut files, mut missing) = (Vec::new(), Vec::new());
        for (file_idx, source) in (0u32..).map(FileIdx).zip(wanted.files) {
            let mut handles = Handles { derived: source.derived.clone(), ..Handles::default() };
            if handles.derived.is_none() && (wanted.is_used)(file_idx) {
                for _ in 0..n_handles(wanted.n_readers) {
                    handles.all.extend(open_checked(source, system)?);
                }
                handles.modified = handles.all.first().and_then(modified);
                if handles.all.is_empty() {
                    missing.push(file_idx);
                    if !wanted.may_miss {
                        let source_error = io::ErrorKind::NotFound.into();
                        let path = source.path.clone();
                        return Err(StoreError::Open { path, source: source_error });
                    }
                }
            }
            files.push(handles);
        }
        let (files, maps, mode) = (Files { files }, Vec::new(), wanted.mode);
        Opened { files, maps, missing, mode, block: 1, warning: None }.prepare(wanted, system)
    }

    /// Opens all files for direct reads. Also returns a block size in bytes that suits all of them.
    fn opened_directly(
        &self,
        sources: &[SourceFile],
        system: &dyn System,
    ) -> Result<(Files, usize), StoreError> {
        let (mut files, mut block) = (Vec::new(), 1);
        for (handles, file) in self.files.iter().zip(sources) {
            let (derived, modified) = (file.derived.clone(), handles.modified);
            let mut direct = Handles { derived, modified, ..Handles::default() };
            for _ in &handles.all {
                let opened = system.open_direct(&file.path);
                let refused = |source| StoreError::NoDirect { path: file.path.clone(), source };
                let (file, found) = opened.map_err(refused)?;
                direct.all.push(file);
                block = block.max(found);
            }
            files.push(direct);
        }
        Ok((Files { files }, block))
    }
}

impl Opened {
    /// Prepares the files for the I/O mode.
    fn prepare(mut self, wanted: &Wanted<'_>, system: &dyn System) -> Result<Opened, StoreError> {
        let Wanted { files: sources, what, .. } = wanted;
        let is_derived = |(file, source): (FileIdx, &SourceFile)| {
            source.derived.is_some() && (wanted.is_used)(file)
        };
        if self.mode == IoMode::Mmap && (0..).map(FileIdx).zip(*sources).any(is_derived) {
            self.mode = IoMode::Pread;
            let reason = "experts are read into the cache: their format is converted when they are \
                          read; `moeflux pack` converts it once";
            self.warning = Some(reason.to_owned());
        }
        if self.mode == IoMode::Direct {
            match self.files.opened_directly(sources, system) {
                Ok((files, block)) => (self.files, self.block) = (files, block),
                Err(err) if wanted.may_fall_back => {
                    self.mode = IoMode::Pread;
                    self.warning = Some(format!("{what} are read through the page cache: {err}"));
                }
                Err(err) => return Err(err),
            }
        }
        match self.mode {
            IoMode::Mmap => {
                let firsts = self.files.files.iter().map(|file| file.all.first());
                let each = firsts.zip(*sources);
                let maps =
                    each.map(|(file, source)| file.map(|file| map(file, source)).transpose());
                self.maps = maps.collect::<Result<_, _>>()?;
            }
            IoMode::Pread => {
                self.files.files.iter().flat_map(|file| &file.all).for_each(expect_random_reads);
            }
            IoMode::Direct => {}
        }
        Ok(self)
    }
}

impl Source for Files {
    fn read_at(&self, file: FileIdx, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let handles = &self.files[file.0 as usize];
        match &handles.derived {
            Some(derived) => derived.read_at(offset, buf).map_err(io::Error::other),
            None => read_at(handles.next(), buf, offset),
        }
    }

    fn len(&self, file: FileIdx) -> io::Result<u64> {
        let handles = &self.files[file.0 as usize];
        match &handles.derived {
            Some(_) => Ok(u64::MAX),
            None => Ok(handles.next().metadata()?.len()),
        }
    }

    fn is_changed(&self, file: FileIdx) -> bool {
        let handles = &self.files[file.0 as usize];
        let now = handles.all.first().and_then(modified);
        handles.derived.is_none()
            && now.zip(handles.modified).is_some_and(|(now, then)| now != then)
    }
}

/// When a file was last written to.
fn modified(file: &File) -> Option<SystemTime> {
    file.metadata().and_then(|found| found.modified()).ok()
}

/// How often each file is opened: Windows allows one read at a time through a handle.
fn n_handles(n_readers: usize) -> usize {
    if cfg!(any(windows, test)) { n_readers.max(1) } else { 1 }
}

/// Opens a file and checks its kind and length; `None` if it does not exist.
fn open_checked(source: &SourceFile, system: &dyn System) -> Result<Option<File>, StoreError> {
    let path = || source.path.clone();
    // Opening a named pipe would wait until another process writes to it.
    if fs::metadata(&source.path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(StoreError::NotAFile { path: path() });
    }
    let file = match system.open(&source.path) {
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

/// Turns off the kernel's read-ahead, which would read bytes that no request asked for. This is
/// advice to the kernel: if it is refused, reads work the same.
fn expect_random_reads(file: &File) {
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}
