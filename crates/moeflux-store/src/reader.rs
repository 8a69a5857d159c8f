//! Brings records into memory: reads them into slots, or populates the pages of mapped files.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use moeflux_core::checkpoint::{FormatError, part_checksum};
use moeflux_core::{ExpertKey, ExpertMemory, FileIdx, LayerIdx, MappedFile};

use crate::StoreError;
use crate::files::Source;
use crate::in_flight::Part;
use crate::plan::{Plan, Run, Target};

/// The state that the reader threads share.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) plan: Plan,
    source: Box<dyn Source>,
    /// Indexed by file; empty unless files are mapped.
    maps: Vec<Option<Arc<MappedFile>>>,
    /// Indexed by ordinal: whether the expert's checksum agreed when it was first read.
    verified: Vec<AtomicBool>,
}

impl Reader {
    pub(crate) fn new(
        plan: Plan,
        source: Box<dyn Source>,
        maps: Vec<Option<Arc<MappedFile>>>,
    ) -> Reader {
        let verified = (0..plan.n_experts()).map(|_| AtomicBool::new(false)).collect();
        Reader { plan, source, maps, verified }
    }

    /// Reads a part of a record, or populates the pages of a mapped record. A record that has a
    /// checksum is compared with it the first time.
    pub(crate) fn bring(&self, part: &mut Part) -> Result<(), StoreError> {
        let target = part.target;
        match &mut part.piece {
            Some((run, buf)) => {
                self.read(target.key, run, buf)?;
                let lead = run.span(self.plan.block()).lead;
                self.verify(target, run.file, &buf[lead..lead + run.len])
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

    /// Compares a record with its checksum, if it has one and was not compared before. A record
    /// with a checksum is one extent, so `bytes` is the whole record.
    fn verify(&self, target: Target, file: FileIdx, bytes: &[u8]) -> Result<(), StoreError> {
        let Target { key, ordinal } = target;
        let Some(sums) = &self.plan.layer(key.layer).checksums else { return Ok(()) };
        let verified = &self.verified[ordinal.idx()];
        if verified.load(Ordering::Relaxed) {
            return Ok(());
        }
        if part_checksum(bytes) != sums[key.expert.idx()] {
            let path = self.plan.bank().files[file.0 as usize].path.clone();
            return Err(StoreError::Damaged { path, layer: key.layer.0, expert: key.expert.0 });
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

    /// Returns an error if a mapped file of the layer has changed its length: touching pages after
    /// the end of a file would end the process.
    pub(crate) fn check_maps(&self, layer: LayerIdx) -> Result<(), StoreError> {
        if self.maps.is_empty() {
            return Ok(());
        }
        self.plan.files_of(layer).iter().try_for_each(|&file| self.check_len(file))
    }

    /// Gives the pages of mapped files back to the system; the files stay mapped.
    pub(crate) fn release_maps(&self) {
        self.maps.iter().flatten().for_each(|map| map.release());
    }

    fn read(&self, key: ExpertKey, run: &Run, piece: &mut [u8]) -> Result<(), StoreError> {
        let block = self.plan.block();
        let span = run.span(block);
        let out = &mut piece[..span.len];
        // The last block of the span may extend past the end of the file.
        let wanted = span.lead + run.len;
        let mut got = 0;
        while got < wanted {
            // Reads begin at the start of a block, so a block that was read in part is read again.
            let from = got - got % block;
            match self.source.read_at(run.file, &mut out[from..], span.offset + from as u64) {
                Ok(n_bytes) if from + n_bytes <= got => {
                    return Err(self.short_read(key, run, got.saturating_sub(span.lead)));
                }
                Ok(n_bytes) => got = from + n_bytes,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => {
                    return Err(self.io_error(key, run, got.saturating_sub(span.lead), err));
                }
            }
        }
        Ok(())
    }

    fn populate(&self, key: ExpertKey) -> Result<(), StoreError> {
        for run in &self.plan.placement(key).runs {
            let Err(err) = populate(self.map(run.file), run) else { continue };
            self.check_len(run.file)?;
            if touching_kills(&err) {
                return Err(self.io_error(key, run, 0, err));
            }
        }
        Ok(())
    }

    fn map(&self, file: FileIdx) -> &Arc<MappedFile> {
        self.maps[file.0 as usize].as_ref().expect("missing files should not be read")
    }

    fn check_len(&self, file: FileIdx) -> Result<(), StoreError> {
        let expected = &self.plan.bank().files[file.0 as usize];
        match self.source.len(file) {
            Ok(actual) if actual == expected.len => Ok(()),
            Ok(actual) => Err(StoreError::Resized {
                path: expected.path.clone(),
                expected: expected.len,
                actual,
            }),
            Err(source) => Err(StoreError::Inspect { path: expected.path.clone(), source }),
        }
    }

    /// The error of a read that met the end of the file. If the file still has its full length, it
    /// is [`StoreError::ShortRead`].
    fn short_read(&self, key: ExpertKey, run: &Run, got: usize) -> StoreError {
        if let Err(err) = self.check_len(run.file) {
            return err;
        }
        let path = self.plan.bank().files[run.file.0 as usize].path.clone();
        let (layer, expert) = (key.layer.0, key.expert.0);
        StoreError::ShortRead { path, layer, expert, offset: run.offset, wanted: run.len, got }
    }

    fn io_error(&self, key: ExpertKey, run: &Run, got: usize, source: io::Error) -> StoreError {
        let path = self.plan.bank().files[run.file.0 as usize].path.clone();
        let is_direct = self.plan.block() > 1;
        if is_direct && source.kind() == io::ErrorKind::InvalidInput {
            return StoreError::NoDirect { path, source };
        }
        let (layer, expert) = (key.layer.0, key.expert.0);
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref::<FormatError>());
        if matches!(inner, Some(FormatError::Malformed { .. })) {
            return StoreError::Malformed { layer, expert, source };
        }
        StoreError::Io { path, layer, expert, offset: run.offset, wanted: run.len, got, source }
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
