//! The bank's files: opened once, checked, read at positions.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use moeflux_core::{FileIdx, MappedFile, SourceFile};

use crate::direct::{open_direct, read_at};
use crate::plan::Plan;
use crate::{IoMode, StoreError, StoreOptions};

/// Positional access to the files of a bank.
pub(crate) trait Source: Debug + Send + Sync {
    /// Reads up to `buf.len()` bytes; 0 at the end of the file.
    fn read_at(&self, file: FileIdx, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The length that the file has now.
    fn len(&self, file: FileIdx) -> io::Result<u64>;
}

/// The system's part in opening files.
pub(crate) trait System {
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<File>;

    /// As [`open_direct`].
    fn open_direct(&self, path: &Path) -> io::Result<(File, usize)>;
}

/// The system itself.
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

/// The files of a bank.
#[derive(Debug)]
pub(crate) struct Files {
    files: Vec<Handles>,
}

/// One file: not open where no layer needs it or it may be missing, else as
/// often as it is read at the same time where each handle allows one read.
#[derive(Debug, Default)]
struct Handles {
    all: Vec<File>,
    n_reads: AtomicUsize,
}

impl Handles {
    /// The handle whose turn it is.
    fn next(&self) -> &File {
        let turn = self.n_reads.fetch_add(1, Ordering::Relaxed);
        let handle = self.all.get(turn % self.all.len().max(1));
        handle.expect("missing files should not be read")
    }
}

/// What opening found.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) files: Files,
    /// By file; empty unless files are mapped.
    pub(crate) maps: Vec<Option<Arc<MappedFile>>>,
    /// Files that are not there.
    pub(crate) missing: Vec<FileIdx>,
    /// How they are read: as asked, or [`IoMode::Pread`] where direct reads
    /// were refused.
    pub(crate) mode: IoMode,
    /// Reads begin and end at multiples of this.
    pub(crate) block: usize,
    /// Why direct reads were given up.
    pub(crate) warning: Option<String>,
}

impl Files {
    /// Opens every file that a layer needs.
    pub(crate) fn open(
        plan: &Plan,
        options: &StoreOptions,
        system: &dyn System,
    ) -> Result<Opened, StoreError> {
        let (mut files, mut missing) = (Vec::new(), Vec::new());
        for (file_idx, source) in (0u32..).zip(&plan.bank().files) {
            let mut handles = Handles::default();
            if plan.is_used(FileIdx(file_idx)) {
                for _ in 0..n_handles(options) {
                    handles.all.extend(open_checked(source, system)?);
                }
                if handles.all.is_empty() {
                    missing.push(FileIdx(file_idx));
                }
            }
            files.push(handles);
        }
        let files = Files { files };
        let opened =
            Opened { files, maps: vec![], missing, mode: options.mode, block: 1, warning: None };
        opened.prepare(plan, options, system)
    }

    /// The same files opened for direct reads, and the block size that suits
    /// them all.
    fn opened_directly(
        &self,
        plan: &Plan,
        system: &dyn System,
    ) -> Result<(Files, usize), StoreError> {
        let (mut files, mut block) = (Vec::new(), 1);
        for (handles, it) in self.files.iter().zip(&plan.bank().files) {
            let mut direct = Handles::default();
            for _ in &handles.all {
                let opened = system.open_direct(&it.path);
                let refused = |source| StoreError::NoDirect { path: it.path.clone(), source };
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
    /// Makes the files ready for the mode.
    fn prepare(
        mut self,
        plan: &Plan,
        options: &StoreOptions,
        system: &dyn System,
    ) -> Result<Opened, StoreError> {
        if self.mode == IoMode::Direct {
            match self.files.opened_directly(plan, system) {
                Ok((files, block)) => (self.files, self.block) = (files, block),
                Err(err @ StoreError::NoDirect { .. }) if options.may_fall_back => {
                    self.mode = IoMode::Pread;
                    self.warning = Some(format!("experts are read through the page cache: {err}"));
                }
                Err(err) => return Err(err),
            }
        }
        match self.mode {
            IoMode::Mmap => {
                let firsts = self.files.files.iter().map(|it| it.all.first());
                let each = firsts.zip(&plan.bank().files);
                let maps = each.map(|(file, it)| file.map(|file| map(file, it)).transpose());
                self.maps = maps.collect::<Result<_, _>>()?;
            }
            IoMode::Pread => {
                self.files.files.iter().flat_map(|it| &it.all).for_each(expect_random_reads);
            }
            IoMode::Direct => {}
        }
        Ok(self)
    }
}

impl Source for Files {
    fn read_at(&self, file: FileIdx, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        read_at(self.files[file.0 as usize].next(), buf, offset)
    }

    fn len(&self, file: FileIdx) -> io::Result<u64> {
        Ok(self.files[file.0 as usize].next().metadata()?.len())
    }
}

/// How often a file is opened: Windows lets one read at a time through a handle.
fn n_handles(options: &StoreOptions) -> usize {
    if cfg!(any(windows, test)) { options.n_readers.max(1) } else { 1 }
}

/// `None` if there is no such file.
fn open_checked(source: &SourceFile, system: &dyn System) -> Result<Option<File>, StoreError> {
    let path = || source.path.clone();
    // Opening a pipe would wait for somebody to write to it.
    if fs::metadata(&source.path).is_ok_and(|it| !it.is_file()) {
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

/// Reading ahead brings neighbours that nobody asked for. The advice is no more
/// than that: where it is refused, reads work the same.
fn expect_random_reads(file: &File) {
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}
