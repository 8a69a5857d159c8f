//! Brings records into memory: reads them into slots, or populates the pages of mapped files.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use moeflux_core::checkpoint::part_checksum;
use moeflux_core::{ExpertKey, ExpertMemory, FileIdx, LayerIdx, MappedFile};

use super::in_flight::Part;
use super::plan::{Plan, Run, Target};
use crate::StoreError;
use crate::drive::Drive;
use crate::error::RecordName;

/// The state that the reader threads share.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) plan: Plan,
    drive: Drive,
    /// Indexed by file; empty unless files are mapped.
    maps: Vec<Option<Arc<MappedFile>>>,
    /// Indexed by ordinal: whether the expert's checksum agreed when it was first read.
    verified: Vec<AtomicBool>,
}

impl Reader {
    pub(crate) fn new(plan: Plan, drive: Drive, maps: Vec<Option<Arc<MappedFile>>>) -> Reader {
        let verified = (0..plan.n_experts()).map(|_| AtomicBool::new(false)).collect();
        Reader { plan, drive, maps, verified }
    }

    /// Reads a part of a record, or populates the pages of a mapped record. A record that has a
    /// checksum is compared with it the first time.
    pub(crate) fn bring(&self, part: &mut Part) -> Result<(), StoreError> {
        let target = part.target;
        match &mut part.piece {
            Some((run, buf)) => {
                let blocks = run.blocks(self.plan.block());
                let out = &mut buf[..blocks.len];
                let read = if self.has_checksums(target.key.layer) {
                    self.drive.read(&blocks, out)
                } else {
                    self.drive.read_unchanged(&blocks, out)
                };
                let record = || RecordName::Expert(target.key);
                read.map_err(|failure| self.drive.error(failure, &blocks, run.offset, record()))?;
                self.verify(target, run.file, &buf[blocks.wanted - run.len..blocks.wanted])
            }
            None => {
                self.populate(target.key)?;
                let run = self.plan.placement(target.key).runs.into_iter().next();
                run.map_or(Ok(()), |run| {
                    let start = in_memory(run.offset);
                    self.verify(target, run.file, &self.map(run.file)[start..start + run.len])
                })
            }
        }
    }

    fn has_checksums(&self, layer: LayerIdx) -> bool {
        self.plan.layer(layer).checksums.is_some()
    }

    /// Compares a record with its checksum, if it has one and was not compared since the file was written to. A
    /// record with a checksum is one extent, so `bytes` is the whole record.
    fn verify(&self, target: Target, file: FileIdx, bytes: &[u8]) -> Result<(), StoreError> {
        let Target { key, ordinal } = target;
        let Some(sums) = &self.plan.layer(key.layer).checksums else { return Ok(()) };
        let verified = &self.verified[ordinal.idx()];
        if verified.load(Ordering::Relaxed) && !self.drive.is_changed(file) {
            return Ok(());
        }
        if part_checksum(bytes) != sums[key.expert.idx()] {
            let (path, record) = (self.drive.file(file).path.clone(), RecordName::Expert(key));
            return Err(StoreError::Damaged { path, record });
        }
        verified.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The extents of a record in mapped files.
    pub(crate) fn mapped(&self, key: ExpertKey) -> ExpertMemory {
        let sources = self.plan.layer(key.layer).sources.iter();
        let extents = sources.map(|source| {
            let (file, offset) = source.locate(key.expert);
            (Arc::clone(self.map(file)), in_memory(offset))
        });
        ExpertMemory::Mapped(extents.collect())
    }

    /// Returns an error if a mapped file of the layer was written to, or has changed its length: touching
    /// pages after the end of a file would end the process.
    pub(crate) fn check_maps(&self, layer: LayerIdx) -> Result<(), StoreError> {
        if self.maps.is_empty() {
            return Ok(());
        }
        let check = |file: &FileIdx| {
            if self.has_checksums(layer) {
                self.drive.check_len(*file)
            } else {
                self.drive.check_file(*file)
            }
        };
        self.plan.files_of(layer).iter().try_for_each(check)
    }

    /// Gives the pages of mapped files back to the system; the files stay mapped.
    pub(crate) fn release_maps(&self) {
        self.maps.iter().flatten().for_each(|map| map.release());
    }

    fn populate(&self, key: ExpertKey) -> Result<(), StoreError> {
        for run in &self.plan.placement(key).runs {
            let Err(err) = populate(self.map(run.file), run) else { continue };
            self.drive.check_len(run.file)?;
            if touching_kills(&err) {
                let (path, record) =
                    (self.drive.file(run.file).path.clone(), RecordName::Expert(key));
                let (offset, wanted) = (run.offset, run.len);
                return Err(StoreError::Io { path, record, offset, wanted, got: 0, source: err });
            }
        }
        Ok(())
    }

    fn map(&self, file: FileIdx) -> &Arc<MappedFile> {
        self.maps[file.0 as usize].as_ref().expect("missing files should not be read")
    }
}

fn populate(map: &MappedFile, run: &Run) -> io::Result<()> {
    loop {
        match map.populate(in_memory(run.offset), run.len) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Whether the drive could not deliver the pages, so that touching them would end the process.
/// Other errors mean that the system does not know the call.
fn touching_kills(err: &io::Error) -> bool {
    #[cfg(target_os = "linux")]
    return [rustix::io::Errno::FAULT, rustix::io::Errno::HWPOISON]
        .iter()
        .any(|code| err.raw_os_error() == Some(code.raw_os_error()));
    #[cfg(not(target_os = "linux"))]
    return err.raw_os_error().is_none();
}

fn in_memory(offset: u64) -> usize {
    usize::try_from(offset).expect("a mapped file should fit the address space")
}
