//! Files of the Hub's cache against the hashes that name them: SHA-256 of large files, git's SHA-1
//! of others (`huggingface_hub`'s documentation of its cache).

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use moeflux_core::files::open_regular;
use moeflux_core::hex;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::files::CHUNK_BYTES;
use crate::verify::run::Run;

/// Folders below a snapshot that are looked into.
const MAX_DEPTH: usize = 4;

/// A file whose name says what its bytes hash to.
struct Hashed {
    /// As the snapshot has it.
    path: PathBuf,
    blob: PathBuf,
    hash: String,
    n_bytes: u64,
}

/// Hashes what links from the model's directory into a folder of blobs; how many files that are.
pub(super) fn verify(root: &Path, run: &mut Run<'_, '_>) -> usize {
    let (mut files, mut n_others) = (Vec::new(), 0);
    collect(root, MAX_DEPTH, &mut files, &mut n_others);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    if files.is_empty() {
        return 0;
    }
    let n_files = files.len();
    let which = match n_others {
        0 => String::from("every file"),
        _ => format!("{n_files} of {} files", n_files + n_others),
    };
    run.checked(format!(
        "{which} against the hash of the Hub that names it (SHA-256, or git's SHA-1)"
    ));
    run.expect(files.iter().map(|file| file.n_bytes).sum());
    for file in &files {
        run.found.n_files += 1;
        match hash(file, run) {
            Ok(found) if found == file.hash => {}
            Ok(found) => {
                let what = format!("its hash is {found}, the Hub's is {}", file.hash);
                run.damage(&file.path, None, what);
            }
            Err(err) => run.damage(&file.path, None, err.to_string()),
        }
    }
    files.len()
}

/// Adds the files below a folder that have a hash, and counts the others.
fn collect(dir: &Path, depth: usize, files: &mut Vec<Hashed>, n_others: &mut usize) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth > 0 {
            collect(&path, depth - 1, files, n_others);
        } else if let Some(file) = kind.is_symlink().then(|| hashed(path)).flatten() {
            files.push(file);
        } else {
            *n_others += usize::from(!kind.is_dir());
        }
    }
}

/// The blob that a link leads to, if its name is a hash.
fn hashed(path: PathBuf) -> Option<Hashed> {
    let target = fs::read_link(&path).ok()?;
    let hash = target.file_name()?.to_str()?.to_owned();
    let is_hash = [40, 64].contains(&hash.len())
        && hash.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    if !is_hash || target.parent()?.file_name()? != "blobs" {
        return None;
    }
    let blob = path.parent()?.join(&target);
    // A link to nothing counts, and then cannot be read.
    let n_bytes = fs::metadata(&blob).map_or(0, |facts| facts.len());
    Some(Hashed { path, blob, hash, n_bytes })
}

fn hash(file: &Hashed, run: &mut Run<'_, '_>) -> io::Result<String> {
    if file.hash.len() == 64 {
        return digest(Sha256::new(), file, run);
    }
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {}\0", file.n_bytes));
    digest(hasher, file, run)
}

fn digest<D: Digest>(mut hasher: D, file: &Hashed, run: &mut Run<'_, '_>) -> io::Result<String> {
    let mut handle = open_regular(&file.blob)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let n_bytes = match handle.read(&mut buffer) {
            Ok(0) => break,
            Ok(n_bytes) => n_bytes,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => return Err(err),
        };
        hasher.update(&buffer[..n_bytes]);
        run.read(&file.path, n_bytes as u64);
    }
    Ok(hex(&hasher.finalize()))
}
