//! What the cache holds, and the removal of it.
//!
//! A repository's folder has contents (`blobs`), names for them by commit (`snapshots`), and commits by
//! branch or tag (`refs`). Revisions share contents, so a content goes only with the last name that leads
//! to it. Links are never followed out of the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata, TryLockError};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use super::cache::{Cache, Fitness};
use super::env::HubEnv;
use super::error::HubError;
use super::gguf::{Entry, Sets};
use super::name::{Repo, is_gguf, is_hex};

/// How deep folders of a snapshot are looked into.
const MAX_DEPTH: usize = 8;

/// The start of the names of models' folders.
const PREFIX: &str = "models--";

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
    all.sort_by(|a, b| a.repo.to_lowercase().cmp(&b.repo.to_lowercase()));
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

/// What tells one content from another: the file itself where the system has numbers for them.
fn identity(facts: &Metadata, path: &Path) -> (u64, u64, PathBuf) {
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
        let at = match is_ref("main") {
            true => String::new(),
            false => format!("@{}", other().map_or(commit, |revision| revision)),
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
fn refs_in(dir: &Path) -> BTreeMap<String, String> {
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
                    let commit = fs::read_to_string(entry.path()).unwrap_or_default();
                    all.insert(name, commit.trim().to_owned());
                }
                _ => {}
            }
        }
    }
    all
}

/// A name in a snapshot.
struct Named {
    commit: String,
    /// Its path in the repository.
    file: String,
    path: PathBuf,
}

impl Named {
    /// Those in a repository's folder, by commit and path.
    fn all_in(dir: &Path) -> Vec<Named> {
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

    /// The content in `blobs` that it leads to.
    fn blob(
        &self,
        blobs: &Path,
        by_identity: &BTreeMap<(u64, u64, PathBuf), PathBuf>,
    ) -> Option<PathBuf> {
        match fs::read_link(&self.path) {
            Ok(target) => {
                let path = plain(&self.path.parent()?.join(target))?;
                (path.parent() == Some(blobs)).then_some(path)
            }
            Err(_) => {
                let facts = fs::symlink_metadata(&self.path).ok()?;
                by_identity.get(&identity(&facts, &self.path)).cloned()
            }
        }
    }
}

/// A path without `..`, which are taken off by name.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => plain.pop().then_some(())?,
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    Some(plain)
}

/// What is to be removed from the cache. While it lives, no download of the repository runs.
#[derive(Debug)]
pub struct Removal {
    /// What names it: `org/name`, `org/name@revision` or `org/name:Q4_K_M`.
    pub name: String,
    /// Bytes that its removal frees.
    pub bytes: u64,
    /// Files that are removed, contents and not names of them.
    pub n_files: usize,
    root: PathBuf,
    /// Whether the whole folder goes.
    is_whole: bool,
    names: Vec<PathBuf>,
    blobs: Vec<PathBuf>,
    refs: Vec<PathBuf>,
    _locks: Vec<File>,
}

/// Finds what the removal of a model takes: of `org/name` all that is there of the repository, of
/// `org/name@revision` that revision, of `org/name:Q4_K_M` that GGUF file. Contents that other names lead
/// to stay. The network is not used, and nothing is removed yet.
///
/// # Errors
/// Where it is not in the cache, is being downloaded, or lies behind a link to somewhere else.
pub fn removal(model: &str, env: &HubEnv) -> Result<Removal, HubError> {
    let repo = Repo::parse(model, &env.endpoint)?;
    let root = env.cache_dir.join(format!("{PREFIX}{}", repo.name.replace('/', "--")));
    let missing = |what: &str| HubError::NotStored {
        what: what.to_owned(),
        cache_dir: env.cache_dir.clone(),
    };
    if fs::symlink_metadata(&root).is_err() {
        return Err(missing(&repo.name));
    }
    let parts = ["blobs", "snapshots", "refs"].map(|part| root.join(part));
    let is_link =
        |path: &&PathBuf| fs::symlink_metadata(path).is_ok_and(|facts| facts.is_symlink());
    if let Some(link) = [&root].into_iter().chain(&parts).find(is_link) {
        return Err(HubError::Elsewhere { repo: repo.name, link: link.clone() });
    }
    let locks = lock_all(&repo, env)?;
    let all = Named::all_in(&root);
    let [blobs, _, _] = &parts;
    let refs = refs_in(&parts[2]);
    let of_revision = |name: &Named| {
        name.commit == repo.revision
            || refs.get(&repo.revision).is_some_and(|commit| *commit == name.commit)
    };
    let has_revision = model.contains('@') || repo.revision != "main";
    let mut label = String::new();
    let files = match &repo.gguf {
        None => None,
        Some(_) => {
            let names = all.iter().filter(|name| !has_revision || of_revision(name));
            let sets = Sets::of(names.map(|name| Entry { path: &name.file, size: None }));
            let refused = |problem| HubError::Choice { repo: repo.name.clone(), problem };
            let choice = sets.choose_any(repo.gguf.as_ref(), &repo.name).map_err(refused)?;
            label = format!(":{}", sets.label(choice.set));
            if !choice.is_certain {
                let problem =
                    format!("has no GGUF file of this very name: write {}{label}", repo.name);
                return Err(refused(problem));
            }
            Some(choice.set.parts.clone())
        }
    };
    let is_meant = |name: &&Named| {
        (!has_revision || of_revision(name))
            && files.as_ref().is_none_or(|files| files.contains(&name.file))
    };
    let at = if has_revision { format!("@{}", repo.revision) } else { String::new() };
    let name = format!("{}{label}{at}", repo.name);
    let (gone, kept): (Vec<&Named>, Vec<&Named>) = all.iter().partition(is_meant);
    let is_all = !has_revision && files.is_none();
    if gone.is_empty() && !is_all {
        return Err(missing(&name));
    }
    let here: Vec<PathBuf> =
        fs::read_dir(blobs).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let by_identity: BTreeMap<_, _> = here
        .iter()
        .filter_map(|path| Some((identity(&fs::symlink_metadata(path).ok()?, path), path.clone())))
        .collect();
    let blob_of = |name: &&Named| name.blob(blobs, &by_identity);
    let still_named: BTreeSet<PathBuf> = kept.iter().filter_map(blob_of).collect();
    let mut freed: BTreeSet<PathBuf> = gone.iter().filter_map(blob_of).collect();
    freed.retain(|path| !still_named.contains(path));
    let is_whole = is_all || kept.is_empty();
    if is_whole {
        freed.extend(here);
    }
    let commits: BTreeSet<&String> = kept.iter().map(|name| &name.commit).collect();
    let dead = refs.iter().filter(|(_, commit)| !commits.contains(commit));
    let refs = dead.map(|(name, _)| parts[2].join(name)).collect();
    let names: Vec<PathBuf> = gone.iter().map(|name| name.path.clone()).collect();
    let own = |path: &&PathBuf| {
        let facts = fs::symlink_metadata(path).ok().filter(Metadata::is_file)?;
        Some((identity(&facts, path), facts.len()))
    };
    // Names that are files themselves count once with the content that they are.
    let sizes: BTreeMap<_, _> = freed.iter().chain(&names).filter_map(|path| own(&path)).collect();
    Ok(Removal {
        name,
        bytes: sizes.values().sum(),
        n_files: sizes.len(),
        root,
        is_whole,
        names,
        blobs: freed.into_iter().collect(),
        refs,
        _locks: locks,
    })
}

impl Removal {
    /// Removes it.
    ///
    /// # Errors
    /// Where a file cannot be removed. What was removed before stays so.
    pub fn run(self) -> Result<(), HubError> {
        if self.is_whole {
            return fs::remove_dir_all(&self.root).map_err(HubError::io("remove", &self.root));
        }
        // Names first: a name never leads to nothing.
        for path in self.names.iter().chain(&self.refs).chain(&self.blobs) {
            match fs::remove_file(path) {
                Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                    return Err(HubError::io("remove", path)(err));
                }
                _ => {}
            }
        }
        let snapshots = self.root.join("snapshots");
        for path in &self.names {
            // Folders that others still use are not empty and stay.
            let folders = path.ancestors().skip(1).take_while(|folder| **folder != *snapshots);
            for folder in folders {
                if fs::remove_dir(folder).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Locks of this program and of the Hub's own tools, which lock each content that they fetch.
fn lock_all(repo: &Repo, env: &HubEnv) -> Result<Vec<File>, HubError> {
    let folder = format!("{PREFIX}{}", repo.name.replace('/', "--"));
    let dir = env.cache_dir.join(".locks").join(folder);
    let mut paths: BTreeSet<PathBuf> =
        fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.insert(dir.join("moeflux.lock"));
    fs::create_dir_all(&dir).map_err(HubError::io("create", &dir))?;
    let mut locks = Vec::new();
    for path in paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == "lock")) {
        let open = File::options().create(true).truncate(false).write(true).open(&path);
        let file = open.map_err(HubError::io("open", &path))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(HubError::Busy { repo: repo.name.clone(), lock: path });
            }
            // Some network drives have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => locks.push(file),
        }
    }
    Ok(locks)
}

/// The snapshot of `main`, or the only one, of a repository's folder in a cache (`models--org--name`); `None`
/// for other folders.
pub fn snapshot_in(dir: &Path) -> Option<PathBuf> {
    let snapshots = dir.join("snapshots");
    if !snapshots.is_dir() || !dir.join("blobs").is_dir() {
        return None;
    }
    let of_main = fs::read_to_string(dir.join("refs/main")).ok();
    let of_main = of_main.filter(|commit| is_hex(commit.trim(), 40));
    let of_main = of_main.map(|commit| snapshots.join(commit.trim())).filter(|path| path.is_dir());
    let mut all = fs::read_dir(&snapshots).ok()?.flatten().map(|entry| entry.path());
    let only = match (all.next(), all.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    };
    of_main.or(only)
}

/// Bytes that the file system of the cache has left for this user, if it says so.
pub fn free_bytes(env: &HubEnv) -> Option<u64> {
    super::cache::free_bytes(&env.cache_dir)
}
