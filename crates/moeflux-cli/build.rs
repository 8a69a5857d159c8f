//! Tells the program which commit and which target it is built from.
//!
//! The commit is `$MOEFLUX_COMMIT`, else that of the package's `.cargo_vcs_info.json`, else that of the
//! repository, read from its files without Git. A new commit builds this crate again and no other.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MOEFLUX_COMMIT");
    let target = env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=MOEFLUX_BUILD_TARGET={target}");
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let named = env::var("MOEFLUX_COMMIT").ok();
    let commit = named.filter(|text| is_commit(text));
    if let Some(commit) =
        commit.or_else(|| of_package(&package)).or_else(|| of_repository(&package))
    {
        println!("cargo::rustc-env=MOEFLUX_BUILD_COMMIT={commit}");
    }
}

/// Whether a text is the name of a commit, or the beginning of one.
fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The commit that `cargo package` wrote into a published crate.
fn of_package(package: &Path) -> Option<String> {
    let text = fs::read_to_string(package.join(".cargo_vcs_info.json")).ok()?;
    let value = text.split("\"sha1\"").nth(1)?.split('"').nth(1)?;
    is_commit(value).then(|| value.to_owned())
}

/// The commit of the working tree that this crate is a folder of. A tree that has the crate elsewhere,
/// as a vendored one, says nothing of it.
fn of_repository(package: &Path) -> Option<String> {
    let marker = package.ancestors().nth(2)?.join(".git");
    let git = if marker.is_dir() {
        marker.clone()
    } else {
        // Of a linked working tree.
        let text = fs::read_to_string(&marker).ok()?;
        marker.parent()?.join(text.strip_prefix("gitdir:")?.trim())
    };
    let head_file = git.join("HEAD");
    let head = fs::read_to_string(&head_file).ok()?;
    println!("cargo::rerun-if-changed={}", head_file.display());
    let Some(branch) = head.trim().strip_prefix("ref:") else {
        return Some(head.trim().to_owned()).filter(|text| is_commit(text));
    };
    let shared = match fs::read_to_string(git.join("commondir")) {
        Ok(path) => git.join(path.trim()),
        Err(_) => git.clone(),
    };
    let branch = branch.trim();
    let loose = shared.join(branch);
    let packed = shared.join("packed-refs");
    // One that does not exist would build the crate every time.
    for file in [&loose, &packed].into_iter().filter(|file| file.exists()) {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    let of_packed = || {
        let text = fs::read_to_string(&packed).ok()?;
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.into_iter().find(|(_, name)| *name == branch).map(|(commit, _)| commit.to_owned())
    };
    let commit = fs::read_to_string(&loose).ok().map(|text| text.trim().to_owned());
    commit.or_else(of_packed).filter(|text| is_commit(text))
}
