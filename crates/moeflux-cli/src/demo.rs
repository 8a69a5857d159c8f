//! The demo model inside the binary. Its files are written to the cache
//! directory once, so that its experts stream from a drive as any model's do.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use moeflux_core::fnv1a_64;
use moeflux_hub::is_hub_name;

use crate::{paths, report};

/// What is said in place of an answer that would be a guess.
const GUESS: &str = "I am a demo of 21 M parameters, and could only guess here. Ask me:";

/// Says that an answer would be a guess, and what the demo model can answer.
pub(crate) fn decline() {
    report::note(false, GUESS);
    report::note(false, &quoted_questions());
}

fn quoted_questions() -> String {
    let [a, b, c] = QUESTIONS;
    format!("\"{a}\", \"{b}\", \"{c}\"")
}

/// Questions that the model was trained on and answers well.
pub(crate) const QUESTIONS: [&str; 3] =
    ["What does Vec::push do?", "What does Vec::pop do?", "What is 23 + 45?"];

/// What it is, in a sentence.
pub(crate) const ABOUT: &str =
    "I am a demo of 21 M parameters: I know some of Rust's documentation";

/// Says what answers, and what it can answer, or why it has not; and that a prompt which looks like
/// a model is not one.
pub(crate) fn introduce(prompt: &str, is_withheld: bool, is_quiet: bool) {
    if is_withheld && !is_quiet {
        decline();
    } else {
        report::aside(is_quiet, ABOUT);
        report::aside(is_quiet, &quoted_questions());
    }
    report::aside(is_quiet, "--model names another model: a folder, or org/name on the Hub");
    let is_path = prompt.contains(['/', '\\']) && Path::new(prompt).exists();
    if is_path || is_hub_name(prompt) {
        report::note(is_quiet, &format!("'{prompt}' is the prompt here; --model names a model"));
    }
}

/// A file of the model: its path in the model's folder and its content.
type DemoFile = (&'static str, &'static [u8]);

/// The files that this crate holds. A crate has at most 10 MB on crates.io, so another holds the experts.
const OWN_FILES: &[DemoFile] = &include!("demo_files.in");

/// Every file of the model.
fn files() -> impl Iterator<Item = &'static DemoFile> {
    OWN_FILES.iter().chain(moeflux_demo_experts::FILES)
}

/// The model's directory, written now if it is not there.
pub(crate) fn unpacked() -> Result<PathBuf> {
    let dir = paths::cache_dir()?.join(format!("demo-{}", identity()));
    if is_whole(&dir) {
        return Ok(dir);
    }
    write(&dir).with_context(|| {
        format!("cannot write the demo model to {} (set MOEFLUX_CACHE)", dir.display())
    })?;
    Ok(dir)
}

/// Changes whenever a file does.
fn identity() -> String {
    let manifest = files().find(|(name, _)| *name == "moeflux.json");
    // The container's own manifest holds the checksums of all other files.
    let bytes = manifest.map_or(&[][..], |(_, bytes)| bytes);
    format!("{:016x}", fnv1a_64(bytes))
}

fn is_whole(dir: &Path) -> bool {
    let has_size = |(name, bytes): &DemoFile| {
        dir.join(name).metadata().is_ok_and(|metadata| metadata.len() == bytes.len() as u64)
    };
    files().all(has_size)
}

/// Writes to a temporary folder and renames it, so that no process opens half a model. A lock
/// admits one process at a time, so that none removes a file that another has opened.
fn write(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir.parent().unwrap_or(dir))?;
    let lock = fs::File::create(dir.with_extension("lock"))?;
    // Some file systems have no locks: then a single process still works.
    let _ = lock.lock();
    // Another process may have been faster.
    if is_whole(dir) {
        return Ok(());
    }
    let partial = dir.with_extension("partial");
    remove(&partial)?;
    let written = write_files(&partial).and_then(|()| {
        remove(dir)?;
        Ok(fs::rename(&partial, dir)?)
    });
    // Gone already where the rename succeeded.
    let _ = remove(&partial);
    written
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn write_files(dir: &Path) -> Result<()> {
    for (name, bytes) in files() {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap_or(dir))?;
        let mut file = fs::File::create(&path)?;
        file.write_all(bytes)?;
        file.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What makes the folder of the experts a crate.
    const CRATE_FILES: [&str; 5] =
        ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md", "lib.rs"];

    fn names_below(dir: &Path, prefix: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(dir).expect("the demo model") {
            let entry = entry.expect("an entry of the demo model");
            let name = entry.file_name().into_string().expect("plain names");
            if entry.path().is_dir() {
                names.extend(names_below(&entry.path(), &format!("{prefix}{name}/")));
            } else if prefix.is_empty() || !CRATE_FILES.contains(&name.as_str()) {
                names.insert(format!("{prefix}{name}"));
            }
        }
        names
    }

    #[test]
    fn the_binary_has_every_file_of_the_demo_model() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo");
        let included: BTreeSet<String> = files().map(|(name, _)| String::from(*name)).collect();
        assert_eq!(included, names_below(&demo, ""));
        for (name, bytes) in files() {
            assert!(fs::read(demo.join(name)).expect(name) == *bytes, "{name}");
        }
    }
}
