//! The models of this machine: in the Hub's cache, and in folders.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use moeflux_engine::EngineError;
use moeflux_hub::{HubEnv, Stored, stored};

use super::folders;
use crate::report::chain;
use crate::words::shorten;

/// The longest reason why a model cannot be run, in characters.
const MAX_REASON: usize = 100;

/// A model of this machine, or a part of one.
#[derive(Clone, Debug)]
pub struct Here {
    /// What `--model` takes.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// When it was last read or written, as far as the file system notes it.
    pub last_used: Option<SystemTime>,
    /// Whether all of its files are there.
    pub is_whole: bool,
    /// Why it cannot be run, if it cannot.
    pub problem: Option<String>,
}

impl Here {
    /// The repository, where it is in the Hub's cache.
    pub(super) fn repo(&self) -> Option<&str> {
        self.name.split([':', '@']).next()
    }
}

/// What is in the Hub's cache.
pub(crate) fn in_cache(env: &HubEnv) -> Result<Vec<Here>> {
    Ok(stored(env)?.into_iter().flat_map(of_repo).collect())
}

/// The models of a repository; what is left over of one that is not whole is a line as well.
fn of_repo(found: Stored) -> Vec<Here> {
    let Stored { repo, dir, bytes, unfinished_bytes, last_used, models } = found;
    let whole = models.into_iter().map(|model| Here {
        problem: problem(&model.path),
        name: model.name,
        path: model.path,
        bytes: model.bytes,
        last_used,
        is_whole: true,
    });
    let mut all: Vec<Here> = whole.collect();
    if unfinished_bytes > 0 || all.is_empty() {
        let bytes = if all.is_empty() { bytes } else { unfinished_bytes };
        let reason = String::from("not complete: moeflux pull goes on with it");
        let problem = Some(reason);
        all.push(Here { name: repo, path: dir, bytes, last_used, is_whole: false, problem });
    }
    all
}

/// The models in a folder and the folders in it. The folder may be a cache of the Hub.
pub(super) fn in_folder(dir: &Path, env: &HubEnv) -> Result<Vec<Here>> {
    let entries = dir.read_dir().with_context(|| format!("--dir {}", dir.display()))?;
    let mut names = entries.flatten().map(|entry| entry.file_name());
    if names.any(|name| name.to_string_lossy().starts_with("models--")) {
        return in_cache(&HubEnv { cache_dir: dir.to_owned(), ..env.clone() });
    }
    let found = folders::find(dir).into_iter().map(|found| Here {
        name: found.path.display().to_string(),
        problem: problem(&found.path),
        bytes: found.bytes,
        last_used: found.last_used,
        is_whole: true,
        path: found.path,
    });
    Ok(found.collect())
}

/// Why a model cannot be run; only headers are read.
fn problem(path: &Path) -> Option<String> {
    let err = moeflux_engine::check(path).err()?;
    Some(shorten(&without_path(err), MAX_REASON))
}

/// The message without the path that it begins with: the line has that already.
fn without_path(err: EngineError) -> String {
    let text = chain(&anyhow::Error::from(err));
    match text.split_once(": ") {
        Some((path, rest)) if path.contains(std::path::MAIN_SEPARATOR) => rest.to_owned(),
        _ => text,
    }
}
