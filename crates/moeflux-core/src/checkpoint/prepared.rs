//! Directories that the original system prepared: `model_weights.bin`, its index
//! `model_weights.json`, and one file of experts per layer.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::json::read_json;
use super::names::canonical_name;
use super::quantization::{Declared, QuantRules};
use super::{Config, Dtype, Extent, FormatError, PartFormats, Tensor, record_layout};
use crate::dialects::Dialects;
use crate::manifest::ExpertsDecl;
use crate::quant::{Affine, Float, MatrixFormat};
use crate::{FileIdx, SourceFile};

/// Folders that may hold the parts, relative to the opened directory.
const WEIGHTS_DIRS: [&str; 2] = ["", "artifacts"];
const CONFIG_DIRS: [&str; 3] = ["", "mlx", "artifacts"];
const EXPERTS_DIRS: [&str; 3] = ["", "root", "artifacts"];

/// Folders of layer files, with the bits per weight that their names imply.
const EXPERTS_FOLDERS: [(&str, u8); 2] = [("packed_experts", 4), ("packed_experts_2bit", 2)];

/// The only group size that the original system uses.
const GROUP_SIZE: usize = 64;

/// The folder of layer files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpertsDir {
    path: PathBuf,
    bits: u8,
}

/// The content of such a directory.
pub(super) struct Prepared {
    pub(super) config: Config,
    pub(super) file: SourceFile,
    pub(super) tensors: Vec<Tensor>,
    pub(super) rules: QuantRules,
    pub(super) experts: ExpertsDir,
    pub(super) companion_dirs: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Index {
    config: Option<Value>,
    tensors: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    offset: u64,
    size: u64,
    shape: Vec<usize>,
    dtype: String,
    bits: Option<u8>,
}

/// The path of the index below `root`; `None` if there is none.
pub(super) fn find_index(root: &Path) -> Option<PathBuf> {
    let paths = WEIGHTS_DIRS.iter().map(|dir| root.join(dir).join("model_weights.json"));
    paths.into_iter().find(|path| path.is_file())
}

/// Opens a directory, given the path of its index.
pub(super) fn open(
    root: &Path,
    index_path: &Path,
    dialects: &Dialects,
) -> Result<Prepared, FormatError> {
    let bytes = read_json(index_path)?;
    let index: Index = serde_json::from_slice(&bytes).map_err(FormatError::json(index_path))?;
    let path = index_path.with_file_name("model_weights.bin");
    let metadata = path.metadata().map_err(FormatError::io(&path))?;
    let file = SourceFile::new(path, metadata.len());
    let (tensors, rules) = read_entries(index_path, &index.tensors, file.len, dialects)?;
    let config = CONFIG_DIRS.iter().map(|dir| root.join(dir).join("config.json"));
    let config = match config.into_iter().find(|path| path.is_file()) {
        Some(path) => Config::from_slice(&path, &read_json(&path)?)?,
        None => config_of_index(index_path, index.config)?,
    };
    let companion_dirs = CONFIG_DIRS.iter().map(|dir| root.join(dir)).collect();
    Ok(Prepared { config, file, tensors, rules, experts: experts_dir(root), companion_dirs })
}

/// Parses an index, and checks it against the length of its file; errors name `path`.
///
/// # Errors
/// If the text is not an index, or a tensor is not inside the file.
pub fn parse_model_weights(
    path: &Path,
    json: &[u8],
    bin_len: u64,
) -> Result<Vec<Tensor>, FormatError> {
    let index: Index = serde_json::from_slice(json).map_err(FormatError::json(path))?;
    // Prefixes matter to the rules alone.
    Ok(read_entries(path, &index.tensors, bin_len, &Dialects::default())?.0)
}

fn read_entries(
    path: &Path,
    entries: &BTreeMap<String, Entry>,
    bin_len: u64,
    dialects: &Dialects,
) -> Result<(Vec<Tensor>, QuantRules), FormatError> {
    let mut rules = QuantRules::default();
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let fail = |what: String| FormatError::malformed(path, format!("tensor {name}: {what}"));
        let dtype = Dtype::named(&entry.dtype);
        let Some(element) = dtype.bytes() else {
            return Err(fail(format!("dtype {} is not supported", dtype.name())));
        };
        let bytes = entry.shape.iter().try_fold(element, |bytes, side| bytes.checked_mul(*side));
        let Some(len) = bytes.filter(|n| *n as u64 == entry.size) else {
            let (size, shape) = (entry.size, &entry.shape);
            return Err(fail(format!("{size} bytes cannot be {} {shape:?}", entry.dtype)));
        };
        if entry.offset.checked_add(entry.size).is_none_or(|end| end > bin_len) {
            let (size, offset) = (entry.size, entry.offset);
            return Err(fail(format!("{size} bytes at {offset} leave the {bin_len} of the file")));
        }
        if let (Dtype::U32, Some(module)) = (&dtype, name.strip_suffix(".weight")) {
            let declared = Declared::Affine { bits: entry.bits, group_size: None };
            rules.modules.insert(canonical_name(module, dialects).to_owned(), Some(declared));
        }
        let extent = Extent { file: FileIdx(0), offset: entry.offset, len };
        let (stored_name, shape) = (name.clone(), entry.shape.clone());
        tensors.push(Tensor { stored_name, dtype, shape, extent });
    }
    Ok((tensors, rules))
}

/// The copy of the config in the index. It does not name the family, which is found from the keys
/// that it has.
fn config_of_index(path: &Path, config: Option<Value>) -> Result<Config, FormatError> {
    let Some(mut config) = config.filter(Value::is_object) else {
        let what = "there is no config.json, and no config in here; copy the model's config.json";
        return Err(FormatError::malformed(path, what));
    };
    if config.get("model_type").is_none() && config.get("linear_num_value_heads").is_some() {
        config["model_type"] = Value::from("qwen3_5_moe_text");
    }
    Config::from_value(path, config)
}

fn experts_dir(root: &Path) -> ExpertsDir {
    let all = EXPERTS_FOLDERS.iter().flat_map(|(folder, bits)| {
        EXPERTS_DIRS
            .iter()
            .map(move |name| ExpertsDir { path: root.join(name).join(folder), bits: *bits })
    });
    let default = ExpertsDir { path: root.join(EXPERTS_FOLDERS[0].0), bits: EXPERTS_FOLDERS[0].1 };
    all.into_iter().find(|dir| dir.path.is_dir()).unwrap_or(default)
}

/// Name of a layer's file.
pub fn layer_file_name(layer: usize) -> String {
    format!("layer_{layer:02}.bin")
}

/// The file of a layer with the length that it must have in bytes, and the format that fits its
/// length. A missing file is assumed to have the folder's usual format.
pub(super) fn layer_file(
    dir: &ExpertsDir,
    decl: &ExpertsDecl,
) -> Result<(SourceFile, PartFormats), FormatError> {
    let path = dir.path.join(layer_file_name(decl.layer.idx()));
    let formats = |bits| {
        let affine = Affine::new(bits, GROUP_SIZE, Float::BF16);
        let fits = affine.is_supported(decl.hidden) && affine.is_supported(decl.intermediate);
        fits.then(|| decl.matrices.names().map(|_| MatrixFormat::Affine(affine)))
    };
    let len_of = |formats| {
        let record = record_layout(decl.hidden, decl.intermediate, formats).record_bytes();
        (record as u64).saturating_mul(decl.n_experts as u64)
    };
    let Some(usual) = formats(dir.bits) else {
        let (hidden, intermediate) = (decl.hidden, decl.intermediate);
        let what = format!("experts of {hidden} × {intermediate} in groups of {GROUP_SIZE}");
        return Err(FormatError::unsupported(&path, what));
    };
    let len = match path.metadata() {
        Ok(metadata) => metadata.len(),
        Err(err) if err.kind() == io::ErrorKind::NotFound => len_of(usual),
        Err(source) => return Err(FormatError::Io { path, source }),
    };
    let known = [dir.bits].into_iter().chain(Affine::BITS);
    match known.filter_map(formats).find(|format| len_of(*format) == len) {
        Some(formats) => Ok((SourceFile::new(path, len), formats)),
        None => {
            let (want, bits) = (len_of(usual), dir.bits);
            let what = format!("{len} bytes, but its experts at {bits} bits are {want}");
            Err(FormatError::malformed(&path, what))
        }
    }
}
