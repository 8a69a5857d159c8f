//! The part of the prefix cache that is on the drive: a directory of snapshots, looked up by their
//! first tokens. Any number of processes may share it: files appear by rename, never change, and may
//! vanish at any time, the directory too.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use moeflux_core::atomic_file::{Durability, remove_abandoned_in};
use moeflux_core::{OptionId, TokenId, WriteError, private, show_bytes};

use super::file::{Contents, NextBlock, Summary, summary, write_blocks};
use super::host::{Facts, ModelCard};
use super::image::n_common;
use super::lock::locked;
use super::names::{EXTENSION, ModelKey};
use super::warnings::{Trouble, Warnings};
use crate::error::{EngineError, SnapshotError};
use crate::options::PromptCacheOptions;

/// After a file could not be written, none is for this long: what fills a drive is not tried again
/// with every prompt.
const REST: Duration = Duration::from_secs(60);

/// Snapshots of sessions in a directory.
#[derive(Debug)]
pub(crate) struct Drive {
    options: PromptCacheOptions,
    model: ModelCard,
    key: ModelKey,
    /// Summaries by path. The file of a name never changes.
    known: Mutex<HashMap<PathBuf, Arc<Summary>>>,
    /// Damaged files that could not be removed.
    refused: Mutex<HashSet<PathBuf>>,
    failed: Mutex<Option<Instant>>,
    warnings: Arc<Warnings>,
}

/// A snapshot that begins like a prompt.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) path: PathBuf,
    /// Tokens of the prompt that it saves evaluating.
    pub(crate) n_reusable: usize,
    pub(crate) n_bytes: u64,
    /// Whether the prompt goes on from its end, or from where its last answer began.
    pub(super) goes_on: bool,
}

/// A snapshot in the directory.
struct Entry {
    path: PathBuf,
    n_bytes: u64,
    last_use: SystemTime,
}

impl Drive {
    pub(super) fn open(
        options: &PromptCacheOptions,
        model: ModelCard,
        warnings: Arc<Warnings>,
    ) -> Result<Drive, SnapshotError> {
        private::create_dir_all(&options.dir).map_err(WriteError::at(&options.dir))?;
        remove_abandoned_in(&options.dir, |name| has_extension(Path::new(name)));
        Ok(Drive {
            options: options.clone(),
            key: ModelKey::of(&model),
            model,
            known: Mutex::default(),
            refused: Mutex::default(),
            failed: Mutex::default(),
            warnings,
        })
    }

    /// The snapshots that share a prefix with the first `limit` of `tokens`, the longest reusable
    /// prefix first.
    pub(super) fn candidates(&self, tokens: &[TokenId], limit: usize) -> Vec<Stored> {
        let mut found = Vec::new();
        for entry in self.own_entries() {
            let Some(summary) = self.summary(&entry.path) else { continue };
            let n_common = n_common(&summary.tokens, tokens).min(limit);
            let n_reusable = reusable(&self.model, &summary.states, n_common);
            if n_reusable == 0 {
                continue;
            }
            let goes_on = match summary.states[..] {
                // The first one is of a beginning that others share.
                [_, .., answer, _] => n_reusable >= answer,
                _ => n_reusable == summary.tokens.len(),
            };
            let n_bytes = summary.n_bytes;
            found.push(Stored { path: entry.path, n_reusable, n_bytes, goes_on });
        }
        found.sort_by_key(|found| (std::cmp::Reverse(found.n_reusable), found.n_bytes));
        found
    }

    /// The tokens of a snapshot and the positions of its states; `None` where it is damaged or
    /// of another model.
    fn summary(&self, path: &Path) -> Option<Arc<Summary>> {
        if let Some(summary) = locked(&self.known).get(path) {
            return Some(summary.clone());
        }
        if locked(&self.refused).contains(path) {
            return None;
        }
        match summary(path, &self.model) {
            Ok(summary) => {
                let summary = Arc::new(summary);
                locked(&self.known).insert(path.to_path_buf(), summary.clone());
                Some(summary)
            }
            Err(err) => {
                self.discard(path, &err);
                None
            }
        }
    }

    /// Marks a snapshot as recently used.
    pub(super) fn touch(&self, stored: &Stored) {
        touch(&stored.path);
    }

    /// Removes a snapshot that turned out to be damaged.
    pub(super) fn discard(&self, path: &Path, err: &SnapshotError) {
        locked(&self.known).remove(path);
        let is_damaged = matches!(
            err,
            SnapshotError::Damaged { .. }
                | SnapshotError::Length { .. }
                | SnapshotError::NotASnapshot { .. }
        );
        if !is_damaged {
            return;
        }
        // Another process may have removed it first.
        match fs::remove_file(path) {
            Err(failed) if failed.kind() != std::io::ErrorKind::NotFound => {
                locked(&self.refused).insert(path.to_path_buf());
                self.warnings.add(format!("left out of the prompt cache: {err}"));
            }
            _ => self.warnings.add(format!("removed from the prompt cache: {err}")),
        }
    }

    /// Whether the size limit allows a snapshot; it is said once where it does not.
    pub(super) fn takes(&self, contents: &Contents) -> bool {
        let (n_bytes, limit) = (contents.n_bytes(&self.model), self.options.max_bytes);
        if n_bytes > limit {
            let text = format!(
                "{} tokens take {}, the prompt cache may take {} ({})",
                contents.n_positions(),
                show_bytes(n_bytes),
                show_bytes(limit),
                OptionId::PromptCacheSize
            );
            self.warnings.add_once(Trouble::TooLarge, text);
        }
        n_bytes <= limit
    }

    /// Writes a snapshot if the size limit allows it, and returns its name. Removes `previous` if
    /// the new one continues it, and the least recently used ones where the limit is exceeded.
    ///
    /// # Errors
    /// Where the file cannot be written, or `block` fails.
    pub(super) fn put(
        &self,
        contents: &Contents,
        previous: Option<&str>,
        block: &mut NextBlock<'_, '_>,
    ) -> Result<Option<String>, EngineError> {
        let n_bytes = contents.n_bytes(&self.model);
        let name = self.key.name_of(contents);
        let path = self.options.dir.join(&name);
        if path.metadata().is_ok_and(|metadata| metadata.len() == n_bytes) {
            touch(&path);
            return Ok(Some(name));
        }
        if !self.takes(contents) {
            return Ok(None);
        }
        let made = private::create_dir_all(&self.options.dir);
        made.map_err(|err| SnapshotError::from(WriteError::at(&self.options.dir)(err)))?;
        self.evict_for(n_bytes);
        write_blocks(&self.model, contents, block, &path, Durability::Cached)?;
        self.remove_superseded(&path, contents, previous);
        *locked(&self.failed) = None;
        self.warnings.settle(Trouble::NotWritten);
        Ok(Some(name))
    }

    /// Says once that prompts cannot be written, until one can.
    pub(super) fn note_failure(&self, err: &EngineError) {
        *locked(&self.failed) = Some(Instant::now());
        self.warnings.add_once(Trouble::NotWritten, format!("the prompt is not kept: {err}"));
    }

    /// Whether a file could not be written a short time ago.
    pub(super) fn rests(&self) -> bool {
        locked(&self.failed).is_some_and(|at| at.elapsed() < REST)
    }

    /// Removes the snapshots that the one at `path` replaces: their tokens are a prefix of its
    /// tokens, and it has their states; of `previous`, which is of the same conversation, only the
    /// first, where that has a checkpoint of its own.
    fn remove_superseded(&self, path: &Path, contents: &Contents, previous: Option<&str>) {
        let previous = previous.map(|name| self.options.dir.join(name));
        for entry in self.own_entries().into_iter().filter(|entry| entry.path != path) {
            let Some(old) = self.summary(&entry.path) else { continue };
            let has_state = |at: &usize| contents.states.iter().any(|(position, _)| position == at);
            let is_previous = previous.as_deref() == Some(&*entry.path);
            let has_states = match &old.states[..] {
                states if !is_previous => states.iter().all(has_state),
                // Others may share the beginning of a conversation.
                [first, _, _, ..] => has_state(first),
                _ => true,
            };
            let n_common = n_common(&contents.tokens, &old.tokens);
            // Another answer may follow the same prompt.
            let is_prefix = n_common == old.tokens.len() || is_previous && n_common > 0;
            if is_prefix && has_states {
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
        locked(&self.known).remove(path);
    }

    /// The snapshots of this model.
    fn own_entries(&self) -> Vec<Entry> {
        let mut entries = self.entries();
        entries.retain(|entry| self.key.is_of(&entry.path));
        entries
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
}

/// How many of the first `n_common` positions can be gone on from, where states are at `states`.
pub(super) fn reusable(model: &dyn Facts, states: &[usize], n_common: usize) -> usize {
    if model.shape().is_recurrent() || !states.is_empty() {
        states.iter().copied().rfind(|state| *state <= n_common).unwrap_or(0)
    } else {
        n_common
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
