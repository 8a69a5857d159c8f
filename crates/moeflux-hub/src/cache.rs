//! The layout of Hugging Face's cache: `blobs` by content, `snapshots` by commit, `refs` by name.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use moeflux_core::files::{read_bounded, read_text_bounded};
use serde_json::Value;

use super::error::HubError;
use super::event::Event;
use super::gguf::{Entry, Sets};
use super::name::{Repo, is_gguf};
use super::select::{COMPANIONS, CONFIG, CONTAINER, INDEX, PREPARED_INDEX, has_tokenizer, shards};
use crate::name::is_hex;

/// Folders within one another in which GGUF files are looked for.
const MAX_FOLDERS: usize = 3;

/// Names of a folder that are looked at.
const MAX_NAMES: usize = 10_000;

/// Indexes longer than this are none; that of the largest model has 20 MB.
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// Which copies of a GGUF file count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fitness {
    /// Those that fit so well that no other file can be meant.
    Certain,
    /// All that fit, of those that are here.
    Any,
}

/// The cached copies of one repository.
pub(super) struct Cache {
    dir: PathBuf,
    root: PathBuf,      // models--org--name in `dir`
    lock_file: PathBuf, // in `dir`/.locks
}

impl Cache {
    pub(super) fn new(cache_dir: &Path, repo: &Repo) -> Self {
        let folder = format!("models--{}", repo.name.replace('/', "--"));
        let lock_file = cache_dir.join(".locks").join(&folder).join("moeflux.lock");
        Self { dir: cache_dir.to_owned(), root: cache_dir.join(folder), lock_file }
    }

    /// The folder of all repositories.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes that the cache's file system has left for this user, if it says so. The cache itself
    /// need not exist yet.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        free_bytes(&self.dir)
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, name: &str) -> PathBuf {
        self.root.join("blobs").join(name)
    }

    /// Where a blob grows until it is whole.
    pub(super) fn partial(&self, name: &str) -> PathBuf {
        self.blob(&format!("{name}.incomplete"))
    }

    /// The path of a model that is complete here, by the commit that its revision is or was.
    pub(super) fn copy_of(&self, repo: &Repo, fitness: Fitness) -> Option<PathBuf> {
        let by_commit = self.complete_snapshot(&repo.revision, repo, fitness);
        by_commit.or_else(|| self.complete_snapshot(&self.read_ref(repo)?, repo, fitness))
    }

    /// The path of the model in the snapshot of a commit, if all that it needs is there.
    pub(super) fn complete_snapshot(
        &self,
        commit: &str,
        repo: &Repo,
        fitness: Fitness,
    ) -> Option<PathBuf> {
        let dir = Some(self.snapshot(commit)).filter(|_| is_hex(commit, 40))?;
        let whole = if repo.gguf.is_none() { self.complete_directory(commit) } else { None };
        whole.or_else(|| complete_gguf(&dir, repo, fitness))
    }

    /// The snapshot of a commit if all that a model of safetensors or a container needs is there.
    ///
    /// Downloads of ours put `config.json` in place last. Other tools do not, so the files that an
    /// index names must be there too.
    fn complete_directory(&self, commit: &str) -> Option<PathBuf> {
        let dir = self.snapshot(commit);
        let has = |name: &str| dir.join(name).is_file();
        let named = if has(CONTAINER) {
            let container = read_json(&dir.join(CONTAINER))?;
            let files = container.get("files")?.as_array()?;
            files.iter().map(|file| Some(file.get("path")?.as_str()?.to_owned())).collect()
        } else if has(PREPARED_INDEX) || has(&format!("artifacts/{PREPARED_INDEX}")) {
            let folder = if has(PREPARED_INDEX) { "" } else { "artifacts/" };
            Some(vec![format!("{folder}model_weights.bin")])
        } else if !has(CONFIG) {
            None
        } else if has(INDEX) {
            Some(shards(&read_bounded(&dir.join(INDEX), MAX_INDEX_BYTES).ok()?, &files_in(&dir))?)
        } else {
            plain_shards(&files_in(&dir))
        };
        let named: Vec<String> = named?;
        named.iter().all(|name| has(name)).then_some(dir)
    }

    /// Whether all small files of a commit are here, or known not to exist: Hugging Face's own tools note by
    /// empty files which ones they looked for and did not find.
    pub(super) fn has_companions(&self, commit: &str) -> bool {
        let dir = self.snapshot(commit);
        let is_known =
            |name: &&str| dir.join(name).is_file() || self.absent(commit, name).is_file();
        COMPANIONS.iter().all(is_known) && has_tokenizer(files_in(&dir).iter().map(String::as_str))
    }

    /// Notes the small files that a commit does not have.
    pub(super) fn note_absent(
        &self,
        commit: &str,
        has: impl Fn(&str) -> bool,
    ) -> std::io::Result<()> {
        for name in COMPANIONS.into_iter().filter(|name| !has(name)) {
            let path = self.absent(commit, name);
            if !path.is_file() {
                path.parent().map_or(Ok(()), fs::create_dir_all)?;
                File::create(path)?;
            }
        }
        Ok(())
    }

    /// The note that a commit does not have a file.
    fn absent(&self, commit: &str, name: &str) -> PathBuf {
        self.root.join(".no_exist").join(commit).join(name)
    }

    /// The commit that a revision stood for when it was last asked.
    pub(super) fn read_ref(&self, repo: &Repo) -> Option<String> {
        commit_in(&self.root.join("refs").join(&repo.revision))
    }

    pub(super) fn write_ref(&self, repo: &Repo, commit: &str) -> Result<(), HubError> {
        if repo.revision == commit {
            return Ok(());
        }
        let path = self.root.join("refs").join(&repo.revision);
        if self.read_ref(repo).is_some_and(|known| known == commit) {
            return Ok(());
        }
        create_parent(&path)?;
        let fresh = path.with_extension("incomplete");
        fs::write(&fresh, commit).map_err(HubError::io("write", &fresh))?;
        fs::rename(&fresh, &path).map_err(HubError::io("write", &path))
    }

    /// Keeps other processes from downloading the same repository while the file is open.
    pub(super) fn lock(&self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<File, HubError> {
        let path = &self.lock_file;
        create_parent(path)?;
        let file = open_lock(path)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                on_event(Event::Waiting { lock: path });
                file.lock().map_err(HubError::io("lock", path))?;
                Ok(file)
            }
            // Some network drives have no locks; a download there is still put in place atomically.
            Err(TryLockError::Error(e)) if e.kind() == std::io::ErrorKind::Unsupported => Ok(file),
            Err(TryLockError::Error(e)) => Err(HubError::io("lock", path)(e)),
        }
    }

    /// Whether `path` of the snapshot is there, and of the right size.
    pub(super) fn has(&self, commit: &str, path: &str, size: u64) -> bool {
        let found = fs::metadata(self.snapshot(commit).join(path));
        found.is_ok_and(|meta| meta.is_file() && size == meta.len())
    }

    /// Makes the blob appear as `path` in the snapshot.
    pub(super) fn link(&self, commit: &str, path: &str, blob: &str) -> Result<(), HubError> {
        let link = self.snapshot(commit).join(path);
        create_parent(&link)?;
        match fs::remove_file(&link) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(HubError::io("replace", &link)(e));
            }
            _ => {}
        }
        let up = "../".repeat(2 + path.matches('/').count());
        let target = format!("{up}blobs/{blob}");
        symlink_or_copy(&target, &self.blob(blob), &link).map_err(HubError::io("create", &link))
    }
}

/// Opens or creates the file of a lock. A pipe in its place would wait for another process.
pub(super) fn open_lock(path: &Path) -> Result<File, HubError> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let other = std::io::Error::other("something other than a file is in the place of a lock");
        return Err(HubError::io("open", path)(other));
    }
    let opened = File::options().create(true).truncate(false).write(true).open(path);
    opened.map_err(HubError::io("open", path))
}

/// Bytes that the file system of a folder, which need not exist, has left for this user.
pub(super) fn free_bytes(dir: &Path) -> Option<u64> {
    let dir = std::path::absolute(dir).ok()?;
    let existing = dir.ancestors().find(|dir| dir.is_dir())?;
    fs4::available_space(existing).ok()
}

/// The GGUF file of a snapshot that fits what is asked for, if all of its parts are there.
/// Downloads put a file in place when it is whole.
fn complete_gguf(dir: &Path, repo: &Repo, fitness: Fitness) -> Option<PathBuf> {
    let mut paths = Vec::new();
    list_gguf(dir, "", MAX_FOLDERS, &mut paths);
    let sets = Sets::of(paths.iter().map(|path| Entry { path, size: None }));
    let choice = sets.choose(repo.gguf.as_ref(), &repo.name).ok()?;
    let is_good = fitness == Fitness::Any || choice.is_certain;
    let is_there = choice.set.parts.iter().all(|part| dir.join(part).is_file());
    (is_good && is_there).then(|| dir.join(choice.set.first()))
}

/// Adds the relative paths of GGUF files below `dir`, which is called `name` in them.
fn list_gguf(dir: &Path, name: &str, n_folders: usize, paths: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.take(MAX_NAMES).flatten() {
        let Ok(own) = entry.file_name().into_string() else { continue };
        let path = if name.is_empty() { own } else { format!("{name}/{own}") };
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && n_folders > 0 => {
                list_gguf(&entry.path(), &path, n_folders - 1, paths);
            }
            _ if is_gguf(&path) => paths.push(path),
            _ => {}
        }
    }
}

/// The safetensors of a folder without an index, those that their names promise included.
fn plain_shards(files: &BTreeSet<String>) -> Option<Vec<String>> {
    let is_weights = |name: &&String| name.ends_with(".safetensors");
    let names: Vec<String> = files.iter().filter(is_weights).cloned().collect();
    if names.iter().any(|name| name == "model.safetensors") {
        return Some(Vec::new());
    }
    let mut needed = names.clone();
    for name in &names {
        // model-00001-of-00003.safetensors
        let Some((start, end)) = name.split_once("-of-") else { continue };
        let Some((stem, _)) = start.rsplit_once('-') else { continue };
        let Some(Ok(n)) = end.split('.').next().map(str::parse::<u32>) else { continue };
        needed.extend((1..=n.min(100_000)).map(|i| format!("{stem}-{i:05}-of-{end}")));
    }
    (!needed.is_empty()).then_some(needed)
}

/// The names of the files of a folder. Links that lead nowhere are none.
fn files_in(dir: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    names.filter(|name| dir.join(name).is_file()).collect()
}

/// Bytes of the file of a branch or a tag, at most.
const MAX_REF_BYTES: u64 = 4096;

/// The commit in a file of a branch or a tag. What is no regular file, such as a pipe, has none.
pub(super) fn commit_in(path: &Path) -> Option<String> {
    Some(read_text_bounded(path, MAX_REF_BYTES).ok()?.trim().to_owned())
}

fn read_json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(unix)]
fn symlink_or_copy(target: &str, blob: &Path, link: &Path) -> std::io::Result<()> {
    // Some drives have no symbolic links.
    std::os::unix::fs::symlink(target, link).or_else(|_| fs::hard_link(blob, link))
}

#[cfg(not(unix))]
fn symlink_or_copy(_target: &str, blob: &Path, link: &Path) -> std::io::Result<()> {
    fs::hard_link(blob, link).or_else(|_| fs::copy(blob, link).map(|_| ()))
}

pub(super) fn create_parent(path: &Path) -> Result<(), HubError> {
    match path.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(HubError::io("create", parent)),
        None => Ok(()),
    }
}
