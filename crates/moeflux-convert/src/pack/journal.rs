//! What a packing has finished, so that the next run continues there.

use std::fs;
use std::path::Path;

use moeflux_core::checkpoint::{Container, PackedFile, SourceIdentity};
use moeflux_core::files::read_bounded;
use serde::{Deserialize, Serialize};

use super::PackOptions;
use super::report::FileReport;
use crate::error::PackError;
use crate::files::{sync_dir, write_atomically};

/// A packing that has not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Journal {
    version: u32,
    options: PackOptions,
    source: SourceIdentity,
    /// Checksum of the importance file.
    #[serde(default)]
    importance: Option<String>,
    done: Vec<Done>,
    /// How many of them this run wrote.
    #[serde(skip)]
    n_new: usize,
}

/// What there is of a journal.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Loaded {
    Missing,
    Whole(Journal),
    /// Of another version.
    Version(u64),
    /// Cut short, or no journal at all.
    Damaged,
}

impl Loaded {
    pub(super) fn from_slice(bytes: &[u8]) -> Loaded {
        #[derive(Deserialize)]
        struct Versioned {
            version: u64,
        }
        match serde_json::from_slice::<Versioned>(bytes) {
            Ok(head) if head.version != u64::from(VERSION) => Loaded::Version(head.version),
            Ok(_) => serde_json::from_slice(bytes).map_or(Loaded::Damaged, Loaded::Whole),
            Err(_) => Loaded::Damaged,
        }
    }
}

/// A file that is whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) file: PackedFile,
    pub(super) report: FileReport,
}

const VERSION: u32 = 1;

/// Longest journal that is read; that of a thousand layers has less than a megabyte.
const MAX_BYTES: u64 = 64 << 20;

/// The files that are whole, as the journal of a packing says
/// (`moeflux.pack.json`); `None` where that is damaged or of another version.
pub fn finished_files(journal: &[u8]) -> Option<Vec<PackedFile>> {
    match Loaded::from_slice(journal) {
        Loaded::Whole(journal) => Some(journal.done.into_iter().map(|done| done.file).collect()),
        _ => None,
    }
}

impl Journal {
    pub(super) fn new(
        options: &PackOptions,
        source: &SourceIdentity,
        importance: Option<String>,
    ) -> Journal {
        let (options, source) = (options.clone(), source.clone());
        Journal { version: VERSION, options, source, importance, done: Vec::new(), n_new: 0 }
    }

    /// The journal of a directory.
    pub(super) fn load(dst: &Path) -> Result<Loaded, PackError> {
        let path = dst.join(Container::JOURNAL);
        match read_bounded(&path, MAX_BYTES) {
            Ok(bytes) => Ok(Loaded::from_slice(&bytes)),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(Loaded::Missing),
            Err(source) => Err(PackError::read(&path, source)),
        }
    }

    pub(super) fn save(&self, dst: &Path) -> Result<(), PackError> {
        let text = serde_json::to_vec_pretty(self).expect("a journal is plain data");
        Ok(write_atomically(&dst.join(Container::JOURNAL), &text)?.publish()?)
    }

    pub(super) fn remove(dst: &Path) -> Result<(), PackError> {
        let path = dst.join(Container::JOURNAL);
        match fs::remove_file(&path) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                Err(PackError::read(&path, err))
            }
            _ => Ok(sync_dir(dst)?),
        }
    }

    /// Refuses to continue what was begun otherwise.
    pub(super) fn check_same(&self, dst: &Path, new: &Journal) -> Result<(), PackError> {
        let mine = serde_json::to_value(&self.options).expect("options are plain data");
        let yours = serde_json::to_value(&new.options).expect("options are plain data");
        let differs = |what: String| Err(PackError::Differs { path: dst.to_path_buf(), what });
        for (key, mine) in mine.as_object().into_iter().flatten() {
            if yours[key] != *mine {
                return differs(format!("{key} was {mine}, now it is {}", yours[key]));
            }
        }
        if self.importance != new.importance {
            return differs("the importance file is another one".to_owned());
        }
        let source = &new.source;
        if self.source.files != source.files {
            let odd = self.source.files.iter().find(|file| !source.files.contains(file));
            let name = odd.or(source.files.last()).map_or("the source", |file| file.0.as_str());
            return differs(format!("the source differs in {name}"));
        }
        if self.source.fingerprint != source.fingerprint {
            return differs("the source's config, tensors or weights have changed".to_owned());
        }
        Ok(())
    }

    pub(super) fn find(&self, path: &str) -> Option<&Done> {
        self.done.iter().find(|done| done.file.path == path)
    }

    pub(super) fn done(&self) -> &[Done] {
        &self.done
    }

    /// Files that an earlier run finished.
    pub(super) fn n_resumed(&self) -> usize {
        self.done.len() - self.n_new
    }

    pub(super) fn forget(&mut self, path: &str) {
        self.done.retain(|done| done.file.path != path);
    }

    /// Notes a file that is whole.
    pub(super) fn note(&mut self, dst: &Path, done: Done) -> Result<(), PackError> {
        self.done.push(done);
        self.n_new += 1;
        self.save(dst)
    }
}
