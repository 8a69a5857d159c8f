//! The files of the work tree: which there are, and how large they may be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MAX_FILE_BYTES: u64 = 2 << 20;
/// The demo model, which the binary carries, is the one large thing in the tree.
const DEMO: &str = "crates/moeflux-cli/demo/";
const MAX_DEMO_BYTES: u64 = 16_000_000;

/// Where files count even before they are tracked.
const SOURCE_DIRS: &[&str] = &["crates", "fuzz", "tools"];

/// A file with its path from the root, written with `/`.
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl File {
    pub(crate) fn read(&self) -> String {
        fs::read_to_string(&self.path).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the crate is two folders below the root")
}

/// Every file of the project: by git, or all there are where git cannot tell.
pub(crate) fn files() -> Vec<File> {
    let tracked = git(&["ls-files", "-z", "--cached"]);
    let mut untracked = vec!["ls-files", "-z", "--others", "--exclude-standard", "--"];
    untracked.extend(SOURCE_DIRS);
    let mut names = match (tracked, git(&untracked)) {
        (Some(tracked), Some(untracked)) => [tracked, untracked].concat(),
        _ => walk(root()),
    };
    names.sort_unstable();
    let files = names.into_iter().map(|name| File { path: root().join(&name), name });
    let files: Vec<File> = files.filter(|file| file.path.is_file()).collect();
    assert!(files.len() > 1, "no files found");
    files
}

/// The manifests of the workspace's crates.
pub(crate) fn manifests() -> Vec<File> {
    let is_manifest =
        |file: &File| file.name.starts_with("crates/") && file.name.ends_with("/Cargo.toml");
    let manifests: Vec<File> = files().into_iter().filter(is_manifest).collect();
    assert!(manifests.len() > 1, "no crates found");
    manifests
}

fn git(args: &[&str]) -> Option<Vec<String>> {
    let output = Command::new("git").current_dir(root()).args(args).output().ok()?;
    let names = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(names.split_terminator('\0').map(String::from).collect())
}

fn walk(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a folder of the tree") {
        let path = entry.expect("an entry of the tree").path();
        if path.is_symlink() || path.ends_with("target") || path.ends_with(".git") {
            continue;
        }
        if path.is_dir() {
            found.extend(walk(&path));
        } else {
            let name = path.strip_prefix(root()).expect("the walk stays below the root");
            found.push(name.to_string_lossy().replace('\\', "/"));
        }
    }
    found
}

#[track_caller]
pub(crate) fn assert_none(found: Vec<String>) {
    assert!(found.is_empty(), "{} found:\n{}", found.len(), found.join("\n"));
}

fn too_large<'a>(sizes: impl Iterator<Item = (&'a str, u64)>) -> Vec<String> {
    let mut found = Vec::new();
    let mut demo_bytes = 0;
    for (name, bytes) in sizes {
        if name.starts_with(DEMO) {
            demo_bytes += bytes;
        } else if bytes > MAX_FILE_BYTES {
            found.push(format!("{name}: {bytes} bytes, at most {MAX_FILE_BYTES}"));
        }
    }
    if demo_bytes > MAX_DEMO_BYTES {
        found.push(format!("{DEMO}: {demo_bytes} bytes, at most {MAX_DEMO_BYTES}"));
    }
    found
}

#[test]
fn files_are_small() {
    let files = files();
    let size = |file: &File| fs::metadata(&file.path).map_or(0, |metadata| metadata.len());
    assert_none(too_large(files.iter().map(|file| (file.name.as_str(), size(file)))));
}

#[test]
fn finds_a_large_file() {
    let check = |name, bytes| too_large([(name, bytes)].into_iter()).len();
    assert_eq!(check("a", MAX_FILE_BYTES), 0);
    assert_eq!(check("a", MAX_FILE_BYTES + 1), 1);
    assert_eq!(check("crates/moeflux-cli/demo/a", MAX_DEMO_BYTES), 0);
    assert_eq!(check("crates/moeflux-cli/demo/a", MAX_DEMO_BYTES + 1), 1);
    let halves =
        [("crates/moeflux-cli/demo/a", 9_000_000), ("crates/moeflux-cli/demo/b", 9_000_000)];
    assert_eq!(too_large(halves.into_iter()).len(), 1);
}

#[test]
fn both_ways_of_listing_find_the_sources() {
    let this = "crates/xtask/tests/tidy/tree.rs";
    assert!(walk(root()).iter().any(|path| path == this));
    assert!(files().iter().any(|file| file.name == this));
}

#[test]
fn versions_are_locked() {
    assert!(files().iter().any(|file| file.name == "Cargo.lock"), "Cargo.lock is missing");
}
