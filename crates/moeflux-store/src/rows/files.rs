//! The files of tables, opened as the files of experts are.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use moeflux_core::{FileIdx, RowBank};

use crate::direct::read_at;
use crate::files::{Source, System, expect_random_reads, open_checked};
use crate::{IoMode, StoreError};

/// The files of a bank; those that no table needs are not opened.
#[derive(Debug)]
pub(super) struct RowFiles {
    files: Vec<Handles>,
}

/// The handles of one file: several where the system allows only one read at a time through each.
#[derive(Debug, Default)]
struct Handles {
    all: Vec<File>,
    n_reads: AtomicUsize,
}

/// The outcome of opening the files of a bank.
#[derive(Debug)]
pub(super) struct OpenedRows {
    pub(super) files: RowFiles,
    /// Block size in bytes: reads begin and end at multiples of it.
    pub(super) block: usize,
    /// Why the files are not read directly although that was asked for.
    pub(super) warning: Option<String>,
}

impl RowFiles {
    /// Opens every file that a table needs, `n_handles` times each, and checks its length.
    pub(super) fn open(
        bank: &RowBank,
        mode: IoMode,
        may_fall_back: bool,
        n_handles: usize,
        system: &dyn System,
    ) -> Result<OpenedRows, StoreError> {
        let mut files = Vec::with_capacity(bank.files.len());
        for (i, source) in (0u32..).zip(&bank.files) {
            let mut handles = Handles::default();
            let mut parts = bank.tables.iter().flat_map(|table| &table.parts);
            if parts.any(|part| part.file == FileIdx(i)) {
                for _ in 0..n_handles {
                    let file = open_checked(source, system)?.ok_or_else(|| StoreError::Open {
                        path: source.path.clone(),
                        source: io::ErrorKind::NotFound.into(),
                    })?;
                    handles.all.push(file);
                }
            }
            files.push(handles);
        }
        let files = RowFiles { files };
        let mut warning = None;
        if mode == IoMode::Direct {
            match files.opened_directly(bank, system) {
                Ok((files, block)) => return Ok(OpenedRows { files, block, warning }),
                Err(err) if !may_fall_back => return Err(err),
                Err(err) => {
                    warning =
                        Some(format!("rows of tables are read through the page cache: {err}"));
                }
            }
        }
        files.files.iter().flat_map(|file| &file.all).for_each(expect_random_reads);
        Ok(OpenedRows { files, block: 1, warning })
    }

    /// Opens all files for direct reads. Also returns a block size in bytes that suits all of them.
    fn opened_directly(
        &self,
        bank: &RowBank,
        system: &dyn System,
    ) -> Result<(RowFiles, usize), StoreError> {
        let (mut files, mut block) = (Vec::with_capacity(self.files.len()), 1);
        for (handles, source) in self.files.iter().zip(&bank.files) {
            let mut direct = Handles::default();
            for _ in &handles.all {
                let refused = |err| StoreError::NoDirect { path: source.path.clone(), source: err };
                let (file, found) = system.open_direct(&source.path).map_err(refused)?;
                direct.all.push(file);
                block = block.max(found);
            }
            files.push(direct);
        }
        Ok((RowFiles { files }, block))
    }

    /// The handle for the next read of a file; the handles take turns.
    fn next(&self, file: FileIdx) -> &File {
        let handles = &self.files[file.0 as usize];
        let turn = handles.n_reads.fetch_add(1, Ordering::Relaxed);
        &handles.all[turn % handles.all.len()]
    }
}

impl Source for RowFiles {
    fn read_at(&self, file: FileIdx, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        read_at(self.next(file), buf, offset)
    }

    fn len(&self, file: FileIdx) -> io::Result<u64> {
        Ok(self.next(file).metadata()?.len())
    }
}
