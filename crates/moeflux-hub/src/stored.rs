//! What the cache holds.
//!
//! A repository's folder has contents (`blobs`), names for them by commit (`snapshots`), and commits by
//! branch or tag (`refs`). Revisions share contents, so a content goes only with the last name that leads
//! to it. Links are never followed out of the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::cache::{Cache, Fitness, commit_in};
use super::env::HubEnv;
use super::error::HubError;
use super::gguf::{Entry, Sets};
use super::name::{Repo, is_gguf, is_hex};

/// How deep folders of a snapshot are looked into.
const MAX_DEPTH: usize = 8;

/// The start of the names of models' folders.
pub(super) const PREFIX: &str = "models--";

/// The end of the names of contents that have not arrived whole.
const PARTIAL: &str = ".incomplete";

/// A repository in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// `org/name`.
    pub repo: String,
    /// Its folder.
    pub dir: PathBuf,
    /// Bytes that it takes on the drive, unfinished downloads included.
    pub bytes: u64,
    /// Bytes of contents that have not arrived whole.
    pub unfinished_bytes: u64,
    /// When a content of it was last read or written, as far as the file system notes it.
    pub last_used: Option<SystemTime>,
    /// The models of it that are whole.
    pub models: Vec<StoredModel>,
}

/// A model in the cache all of whose files are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredModel {
    /// What names it: `org/name`, `org/name:Q4_K_M`, with `@revision` where that is not `main`.
    pub name: String,
    /// The path that it is opened by.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
}

/// Lists the repositories in the cache by name. The network is not used.
///
/// # Errors
/// Where the cache is there and cannot be read.
pub fn stored(env: &HubEnv) -> Result<Vec<Stored>, HubError> {
    let entries = match fs::read_dir(&env.cache_dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => return Err(HubError::io("read", &env.cache_dir)(err)),
    };
    let mut all: Vec<Stored> =
        entries.flatten().filter_map(|entry| of_folder(&entry.path(), env)).collect();
    all.sort_by_key(|stored| stored.repo.to_lowercase());
    Ok(all)
}

fn of_folder(dir: &Path, env: &HubEnv) -> Option<Stored> {
    let folder = dir.file_name()?.to_str()?;
    let repo = folder.strip_prefix(PREFIX).filter(|_| dir.is_dir())?.replacen("--", "/", 1);
    let mut found = Stored {
        repo,
        dir: dir.to_owned(),
        bytes: 0,
        unfinished_bytes: 0,
        last_used: None,
        models: Vec::new(),
    };
    let mut contents = BTreeSet::new();
    for entry in fs::read_dir(dir.join("blobs")).into_iter().flatten().flatten() {
        let Ok(facts) = entry.metadata() else { continue };
        contents.insert(identity(&facts, &entry.path()));
        found.count(&facts);
        if entry.file_name().to_string_lossy().ends_with(PARTIAL) {
            found.unfinished_bytes += facts.len();
        }
    }
    let names = Named::all_in(dir);
    for name in &names {
        // Where there are no links, names are files of their own or second names of contents.
        let Ok(facts) = fs::symlink_metadata(&name.path) else { continue };
        if facts.is_file() && contents.insert(identity(&facts, &name.path)) {
            found.count(&facts);
        }
    }
    found.models = whole_models(&found.repo, dir, &names, env);
    Some(found)
}

impl Stored {
    fn count(&mut self, facts: &Metadata) {
        self.bytes += facts.len();
        let times = [facts.accessed().ok(), facts.modified().ok(), self.last_used];
        self.last_used = times.into_iter().flatten().max();
    }
}

/// What tells one content from another.
pub(super) type Identity = (u64, u64, PathBuf);

/// The identity of a content: the file itself where the system has numbers for them.
pub(super) fn identity(facts: &Metadata, path: &Path) -> Identity {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let _ = path;
        (facts.dev(), facts.ino(), PathBuf::new())
    }
    #[cfg(not(unix))]
    {
        let _ = facts;
        (0, 0, path.to_owned())
    }
}

fn whole_models(repo: &str, dir: &Path, names: &[Named], env: &HubEnv) -> Vec<StoredModel> {
    let Ok(parsed) = Repo::parse(repo, &env.endpoint) else { return Vec::new() };
    let cache = Cache::new(&env.cache_dir, &parsed);
    let refs = refs_in(&dir.join("refs"));
    let mut commits: Vec<&str> = names.iter().map(|name| &name.commit[..]).collect();
    commits.dedup();
    let mut models = Vec::new();
    for commit in commits {
        let of_commit = || names.iter().filter(|name| name.commit == commit);
        let is_ref = |revision: &str| refs.get(revision).is_some_and(|known| known == commit);
        let other = || refs.keys().find(|revision| is_ref(revision));
        let at = if is_ref("main") {
            String::new()
        } else {
            format!("@{}", other().map_or(commit, |revision| revision))
        };
        let size = |names: &mut dyn Iterator<Item = &Named>| {
            names.filter_map(|name| Some(fs::metadata(&name.path).ok()?.len())).sum()
        };
        let sets = Sets::of(of_commit().map(|name| Entry { path: &name.file, size: None }));
        if let Some(path) = cache.complete_snapshot(commit, &parsed, Fitness::Any)
            && path.is_dir()
        {
            let bytes = size(&mut of_commit().filter(|name| !is_gguf(&name.file)));
            models.push(StoredModel { name: format!("{repo}{at}"), path, bytes });
        }
        for set in sets.whole() {
            let is_there =
                |part: &String| of_commit().any(|name| name.file == *part && name.path.is_file());
            if !set.parts.iter().all(is_there) {
                continue;
            }
            let bytes = size(&mut of_commit().filter(|name| set.parts.contains(&name.file)));
            let name = format!("{repo}:{}{at}", sets.label(set));
            models.push(StoredModel {
                name,
                path: cache.snapshot(commit).join(set.first()),
                bytes,
            });
        }
    }
    models
}

/// Branches and tags with their commits.
pub(super) fn refs_in(dir: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![(dir.to_owned(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(own) = entry.file_name().into_string() else { continue };
            let name = format!("{prefix}{own}");
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && name.matches('/').count() < MAX_DEPTH => {
                    folders.push((entry.path(), format!("{name}/")));
                }
                Ok(kind) if kind.is_file() => {
                    all.insert(name, commit_in(&entry.path()).unwrap_or_default());
                }
                _ => {}
            }
        }
    }
    all
}

/// A name in a snapshot.
pub(super) struct Named {
    pub(super) commit: String,
    /// Its path in the repository.
    pub(super) file: String,
    pub(super) path: PathBuf,
}

impl Named {
    /// Those in a repository's folder, by commit and path.
    pub(super) fn all_in(dir: &Path) -> Vec<Named> {
        let mut all = Vec::new();
        for entry in fs::read_dir(dir.join("snapshots")).into_iter().flatten().flatten() {
            let Ok(commit) = entry.file_name().into_string() else { continue };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                Named::add(&mut all, &commit, &entry.path(), "", MAX_DEPTH);
            }
        }
        all.sort_by(|a, b| (&a.commit, &a.file).cmp(&(&b.commit, &b.file)));
        all
    }

    fn add(all: &mut Vec<Named>, commit: &str, dir: &Path, prefix: &str, depth: usize) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(own) = entry.file_name().into_string() else { continue };
            let file = format!("{prefix}{own}");
            // Links to folders are names like others: they are not followed.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth > 0 => {
                    Named::add(all, commit, &entry.path(), &format!("{file}/"), depth - 1);
                }
                Ok(_) => all.push(Named { commit: commit.to_owned(), file, path: entry.path() }),
                Err(_) => {}
            }
        }
    }
}

/// The snapshot of `main`, or the only one, of a repository's folder in a cache (`models--org--name`); `None`
/// for other folders.
pub fn snapshot_in(dir: &Path) -> Option<PathBuf> {
    let snapshots = dir.join("snapshots");
    if !snapshots.is_dir() || !dir.join("blobs").is_dir() {
        return None;
    }
    let of_main = commit_in(&dir.join("refs/main")).filter(|commit| is_hex(commit, 40));
    let of_main = of_main.map(|commit| snapshots.join(commit)).filter(|path| path.is_dir());
    let mut all = fs::read_dir(&snapshots).ok()?.flatten().map(|entry| entry.path());
    let only = match (all.next(), all.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    };
    of_main.or(only)
}

/// Bytes that the file system of a folder, which need not exist, has left for this user, if it says
/// so.
pub fn free_bytes_at(dir: &Path) -> Option<u64> {
    super::cache::free_bytes(dir)
}

/// Bytes that the file system of the cache has left for this user, if it says so.
pub fn free_bytes(env: &HubEnv) -> Option<u64> {
    super::cache::free_bytes(&env.cache_dir)
}
