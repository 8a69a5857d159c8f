//! Finds and reads the safetensors files of a checkpoint.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::header::read_header;
use super::json::{is_plain_path, read_json};
use super::{FormatError, Tensor};
use crate::{FileIdx, SourceFile};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files of a checkpoint, and the tensors that its index lists for them.
pub(super) struct Shards {
    paths: Vec<PathBuf>,
    index: BTreeMap<String, String>,
}

/// Finds the files that the index names; without an index `model.safetensors`; without that every
/// safetensors file.
pub(super) fn find(root: &Path) -> Result<Shards, FormatError> {
    let index = root.join(INDEX);
    if index.is_file() {
        return from_index(root, &index);
    }
    if root.join(SINGLE).is_file() {
        return Ok(Shards { paths: vec![root.join(SINGLE)], index: BTreeMap::new() });
    }
    let mut paths = Vec::new();
    for entry in root.read_dir().map_err(FormatError::io(root))? {
        let path = entry.map_err(FormatError::io(root))?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        return Err(FormatError::NotACheckpoint { path: root.to_path_buf() });
    }
    Ok(Shards { paths, index: BTreeMap::new() })
}

/// Whether a directory has safetensors by the names of a model's.
pub(super) fn are_named(root: &Path) -> bool {
    [INDEX, SINGLE].iter().any(|name| root.join(name).is_file())
}

fn from_index(root: &Path, path: &Path) -> Result<Shards, FormatError> {
    let index: Index =
        serde_json::from_slice(&read_json(path)?).map_err(FormatError::json(path))?;
    let names: BTreeSet<&String> = index.weight_map.values().collect();
    if names.is_empty() {
        return Err(FormatError::malformed(path, "weight_map names no file"));
    }
    if let Some(name) = names.iter().find(|name| !is_plain_path(name) || name.contains('/')) {
        let what = format!("weight_map names {name:?}, which is not a file beside it");
        return Err(FormatError::malformed(path, what));
    }
    if let Some(name) = names.iter().find(|name| !root.join(name).exists()) {
        let what =
            format!("weight_map names {name}, which is not there; is the download complete?");
        return Err(FormatError::malformed(path, what));
    }
    let paths = names.iter().map(|name| root.join(name)).collect();
    Ok(Shards { paths, index: index.weight_map })
}

/// Reads all headers and checks them against the index.
pub(super) fn read(
    root: &Path,
    shards: &Shards,
) -> Result<(Vec<SourceFile>, Vec<Tensor>), FormatError> {
    let (mut files, mut tensors) = (Vec::new(), Vec::new());
    for path in &shards.paths {
        let idx = u32::try_from(files.len()).expect("a directory has fewer files");
        let (file, header) = read_header(path, FileIdx(idx))?;
        files.push(file);
        // If several files hold a tensor, the one that the index names is used.
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let counts =
            |tensor: &Tensor| shards.index.get(&tensor.stored_name).is_none_or(|file| file == name);
        tensors.extend(header.tensors.into_iter().filter(counts));
    }
    let held: HashSet<&str> = tensors.iter().map(|tensor| &*tensor.stored_name).collect();
    for (name, file) in &shards.index {
        if !held.contains(&**name) {
            let what = format!("weight_map puts {name} in {file}, which does not have it");
            return Err(FormatError::malformed(&root.join(INDEX), what));
        }
    }
    Ok((files, tensors))
}
