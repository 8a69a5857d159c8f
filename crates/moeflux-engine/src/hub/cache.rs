//! The layout of Hugging Face's cache: `blobs` by content, `snapshots` by commit, `refs` by name.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::api::is_hex;
use super::error::HubError;
use super::{Progress, Repo};

/// The cached copies of one repository.
pub(super) struct Cache {
    root: PathBuf,      // models--org--name
    lock_file: PathBuf, // beside it, in .locks
}

impl Cache {
    pub(super) fn new(cache_dir: &Path, repo: &Repo) -> Self {
        let folder = format!("models--{}", repo.name.replace('/', "--"));
        let lock_file = cache_dir.join(".locks").join(&folder).join("moeflux.lock");
        Self { root: cache_dir.join(folder), lock_file }
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, name: &str) -> PathBuf {
        self.root.join("blobs").join(name)
    }

    /// The snapshot of a commit if all that a model needs is there.
    ///
    /// Downloads of ours put `config.json` in place last. Other tools do not, so the shards that
    /// the index names must be there too.
    pub(super) fn complete_snapshot(&self, commit: &str) -> Option<PathBuf> {
        let dir = Some(self.snapshot(commit)).filter(|_| is_hex(commit, 40))?;
        let has = |name: &str| dir.join(name).is_file();
        if !has("config.json") && !has("moeflux.json") {
            return None;
        }
        let index = dir.join("model.safetensors.index.json");
        if index.is_file() {
            let index: serde_json::Value = serde_json::from_slice(&fs::read(index).ok()?).ok()?;
            let mut shards = index.get("weight_map")?.as_object()?.values();
            return shards.all(|shard| shard.as_str().is_some_and(has)).then_some(dir);
        }
        let names = fs::read_dir(&dir).ok()?.flatten().map(|entry| entry.path());
        let is_weights = |path: &Path| {
            let of_kind = path.extension().is_some_and(|ext| ext == "safetensors");
            (of_kind || path.ends_with("model_weights.bin")) && path.is_file()
        };
        names.into_iter().any(|path| is_weights(&path)).then_some(dir)
    }

    /// The commit that a revision stood for when it was last asked.
    pub(super) fn read_ref(&self, repo: &Repo) -> Option<String> {
        let text = fs::read_to_string(self.root.join("refs").join(&repo.revision)).ok()?;
        Some(text.trim().to_owned())
    }

    pub(super) fn write_ref(&self, repo: &Repo, commit: &str) -> Result<(), HubError> {
        if repo.revision == commit {
            return Ok(());
        }
        let path = self.root.join("refs").join(&repo.revision);
        create_parent(&path)?;
        let fresh = path.with_extension("incomplete");
        fs::write(&fresh, commit).map_err(HubError::io("write", &fresh))?;
        fs::rename(&fresh, &path).map_err(HubError::io("write", &path))
    }

    /// Keeps other processes from downloading the same repository while the file is open.
    pub(super) fn lock(&self, progress: &mut dyn FnMut(Progress<'_>)) -> Result<File, HubError> {
        let path = &self.lock_file;
        create_parent(path)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(HubError::io("create", path))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                progress(Progress::Waiting { lock: path });
                file.lock().map_err(HubError::io("lock", path))?;
                Ok(file)
            }
            // Some network drives have no locks; a download there is still put in place atomically.
            Err(TryLockError::Error(e)) if e.kind() == std::io::ErrorKind::Unsupported => Ok(file),
            Err(TryLockError::Error(e)) => Err(HubError::io("lock", path)(e)),
        }
    }

    /// Whether `path` of the snapshot is there, and of the right size where that is known.
    pub(super) fn has(&self, commit: &str, path: &str, size: Option<u64>) -> bool {
        let found = fs::metadata(self.snapshot(commit).join(path));
        found.is_ok_and(|meta| meta.is_file() && size.is_none_or(|size| size == meta.len()))
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
