//! Removal of models from the cache. Links are never followed out of a repository's folder. Contents that
//! other names lead to stay, and so do those that no name leads to, such as unfinished downloads, unless the
//! whole repository is named.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata, TryLockError};
use std::path::{Component, Path, PathBuf};

use super::cache::open_lock;
use super::env::HubEnv;
use super::error::HubError;
use super::gguf::{Entry, Sets};
use super::name::Repo;
use super::stored::{Identity, Named, PREFIX, identity, refs_in};

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
/// to stay; unfinished downloads go with `org/name` alone. The network is not used, and nothing is removed yet.
///
/// # Errors
/// Where it is not in the cache, is being downloaded, or is behind a link to somewhere else.
pub fn removal(model: &str, env: &HubEnv) -> Result<Removal, HubError> {
    let repo = Repo::parse(model, &env.endpoint)?;
    let root = env.cache_dir.join(format!("{PREFIX}{}", repo.name.replace('/', "--")));
    let root = std::path::absolute(&root).ok().and_then(|root| plain(&root)).unwrap_or(root);
    let missing = |what: String| HubError::NotStored { what, cache_dir: env.cache_dir.clone() };
    if fs::symlink_metadata(&root).is_err() {
        return Err(missing(repo.name));
    }
    refuse_links(&repo, &root)?;
    let locks = lock_all(&repo, env)?;
    let folder = Folder::read(root);
    let has_revision = model.contains('@') || repo.revision != "main";
    let meant = Meant::of(&repo, has_revision, &folder)?;
    let takes = |name: &&Named| meant.takes(name);
    let (gone, kept): (Vec<&Named>, Vec<&Named>) = folder.names.iter().partition(takes);
    if gone.is_empty() && !meant.is_all() {
        Err(missing(meant.name))
    } else {
        Ok(folder.removal(&meant, &gone, &kept, locks))
    }
}

/// A part of the folder that is a link may lead to what is not the cache's.
fn refuse_links(repo: &Repo, root: &Path) -> Result<(), HubError> {
    let parts = ["", "blobs", "snapshots", "refs"].map(|part| root.join(part));
    let parts = parts.into_iter().map(|path| path.components().collect::<PathBuf>());
    let is_link = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|facts| facts.is_symlink());
    match parts.into_iter().find(is_link) {
        Some(link) => Err(HubError::Elsewhere { repo: repo.name.clone(), link }),
        None => Ok(()),
    }
}

/// What a name means in a repository's folder.
struct Meant {
    name: String,
    /// The commits of its revision; `None` for all.
    commits: Option<BTreeSet<String>>,
    /// Paths of its files; `None` for all.
    files: Option<Vec<String>>,
}

impl Meant {
    fn of(repo: &Repo, has_revision: bool, folder: &Folder) -> Result<Meant, HubError> {
        let (mut name, revision) = (repo.name.clone(), &repo.revision);
        let commits = has_revision.then(|| {
            let by_ref = folder.refs.get(revision).cloned();
            [revision.clone()].into_iter().chain(by_ref).collect()
        });
        let mut meant = Meant { name: String::new(), commits, files: None };
        if repo.gguf.is_some() {
            let names = folder.names.iter().filter(|name| meant.takes(name));
            let sets = Sets::of(names.map(|name| Entry { path: &name.file, size: None }));
            let refused = |problem| HubError::Choice { repo: repo.name.clone(), problem };
            let choice = sets.choose_any(repo.gguf.as_ref(), &repo.name).map_err(refused)?;
            name = format!("{name}:{}", sets.label(choice.set));
            if !choice.is_certain {
                return Err(refused(format!("has no GGUF file of this very name: write {name}")));
            }
            let towers = sets.own_towers(choice.set);
            meant.files = Some(choice.set.parts.iter().chain(towers).cloned().collect());
        }
        let at = if has_revision { format!("@{revision}") } else { String::new() };
        meant.name = name + &at;
        Ok(meant)
    }

    fn takes(&self, name: &Named) -> bool {
        self.commits.as_ref().is_none_or(|commits| commits.contains(&name.commit))
            && self.files.as_ref().is_none_or(|files| files.contains(&name.file))
    }

    fn is_all(&self) -> bool {
        self.commits.is_none() && self.files.is_none()
    }
}

/// A repository's folder.
struct Folder {
    root: PathBuf,
    blobs: PathBuf,
    /// Contents, by what tells them apart.
    contents: BTreeMap<Identity, PathBuf>,
    refs: BTreeMap<String, String>,
    names: Vec<Named>,
}

impl Folder {
    fn read(root: PathBuf) -> Folder {
        let blobs = root.join("blobs");
        let paths = fs::read_dir(&blobs).into_iter().flatten().flatten().map(|entry| entry.path());
        let contents = paths
            .filter_map(|path| Some((identity(&fs::symlink_metadata(&path).ok()?, &path), path)))
            .collect();
        let (refs, names) = (refs_in(&root.join("refs")), Named::all_in(&root));
        Folder { root, blobs, contents, refs, names }
    }

    /// The removal of some names, and of the contents that only they lead to.
    fn removal(
        &self,
        meant: &Meant,
        gone: &[&Named],
        kept: &[&Named],
        locks: Vec<File>,
    ) -> Removal {
        let content_of = |name: &&Named| self.content_of(name);
        let still_named: BTreeSet<PathBuf> = kept.iter().filter_map(content_of).collect();
        let mut freed: BTreeSet<PathBuf> = gone.iter().filter_map(content_of).collect();
        freed.retain(|path| !still_named.contains(path));
        if meant.is_all() {
            freed.extend(self.contents.values().cloned());
        }
        // A content without a name is of a download that goes on: it may be of another file.
        let is_whole =
            kept.is_empty() && self.contents.values().all(|content| freed.contains(content));
        let commits_of = |names: &[&Named]| {
            names.iter().map(|name| name.commit.clone()).collect::<BTreeSet<_>>()
        };
        let (losing, keeping) = (commits_of(gone), commits_of(kept));
        let is_dead = |commit: &String| losing.contains(commit) && !keeping.contains(commit);
        let dead = self.refs.iter().filter(|(_, commit)| is_dead(commit));
        let refs = dead.map(|(name, _)| self.root.join("refs").join(name)).collect();
        let names: Vec<PathBuf> = gone.iter().map(|name| name.path.clone()).collect();
        let own = |path: &PathBuf| {
            let facts = fs::symlink_metadata(path).ok().filter(Metadata::is_file)?;
            Some((identity(&facts, path), facts.len()))
        };
        // Names that are files themselves count once with the content that they are.
        let sizes: BTreeMap<_, _> = freed.iter().chain(&names).filter_map(own).collect();
        Removal {
            name: meant.name.clone(),
            bytes: sizes.values().sum(),
            n_files: sizes.len(),
            root: self.root.clone(),
            is_whole,
            names,
            blobs: freed.into_iter().collect(),
            refs,
            _locks: locks,
        }
    }

    /// The content that a name leads to.
    fn content_of(&self, name: &Named) -> Option<PathBuf> {
        match fs::read_link(&name.path) {
            Ok(target) => {
                let path = plain(&name.path.parent()?.join(target))?;
                (path.parent() == Some(self.blobs.as_path())).then_some(path)
            }
            Err(_) => {
                let facts = fs::symlink_metadata(&name.path).ok()?;
                self.contents.get(&identity(&facts, &name.path)).cloned()
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
            let mut folders = path.ancestors().skip(1).take_while(|folder| **folder != *snapshots);
            while folders.next().is_some_and(|folder| fs::remove_dir(folder).is_ok()) {}
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
        let file = open_lock(&path)?;
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
