//! Looks for models in folders: those of safetensors, packed ones, and GGUF files.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// How deep folders are looked into.
const MAX_DEPTH: usize = 4;

/// Entries of a folder that are looked at.
const MAX_ENTRIES: usize = 10_000;

/// Files that alone make a folder a model.
const MARKS: [&str; 2] = ["moeflux.json", "model_weights.json"];

/// Words in the names of GGUF files that belong to a model and are none.
const COMPANIONS: [&str; 2] = ["mmproj", "imatrix"];

/// A model in a folder.
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) last_used: Option<SystemTime>,
}

/// A file of a folder.
struct Entry {
    path: PathBuf,
    name: String,
    facts: Metadata,
}

/// The models in `dir`, by path.
pub(super) fn find(dir: &Path) -> Vec<Found> {
    let mut all = Vec::new();
    add(dir, MAX_DEPTH, &mut all);
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all
}

fn add(dir: &Path, depth: usize, all: &mut Vec<Found>) {
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for entry in dir.read_dir().into_iter().flatten().flatten().take(MAX_ENTRIES) {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Links are followed to files, and not to folders, which may lead in a circle.
        let Ok(facts) = entry.path().metadata() else { continue };
        if facts.is_file() {
            files.push(Entry { path: entry.path(), name, facts });
        } else if facts.is_dir() && !name.starts_with('.') && !entry.path().is_symlink() {
            folders.push(entry.path());
        }
    }
    let has = |wanted: &str| files.iter().any(|file| file.name == wanted);
    let ends = |end: &str| files.iter().any(|file| file.name.ends_with(end));
    if MARKS.iter().any(|name| has(name)) || (has("config.json") && ends(".safetensors")) {
        // Records of experts are in folders of the model.
        let inner = folders.iter().map(|folder| bytes_below(folder, MAX_DEPTH)).sum::<u64>();
        let found = Found::of(dir.to_owned(), files.iter());
        all.push(Found { bytes: found.bytes + inner, ..found });
        return;
    }
    all.extend(gguf_files(&files));
    if depth > 0 {
        folders.iter().for_each(|folder| add(folder, depth - 1, all));
    }
}

/// The GGUF files; of a split one the first part, with the sizes of all.
fn gguf_files(files: &[Entry]) -> Vec<Found> {
    let is_model = |file: &&Entry| {
        let name = file.name.to_lowercase();
        name.ends_with(".gguf") && !COMPANIONS.iter().any(|word| name.contains(word))
    };
    let of_set = |stem: &str| {
        let is_part = |file: &&Entry| split(&file.name).is_some_and(|(other, _)| other == stem);
        files.iter().filter(is_model).filter(is_part).collect::<Vec<_>>()
    };
    let firsts = files.iter().filter(is_model).filter_map(|file| match split(&file.name) {
        None => Some(Found::of(file.path.clone(), [file].into_iter())),
        Some((stem, true)) => Some(Found::of(file.path.clone(), of_set(&stem).into_iter())),
        Some((_, false)) => None,
    });
    firsts.collect()
}

/// Of `name-00002-of-00003.gguf` what all parts begin with and end with, and whether this is the first.
fn split(name: &str) -> Option<(String, bool)> {
    let (start, end) = name.rsplit_once("-of-")?;
    let (stem, nth) = start.rsplit_once('-')?;
    let nth: usize = nth.parse().ok()?;
    Some((format!("{stem}-of-{end}"), nth == 1))
}

impl Found {
    fn of<'a>(path: PathBuf, files: impl Iterator<Item = &'a Entry>) -> Found {
        let mut found = Found { path, bytes: 0, last_used: None };
        for Entry { facts, .. } in files {
            found.bytes += facts.len();
            let times = [facts.accessed().ok(), facts.modified().ok(), found.last_used];
            found.last_used = times.into_iter().flatten().max();
        }
        found
    }
}

fn bytes_below(dir: &Path, depth: usize) -> u64 {
    let entries = dir.read_dir().into_iter().flatten().flatten().take(MAX_ENTRIES);
    let size = |path: PathBuf| match path.metadata() {
        Ok(facts) if facts.is_file() => facts.len(),
        Ok(_) if depth > 0 && !path.is_symlink() => bytes_below(&path, depth - 1),
        _ => 0,
    };
    entries.map(|entry| size(entry.path())).sum()
}
