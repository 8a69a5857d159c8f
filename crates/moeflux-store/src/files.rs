//! The bank's files: opened once, checked, read at positions.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use moeflux_core::{FileIdx, MappedFile, SourceFile};

use crate::direct;
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

    /// As [`direct::enable`].
    fn make_direct(&self, file: &File) -> io::Result<usize>;
}

/// The system itself.
#[derive(Debug)]
pub(crate) struct Native;

impl System for Native {
    fn open(&self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    fn make_direct(&self, file: &File) -> io::Result<usize> {
        direct::enable(file)
    }
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
        let mut files = Vec::new();
        let mut missing = Vec::new();
        for (file_idx, source) in (0u32..).zip(&plan.bank().files) {
            let mut file = None;
            if plan.is_used(FileIdx(file_idx)) {
                file = open_checked(source, system)?;
                if file.is_none() {
                    missing.push(FileIdx(file_idx));
                }
            }
            files.push(file);
        }
        let files = Files { files };
        let opened =
            Opened { files, maps: vec![], missing, mode: options.mode, block: 1, warning: None };
        opened.prepare(plan, options, system)
    }

    /// Those that are open, with what the bank says of them.
    fn open_ones<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = (&'a File, &'a SourceFile)> {
        self.files
            .iter()
            .zip(&plan.bank().files)
            .filter_map(|(file, it)| Some((file.as_ref()?, it)))
    }

    /// Switches to direct reads; returns the block size that suits all files.
    fn make_direct(&self, plan: &Plan, system: &dyn System) -> Result<usize, StoreError> {
        let mut block = 1;
        for (file, source) in self.open_ones(plan) {
            let path = || source.path.clone();
            let found = system.make_direct(file);
            block =
                block.max(found.map_err(|err| StoreError::NoDirect { path: path(), source: err })?);
        }
        Ok(block)
    }

    fn file(&self, file: FileIdx) -> &File {
        self.files[file.0 as usize].as_ref().expect("missing files should not be read")
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
            match self.files.make_direct(plan, system) {
                Ok(block) => self.block = block,
                Err(err @ StoreError::NoDirect { .. }) if options.may_fall_back => {
                    self.mode = IoMode::Pread;
                    self.warning = Some(format!("experts are read through the page cache: {err}"));
                    for (file, source) in self.files.open_ones(plan) {
                        let path = || source.path.clone();
                        let undone = direct::disable(file);
                        undone.map_err(|err| StoreError::Open { path: path(), source: err })?;
                    }
                }
                Err(err) => return Err(err),
            }
        }
        match self.mode {
            IoMode::Mmap => {
                let each = self.files.files.iter().zip(&plan.bank().files);
                let maps =
                    each.map(|(file, it)| file.as_ref().map(|file| map(file, it)).transpose());
                self.maps = maps.collect::<Result<_, _>>()?;
            }
            IoMode::Pread => self.files.open_ones(plan).for_each(|it| expect_random_reads(it.0)),
            IoMode::Direct => {}
        }
        Ok(self)
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
