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
const EXTENSION: &str = ".safetensors";

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files of a checkpoint, and the tensors that its index lists for them.
pub(super) struct Shards {
    paths: Vec<PathBuf>,
    index: BTreeMap<String, String>,
    /// Why other files than those of the index are read.
    warning: Option<String>,
}

impl Shards {
    fn without_index(paths: Vec<PathBuf>) -> Shards {
        Shards { paths, index: BTreeMap::new(), warning: None }
    }
}

/// What the files of a checkpoint hold.
pub(super) struct Held {
    pub(super) files: Vec<SourceFile>,
    pub(super) tensors: Vec<Tensor>,
    pub(super) warnings: Vec<String>,
}

/// Finds the files that [`WeightFiles`] tells; without an index `model.safetensors`, and without that every
/// safetensors file.
pub(super) fn find(root: &Path) -> Result<Shards, FormatError> {
    let index = root.join(INDEX);
    if index.is_file() {
        return from_index(root, &index);
    }
    if root.join(SINGLE).is_file() {
        return Ok(Shards::without_index(vec![root.join(SINGLE)]));
    }
    let names = safetensors(root)?;
    if names.is_empty() {
        return Err(FormatError::NotACheckpoint { path: root.to_path_buf() });
    }
    Ok(Shards::without_index(names.iter().map(|name| root.join(name)).collect()))
}

/// The names of the safetensors files of a directory.
fn safetensors(root: &Path) -> Result<BTreeSet<String>, FormatError> {
    let mut names = BTreeSet::new();
    for entry in root.read_dir().map_err(FormatError::io(root))? {
        let path = entry.map_err(FormatError::io(root))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(name) = name.filter(|name| name.ends_with(EXTENSION) && path.is_file()) {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

/// Whether a directory has safetensors by the names of a model's.
pub(super) fn are_named(root: &Path) -> bool {
    [INDEX, SINGLE].iter().any(|name| root.join(name).is_file())
}

fn from_index(root: &Path, path: &Path) -> Result<Shards, FormatError> {
    let index: Index =
        serde_json::from_slice(&read_json(path)?).map_err(FormatError::json(path))?;
    let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    if names.is_empty() {
        return Err(FormatError::malformed(path, "weight_map names no file"));
    }
    if let Some(name) = names.iter().find(|name| !is_plain_path(name) || name.contains('/')) {
        let what = format!("weight_map names {name:?}, which is not a file beside it");
        return Err(FormatError::malformed(path, what));
    }
    let there = safetensors(root)?;
    let there: BTreeSet<&str> = there.iter().map(String::as_str).collect();
    let (others, read) = match WeightFiles::of(&there, &names) {
        WeightFiles::OfIndex => {
            let paths = names.iter().map(|name| root.join(name)).collect();
            return Ok(Shards { paths, index: index.weight_map, warning: None });
        }
        WeightFiles::Single => {
            (vec![SINGLE], format!("{SINGLE} is read alone, as transformers does"))
        }
        WeightFiles::Numbered(others) => {
            let read = format!("the {} files from {} on are read", others.len(), others[0]);
            (others, read)
        }
        WeightFiles::Missing(name) => {
            let what =
                format!("weight_map names {name}, which is not there; is the download complete?");
            return Err(FormatError::malformed(path, what));
        }
    };
    let paths = others.iter().map(|name| root.join(name)).collect();
    let warning = format!("{}: weight_map names other files; {read}", path.display());
    Ok(Shards { warning: Some(warning), ..Shards::without_index(paths) })
}

/// Which safetensors files a model with an index is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightFiles<'a> {
    /// Those that the index names.
    OfIndex,
    /// `model.safetensors`, which the index does not name.
    Single,
    /// A numbered set that the index does not name: a conversion of the model, to which the index of its source
    /// was copied.
    Numbered(Vec<&'a str>),
    /// None: this file of the index is not there.
    Missing(&'a str),
}

impl<'a> WeightFiles<'a> {
    /// Which of the safetensors files of a folder those are, by the files that its index names.
    pub fn of(there: &BTreeSet<&'a str>, of_index: &BTreeSet<&'a str>) -> WeightFiles<'a> {
        if there.contains(SINGLE) && !of_index.contains(SINGLE) {
            return WeightFiles::Single;
        }
        let Some(missing) = of_index.difference(there).next() else { return WeightFiles::OfIndex };
        let others = there.difference(of_index).copied();
        let Some(first) = others.clone().find_map(ShardName::parse) else {
            return WeightFiles::Missing(missing);
        };
        let is_sibling = |name: &&str| {
            ShardName::parse(name)
                .is_some_and(|shard| (shard.prefix, shard.n) == (first.prefix, first.n))
        };
        let set: Vec<&str> = others.filter(is_sibling).collect();
        if set.len() == first.n {
            WeightFiles::Numbered(set)
        } else {
            WeightFiles::Missing(missing)
        }
    }
}

/// The name of a numbered file: `PREFIX-00001-of-00002.safetensors`.
struct ShardName<'a> {
    prefix: &'a str,
    n: usize,
}

impl ShardName<'_> {
    fn parse(name: &str) -> Option<ShardName<'_>> {
        let (rest, n) = name.strip_suffix(EXTENSION)?.rsplit_once("-of-")?;
        let (prefix, nth) = rest.rsplit_once('-')?;
        let number = |digits: &str| {
            let is_number = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| digits.parse::<usize>().ok()).flatten()
        };
        let (nth, n) = (number(nth)?, number(n)?);
        (1..=n).contains(&nth).then_some(ShardName { prefix, n })
    }
}

/// Reads all headers. A tensor that several files hold is that of the file which the index names for it.
pub(super) fn read(root: &Path, shards: Shards) -> Result<Held, FormatError> {
    let (mut files, mut tensors) = (Vec::new(), Vec::new());
    for path in &shards.paths {
        let idx = u32::try_from(files.len()).expect("a directory has fewer files");
        let (file, header) = read_header(path, FileIdx(idx))?;
        files.push(file);
        tensors.extend(header.tensors);
    }
    let name_of = |tensor: &Tensor| {
        let path = &shards.paths[tensor.extent.file.0 as usize];
        path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    };
    let is_in_its_file = |tensor: &Tensor| {
        shards.index.get(&tensor.stored_name).is_some_and(|file| file == name_of(tensor))
    };
    let in_their_files: HashSet<String> = tensors
        .iter()
        .filter(|tensor| is_in_its_file(tensor))
        .map(|tensor| tensor.stored_name.clone())
        .collect();
    tensors
        .retain(|tensor| is_in_its_file(tensor) || !in_their_files.contains(&tensor.stored_name));
    let held: HashSet<&str> = tensors.iter().map(|tensor| &*tensor.stored_name).collect();
    let mut lost = shards.index.iter().filter(|(name, _)| !held.contains(&***name));
    let mut warnings: Vec<String> = shards.warning.into_iter().collect();
    if let Some((name, file)) = lost.next() {
        warnings.push(format!(
            "{}: weight_map puts {name} in {file}, which does not have it{}; the tensors of the files are used",
            root.join(INDEX).display(),
            match lost.count() {
                0 => String::new(),
                n => format!(" (nor {n} others)"),
            }
        ));
    }
    Ok(Held { files, tensors, warnings })
}
