//! Writes the packed container: a directory whose experts lie in records of
//! one read each. Bounded memory, resumable, verified; `moeflux.json` comes
//! last, so that what was interrupted never opens.

mod companions;
mod convert;
mod destination;
mod journal;
mod layers;
mod layout;
mod options;
pub(crate) mod plan;
mod progress;
mod report;
mod resident;
mod tables;
mod tower;
mod verify;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use moeflux_core::WriteError;
use moeflux_core::checkpoint::{
    Checkpoint, Claims, Container, FormatError, PackedFile, SourceIdentity,
};
use moeflux_core::manifest::Manifest;
use moeflux_model::{TowerFiles, open_checkpoint};

use crate::described::described_tower;
use crate::files::{
    FileWriter, Written, available_space, checksum_of, checksums_of, require_space,
    write_atomically,
};
use crate::importance::Importance;
use crate::pack::companions::{Companion, companions_of};
use crate::pack::layout::FOLDER;
use destination::Remains;
use journal::{Done, Journal};
use plan::Plan;
use report::FileReport;
use tower::PackedTower;

pub use crate::error::PackError;
pub(crate) use destination::require_empty;
pub use journal::finished_files;
pub use options::{AskedBits, PackOptions, Rounding};
pub use progress::{OnPackProgress, PackProgress, PackStage};
pub use report::{KindReport, PackReport};
pub use verify::verify;

/// Packs `checkpoint`, whose family declares `manifest`, and its vision tower, if it has one, into `dst`.
///
/// What is quantised already is copied byte for byte. An interrupted packing
/// is continued by calling this again.
///
/// # Errors
/// Where the source does not match, the destination holds something else, its
/// drive has no room for all that is still to be written, or a file cannot be
/// written or does not read back.
pub fn pack(
    checkpoint: &Checkpoint,
    manifest: &Manifest,
    tower: Option<&TowerFiles>,
    dst: &Path,
    options: &PackOptions,
    progress: &mut OnPackProgress<'_>,
) -> Result<PackReport, PackError> {
    options.check()?;
    let plan = Plan::new(checkpoint, manifest, options)?;
    let tower = tower.map(PackedTower::new).transpose()?;
    let source = SourceIdentity::read(checkpoint, &plan.bank)?;
    let importance = options.importance.as_deref().map(Importance::open).transpose()?;
    if let Some(importance) = &importance {
        // The optional layers are those of multi-token prediction: calibration does not run them.
        let layers = plan.layers.iter().flatten().filter(|layer| !layer.is_optional);
        importance.check(&plan.model_key()?, layers.map(|layer| (layer.idx, &layer.packed)))?;
    }
    let _lock = destination::claim(checkpoint, dst)?;
    let checksum = importance.as_ref().map(|importance| importance.checksum().to_owned());
    let new = Journal::new(options, &source, checksum);
    let journal = destination::journal_of(dst, options.force, new)?;
    let plan = &plan;
    let sums = BTreeMap::new();
    let tower = tower.as_ref();
    let mut packing =
        Packing { plan, tower, dst, options, importance, journal, sums, progress, done: 0 };
    packing.resume()?;
    let remains = Remains::find(dst, &packing.journal);
    require_space(dst, packing.bytes_left(checkpoint).saturating_sub(remains.n_bytes))?;
    let done = packing.write(checkpoint, manifest, source, remains);
    done.map_err(|err| packing.explain(err, checkpoint))
}

/// One packing under way.
struct Packing<'a, 'p> {
    plan: &'a Plan<'a>,
    tower: Option<&'a PackedTower<'a>>,
    dst: &'a Path,
    options: &'a PackOptions,
    importance: Option<Importance>,
    journal: Journal,
    /// By file: checksums of its parts.
    sums: BTreeMap<String, Vec<u64>>,
    progress: &'a mut OnPackProgress<'p>,
    done: u64,
}

impl<'a> Packing<'a, '_> {
    /// The files of weights and their lengths.
    fn files(&self) -> Vec<(String, u64)> {
        self.plan.files().chain(self.tower.map(PackedTower::file)).collect()
    }

    /// The plan of a file of tensors.
    fn tensors_of(&self, path: &str) -> &'a Plan<'a> {
        match self.tower {
            Some(PackedTower::Tensors(tower)) if path == tower.file => tower,
            _ => self.plan,
        }
    }

    fn advance(&mut self, stage: PackStage, file: &str, n: u64) {
        self.done += n;
        let total = 2 * self.files().iter().map(|file| file.1).sum::<u64>();
        (self.progress)(PackProgress { stage, file, done: self.done, total });
    }

    /// Keeps of the journal what is still there, byte for byte.
    fn resume(&mut self) -> Result<(), PackError> {
        for (path, n_bytes) in self.files() {
            let Some(done) = self.journal.find(&path).cloned() else { continue };
            let file = self.dst.join(&path);
            if !file.metadata().is_ok_and(|metadata| metadata.len() == n_bytes) {
                self.journal.forget(&path);
                continue;
            }
            self.done += n_bytes;
            let parts = self.tensors_of(&path).parts(&path);
            let advance = &mut |n| self.advance(PackStage::Resume, &path, n);
            let sums = checksums_of(&file, parts, advance)?;
            if (sums.n_bytes(), sums.hex()) != (n_bytes, done.file.xxh3_128) {
                self.journal.forget(&path);
                self.done -= 2 * n_bytes;
            }
            self.sums.insert(path, sums.parts().to_vec());
        }
        Ok(())
    }

    /// Bytes that are still to be written, those of descriptions estimated.
    fn bytes_left(&self, checkpoint: &Checkpoint) -> u64 {
        /// What a file takes in the container's description and in the journal.
        const LISTED_BYTES: u64 = 2048;
        let files = self.files();
        let missing = files.iter().filter(|file| self.journal.find(&file.0).is_none());
        let missing: u64 = missing.map(|missing| missing.1).sum();
        // What cannot be read is refused when it is written.
        let companions = companions_of(checkpoint).unwrap_or_default();
        let companions = companions.iter().map(Companion::n_bytes);
        missing + companions.sum::<u64>() + LISTED_BYTES * files.len() as u64
    }

    /// Writes all that is missing, and the container's description last.
    fn write(
        &mut self,
        checkpoint: &Checkpoint,
        manifest: &Manifest,
        source: SourceIdentity,
        remains: Remains,
    ) -> Result<PackReport, PackError> {
        let folder = self.dst.join(FOLDER);
        self.journal.save(self.dst)?;
        remains.remove(self.dst)?;
        fs::create_dir_all(&folder).map_err(WriteError::at(&folder))?;
        for layer in 0..self.plan.layers.len() {
            self.layer(layer)?;
        }
        self.tensors(self.plan)?;
        self.tower()?;
        let companions = self.companions(checkpoint)?;
        let report = self.report(&companions);
        self.finish(checkpoint, manifest, source, companions)?;
        Ok(report)
    }

    /// Says how much room is missing where a drive became full meanwhile.
    fn explain(&self, err: PackError, checkpoint: &Checkpoint) -> PackError {
        let (PackError::Write(WriteError::NoSpace { path, .. }), Ok(available)) =
            (&err, available_space(self.dst))
        else {
            return err;
        };
        let missing = self.bytes_left(checkpoint).saturating_sub(available);
        // A quota may be less than the drive.
        let missing = (missing > 0).then_some(missing);
        PackError::Write(WriteError::NoSpace { path: path.clone(), missing })
    }

    fn layer(&mut self, layer: usize) -> Result<(), PackError> {
        let Some(layer) = self.plan.layers[layer].as_ref() else { return Ok(()) };
        let path = &layer.packed.file;
        if self.journal.find(path).is_some() {
            return Ok(());
        }
        let importance = self.importance.as_ref().filter(|_| !layer.is_optional);
        let importance = importance.map(|importance| importance.layer(layer.idx)).transpose()?;
        let parts = self.plan.parts(path);
        let mut writer = FileWriter::create_with_parts(&self.dst.join(path), parts)?;
        let (plan, n_threads) = (self.plan, self.options.threads());
        let advance = &mut |n| self.advance(PackStage::Write, path, n);
        let importance = importance.as_ref();
        let report = layers::write(plan, layer, importance, n_threads, &mut writer, advance)?;
        let written = writer.finish()?;
        self.check_written(path, &written)?;
        layers::check(self.plan, layer, &written)?;
        self.publish(path, written, report)
    }

    /// Writes the file of resident tensors, or that of the tower's.
    fn tensors(&mut self, plan: &'a Plan<'a>) -> Result<(), PackError> {
        let path = plan.file;
        if self.journal.find(path).is_some() {
            return Ok(());
        }
        let parts = plan.parts(path);
        let mut writer = FileWriter::create_with_parts(&self.dst.join(path), parts)?;
        let n_threads = self.options.threads();
        let advance = &mut |n| self.advance(PackStage::Write, path, n);
        let report = resident::write(plan, n_threads, &mut writer, advance)?;
        let written = writer.finish()?;
        self.check_written(path, &written)?;
        resident::check(plan, &written)?;
        self.publish(path, written, report)
    }

    fn tower(&mut self) -> Result<(), PackError> {
        let from = match self.tower {
            None => return Ok(()),
            Some(PackedTower::Tensors(plan)) => return self.tensors(plan),
            Some(PackedTower::File(from, _)) => from,
        };
        let path = Container::MMPROJ;
        if self.journal.find(path).is_some() {
            return Ok(());
        }
        let mut writer = FileWriter::create(&self.dst.join(path))?;
        let advance = &mut |n| self.advance(PackStage::Write, path, n);
        let report = tower::copy(from, &mut writer, advance)?;
        let written = writer.finish()?;
        self.check_written(path, &written)?;
        self.publish(path, written, report)
    }

    /// Reads back what is on the drive.
    fn check_written(&mut self, path: &str, written: &Written) -> Result<(), PackError> {
        let advance = &mut |n| self.advance(PackStage::Verify, path, n);
        let (n_bytes, checksum) = checksum_of(&written.partial, advance)?;
        if (n_bytes, checksum.as_str()) != (written.n_bytes, written.checksum.as_str()) {
            let what = "does not read back as it was written; is the drive failing?";
            return Err(PackError::damaged(&written.partial, what));
        }
        Ok(())
    }

    fn publish(
        &mut self,
        path: &str,
        written: Written,
        report: FileReport,
    ) -> Result<(), PackError> {
        let file = PackedFile {
            path: path.to_owned(),
            bytes: written.n_bytes,
            xxh3_128: written.checksum.clone(),
        };
        self.sums.insert(path.to_owned(), written.parts.clone());
        written.publish()?;
        self.journal.note(self.dst, Done { file, report })
    }

    fn companions(&mut self, checkpoint: &Checkpoint) -> Result<Vec<PackedFile>, PackError> {
        let mut files = Vec::new();
        for companion in companions_of(checkpoint)? {
            let bytes = companion.read()?;
            let to = self.dst.join(&companion.name);
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder).map_err(WriteError::at(folder))?;
            }
            let written = write_atomically(&to, &bytes)?;
            let (bytes, xxh3_128) = (written.n_bytes, written.checksum.clone());
            files.push(PackedFile { path: companion.name, bytes, xxh3_128 });
            written.publish()?;
        }
        Ok(files)
    }

    fn report(&self, companions: &[PackedFile]) -> PackReport {
        let mut report = PackReport {
            undivided: self.plan.undivided.clone(),
            n_resumed: self.journal.n_resumed(),
            ..Default::default()
        };
        for done in self.journal.done() {
            report.add_file(&done.report);
            report.n_bytes += done.file.bytes;
        }
        report.n_bytes += companions.iter().map(|file| file.bytes).sum::<u64>();
        report
    }

    fn finish(
        &self,
        checkpoint: &Checkpoint,
        manifest: &Manifest,
        source: SourceIdentity,
        companions: Vec<PackedFile>,
    ) -> Result<(), PackError> {
        let mut files: Vec<PackedFile> =
            self.journal.done().iter().map(|done| done.file.clone()).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files.extend(companions);
        let mut container = self.plan.container(checkpoint.config(), source, files, &self.sums);
        if let Some(PackedTower::Tensors(tower)) = self.tower {
            tower.add_tower(&mut container, &self.sums);
        }
        publish_container(self.dst, &container)?;
        let opened = open_and_claim(self.dst, manifest);
        let opened = opened.map_err(PackError::from).and_then(|()| self.open_tower());
        if opened.is_err() {
            let path = self.dst.join(Container::FILE);
            fs::remove_file(&path).map_err(WriteError::at(&path))?;
        }
        opened?;
        Journal::remove(self.dst)
    }

    /// Opens the tower of the container as an engine would.
    fn open_tower(&self) -> Result<(), PackError> {
        let Some(tower) = self.tower else { return Ok(()) };
        match described_tower(&open_checkpoint(self.dst)?)? {
            Some(_) => Ok(()),
            None => {
                Err(PackError::damaged(&self.dst.join(tower.file().0), "holds no vision tower"))
            }
        }
    }
}

/// Writes `moeflux.json`, which makes the directory a container.
pub(crate) fn publish_container(dst: &Path, container: &Container) -> Result<(), PackError> {
    let path = dst.join(Container::FILE);
    let text = serde_json::to_vec_pretty(container).expect("a container is plain data");
    Container::from_slice(&path, &text)?;
    Ok(write_atomically(&path, &text)?.publish()?)
}

/// Opens a container as an engine would.
pub(crate) fn open_and_claim(dst: &Path, manifest: &Manifest) -> Result<(), FormatError> {
    let checkpoint = open_checkpoint(dst)?;
    let mut claims = Claims::new(&checkpoint);
    for decl in &manifest.matrices {
        claims.matrix(decl)?;
    }
    for decl in &manifest.vectors {
        claims.vector(decl)?;
    }
    for decl in &manifest.indices {
        claims.indices(decl)?;
    }
    for decl in &manifest.constants {
        claims.constants(decl)?;
    }
    for decl in &manifest.experts {
        claims.experts(decl)?;
    }
    for decl in &manifest.tables {
        claims.table(decl)?;
    }
    claims.finish()
}

#[cfg(test)]
mod tests;
