//! The prefix cache on disk: a directory of snapshots, looked up by their first tokens. Any
//! number of processes may share it: files appear by rename, never change, and may vanish at any
//! time.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use moeflux_backend::Sequence;
use moeflux_core::atomic_file::{Durability, remove_abandoned_in};
use moeflux_core::checkpoint::Checksum;
use moeflux_core::{OptionId, TokenId, WriteError, private, show_bytes};

use super::file::{Contents, Summary, summary, write};
use super::header::{Header, VERSION};
use super::host::Host;
use crate::error::{EngineError, SnapshotError};
use crate::options::PromptCacheOptions;

/// The extension of the names of snapshots.
const EXTENSION: &str = "snapshot";

/// The prefix cache on disk: snapshots of sessions in a directory.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    options: PromptCacheOptions,
    /// Summaries by path. The file of a name never changes.
    known: Mutex<HashMap<PathBuf, Arc<Summary>>>,
    warnings: Mutex<Vec<String>>,
}

/// A snapshot that begins like a prompt.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) path: PathBuf,
    /// Tokens of the prompt that it saves evaluating.
    pub(crate) n_reusable: usize,
    pub(crate) n_bytes: u64,
}

/// A snapshot in the directory.
struct Entry {
    path: PathBuf,
    n_bytes: u64,
    last_use: SystemTime,
}

impl PrefixCache {
    pub(crate) fn open(options: &PromptCacheOptions) -> Result<PrefixCache, SnapshotError> {
        private::create_dir_all(&options.dir).map_err(WriteError::at(&options.dir))?;
        remove_abandoned_in(&options.dir, |name| has_extension(Path::new(name)));
        let (known, warnings) = (Mutex::default(), Mutex::default());
        Ok(PrefixCache { options: options.clone(), known, warnings })
    }

    /// The snapshots that share a prefix with the first `limit` of `tokens`, the longest reusable
    /// prefix first.
    pub(crate) fn candidates(
        &self,
        host: &dyn Host,
        tokens: &[TokenId],
        limit: usize,
    ) -> Vec<Stored> {
        let own = model_key(host);
        let mut found = Vec::new();
        for entry in self.entries().into_iter().filter(|entry| entry.is_of(&own)) {
            let Some(summary) = self.summary(&entry.path, host) else { continue };
            let equal = summary.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            let n_common = equal.min(limit);
            let state = summary.states.iter().rev().find(|state| **state <= n_common);
            let n_reusable = if host.shape().is_recurrent() || !summary.states.is_empty() {
                state.copied().unwrap_or(0)
            } else {
                n_common
            };
            if n_reusable > 0 {
                found.push(Stored { path: entry.path, n_reusable, n_bytes: summary.n_bytes });
            }
        }
        found.sort_by_key(|found| (std::cmp::Reverse(found.n_reusable), found.n_bytes));
        found
    }

    /// The tokens of a snapshot and the positions of its states; `None` where it is damaged or
    /// of another model.
    fn summary(&self, path: &Path, host: &dyn Host) -> Option<Arc<Summary>> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(summary) = known().get(path) {
            return Some(summary.clone());
        }
        match summary(path, host) {
            Ok(summary) => {
                let summary = Arc::new(summary);
                known().insert(path.to_path_buf(), summary.clone());
                Some(summary)
            }
            Err(err) => {
                self.discard_file(path, &err);
                None
            }
        }
    }

    /// Marks a snapshot as recently used.
    pub(crate) fn touch(&self, stored: &Stored) {
        touch(&stored.path);
    }

    /// Removes a snapshot that turned out to be damaged.
    pub(crate) fn discard(&self, stored: &Stored, err: &SnapshotError) {
        self.discard_file(&stored.path, err);
    }

    fn discard_file(&self, path: &Path, err: &SnapshotError) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
        let is_damaged = matches!(
            err,
            SnapshotError::Damaged { .. }
                | SnapshotError::Length { .. }
                | SnapshotError::NotASnapshot { .. }
        );
        if is_damaged {
            // Another process may have removed it first.
            let _ = fs::remove_file(path);
            self.warn(format!("removed from the prompt cache: {err}"));
        }
    }

    /// Writes a snapshot if the size limit allows it, and returns its path. Removes `previous` if
    /// the new one continues it, and the least recently used ones where the limit is exceeded.
    pub(crate) fn put(
        &self,
        host: &dyn Host,
        sequence: Sequence,
        contents: &Contents,
        previous: Option<&Path>,
    ) -> Result<Option<PathBuf>, EngineError> {
        let header = contents.header(host);
        let json = serde_json::to_vec(&header).expect("a header is plain data");
        let n_bytes = header.file_bytes(json.len(), &host.shape().caches);
        let path = self.options.dir.join(file_name(&model_key(host), contents));
        if path.metadata().is_ok_and(|metadata| metadata.len() == n_bytes) {
            touch(&path);
            return Ok(Some(path));
        }
        let limit = self.options.max_bytes;
        if n_bytes > limit {
            self.warn(format!(
                "{} tokens take {}, the prompt cache may take {} ({})",
                contents.n_positions(),
                show_bytes(n_bytes),
                show_bytes(limit),
                OptionId::PromptCacheSize
            ));
            return Ok(None);
        }
        self.evict_for(n_bytes);
        write(host, sequence, contents, &path, Durability::Cached)?;
        self.remove_superseded(host, &path, contents, previous);
        Ok(Some(path))
    }

    /// Removes the snapshots that the one at `path` replaces: their tokens are a prefix of its
    /// tokens, and it has their states.
    fn remove_superseded(
        &self,
        host: &dyn Host,
        path: &Path,
        contents: &Contents,
        previous: Option<&Path>,
    ) {
        let own = model_key(host);
        for entry in
            self.entries().into_iter().filter(|entry| entry.is_of(&own) && entry.path != path)
        {
            let Some(old) = self.summary(&entry.path, host) else { continue };
            let has_state = |at: &usize| contents.states.iter().any(|(position, _)| position == at);
            let is_previous = previous == Some(&*entry.path);
            let is_prefix = contents.tokens.starts_with(&old.tokens);
            if is_prefix && (is_previous || old.states.iter().all(has_state)) {
                self.remove(&entry.path);
            }
        }
    }

    /// Removes the least recently used snapshots until `n_bytes` more fit.
    fn evict_for(&self, n_bytes: u64) {
        let mut entries = self.entries();
        entries.sort_by(|a, b| (a.last_use, &a.path).cmp(&(b.last_use, &b.path)));
        let mut total: u64 = entries.iter().map(|entry| entry.n_bytes).sum();
        for entry in entries {
            if total.saturating_add(n_bytes) <= self.options.max_bytes {
                break;
            }
            self.remove(&entry.path);
            total -= entry.n_bytes;
        }
    }

    fn remove(&self, path: &Path) {
        // Another process may have removed it first.
        let _ = fs::remove_file(path);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
    }

    /// The snapshots in the directory. Those that others may read, which
    /// earlier versions wrote, are restricted to their owner.
    fn entries(&self) -> Vec<Entry> {
        let Ok(dir) = fs::read_dir(&self.options.dir) else { return Vec::new() };
        let mut entries = Vec::new();
        for entry in dir.flatten() {
            let path = entry.path();
            // Files vanish between listing and looking.
            let Ok(facts) = entry.metadata() else { continue };
            if !has_extension(&path) || !facts.is_file() {
                continue;
            }
            // One of another user's stays as it is.
            let _ = private::restrict(&path);
            let last_use = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            entries.push(Entry { path, n_bytes: facts.len(), last_use });
        }
        entries
    }

    /// Keeps a warning for the user.
    pub(crate) fn warn(&self, text: String) {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// Takes the warnings since the last call.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Entry {
    fn is_of(&self, model_key: &str) -> bool {
        let name = self.path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(model_key))
    }
}

fn has_extension(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// Sets the time of the last use. Where times cannot be set, the oldest is evicted first.
fn touch(path: &Path) {
    let file = File::options().write(true).open(path);
    let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
}

/// Digits of the hashes in file names.
const KEY_DIGITS: usize = 16;

/// A hash of all that a snapshot's header must agree with.
fn model_key(host: &dyn Host) -> String {
    let header = Header::new(host, 0, 0, std::iter::empty());
    let json = serde_json::to_string(&header).expect("a header is plain data");
    hash(format!("{VERSION} {json}").as_bytes())
}

fn file_name(model_key: &str, contents: &Contents) -> String {
    let mut bytes = Vec::new();
    for token in &contents.tokens {
        bytes.extend(token.0.to_le_bytes());
    }
    for (position, _) in &contents.states {
        bytes.extend((*position as u64).to_le_bytes());
    }
    format!("{model_key}-{}.{EXTENSION}", hash(&bytes))
}

fn hash(bytes: &[u8]) -> String {
    let mut checksum = Checksum::default();
    checksum.update(bytes);
    let mut hex = checksum.hex();
    hex.truncate(KEY_DIGITS);
    hex
}
