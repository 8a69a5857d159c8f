//! Folders in which models and what is learnt of them are kept.

use std::fs;
use std::path::{Path, PathBuf};

use moeflux_hub::HubEnv;
use serde_json::json;

use super::finding::{Finding, State};
use crate::bytes::show;
use crate::paths;

/// Entries whose sizes are added up, at most.
const MOST_ENTRIES: usize = 100_000;

pub(super) fn findings(hub: &HubEnv) -> Vec<Finding> {
    let own = match paths::cache_dir() {
        Ok(dir) => place("own cache", &dir, "MOEFLUX_CACHE"),
        Err(err) => Finding::new("own cache", State::Poor, err.to_string())
            .remedy("set MOEFLUX_CACHE to a folder"),
    };
    vec![place("Hub cache", &hub.cache_dir, "HF_HUB_CACHE"), own]
}

fn place(name: &'static str, dir: &Path, variable: &str) -> Finding {
    let (size, is_whole) = size(dir);
    let (is_writable, free) = (is_writable(dir), free_bytes(dir));
    let about = if is_whole { "" } else { "at least " };
    let mut text = if dir.exists() {
        format!("{}: {about}{}", dir.display(), show(size))
    } else {
        format!("{}: not there yet", dir.display())
    };
    if let Some(free) = free {
        text.push_str(&format!(", {} of its drive are free", show(free)));
    }
    let facts = json!({
        "path": dir,
        "exists": dir.exists(),
        "bytes": size,
        "free_bytes": free,
        "writable": is_writable,
    });
    if is_writable {
        Finding::new(name, State::Good, text).facts(facts)
    } else {
        Finding::new(name, State::Poor, text + "; it cannot be written")
            .facts(facts)
            .remedy(format!("give this user the folder, or name another one ({variable})"))
    }
}

/// Bytes of the files below a folder, links not followed, and whether all were counted.
fn size(dir: &Path) -> (u64, bool) {
    let (mut folders, mut bytes, mut n_seen) = (vec![dir.to_path_buf()], 0, 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            n_seen += 1;
            if n_seen > MOST_ENTRIES {
                return (bytes, false);
            }
            match entry.metadata() {
                Ok(facts) if facts.is_dir() => folders.push(entry.path()),
                Ok(facts) if facts.is_file() => bytes += facts.len(),
                _ => {}
            }
        }
    }
    (bytes, true)
}

/// The folder, or the nearest above it that exists.
pub(super) fn existing(dir: &Path) -> Option<PathBuf> {
    let whole = std::path::absolute(dir).ok()?;
    whole.ancestors().find(|dir| dir.is_dir()).map(Path::to_path_buf)
}

/// Bytes that are free on the drive of a folder, where the system says.
pub(super) fn free_bytes(dir: &Path) -> Option<u64> {
    fs4::available_space(existing(dir)?).ok()
}

/// Whether this user can make files in a folder, or make the folder.
fn is_writable(dir: &Path) -> bool {
    let Some(dir) = existing(dir) else { return false };
    let path = dir.join(format!(".moeflux-doctor-write-{}", std::process::id()));
    let is_made = fs::File::options().write(true).create_new(true).open(&path).is_ok();
    // Its name says what it is where it stays behind.
    let _ = is_made.then(|| fs::remove_file(&path));
    is_made
}
