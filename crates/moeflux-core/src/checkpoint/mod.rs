//! Checkpoints of every format, read in place.
//!
//! Whatever is opened is untrusted: offsets, lengths, shapes and counts are
//! checked before use, and nothing here panics on any file.

mod checks;
mod checksum;
mod claims;
mod config;
mod container;
mod error;
mod experts;
mod header;
mod names;
mod prepared;
mod quantization;
mod reader;
mod shards;
mod tensor;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use checksum::{Checksum, FileChecksums, part_checksum, part_checksum_hex};
pub use claims::{Claims, MatrixBytes, MatrixSource, VectorSource};
pub use config::{Config, ResolvedKeys, python_json};
pub use container::{
    Container, PackedFile, PackedLayer, SourceIdentity, StoredFloat, StoredFormat, StoredMode,
};
pub use error::FormatError;
pub use experts::{PartFormats, record_layout};
pub use header::{Header, open_safetensors, parse_safetensors_header};
pub use names::canonical_name;
pub use prepared::{layer_file_name, parse_model_weights};
pub use reader::FileReader;
pub use tensor::{Dtype, Extent, Tensor};

use crate::files::read_bounded;
use crate::{FileIdx, SourceFile};
use names::SkipRule;
use prepared::ExpertsDir;
use quantization::QuantRules;

/// Longest JSON file that is read; the index of the largest model has 20 MB.
const MAX_JSON_BYTES: u64 = 512 << 20;

/// Which kind of files a checkpoint is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointKind {
    /// Safetensors, as Hugging Face or MLX write them.
    Safetensors,
    /// A directory that the original system prepared.
    Prepared,
    /// A container that `moeflux pack` wrote.
    Packed,
}

/// What a checkpoint says about how its weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Floats of sixteen bits and more.
    Floats,
    /// FP8, as its model was trained.
    Eights,
    /// Quantised: what is not was left so on purpose.
    Quantised,
}

/// A model's files, their headers read and checked.
#[derive(Debug)]
pub struct Checkpoint {
    kind: CheckpointKind,
    root: PathBuf,
    config: Config,
    files: Vec<SourceFile>,
    tensors: BTreeMap<String, Tensor>,
    n_skipped: usize,
    skip: SkipRule,
    reader: FileReader,
    companion_dirs: Vec<PathBuf>,
    container: Option<Container>,
    rules: QuantRules,
    expert_files: ExpertFiles,
}

/// Where routed experts are, if not among the tensors.
#[derive(Clone, Debug)]
enum ExpertFiles {
    Tensors,
    Prepared(ExpertsDir),
    Packed(Box<Container>),
}

impl Checkpoint {
    /// Opens a directory, or the directory of a file of one.
    ///
    /// # Errors
    /// Where there is no model, or its files contradict each other.
    pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
        let metadata = path.metadata().map_err(FormatError::io(path))?;
        let root = if metadata.is_dir() { path.to_path_buf() } else { root_of_file(path)? };
        if root.join(Container::FILE).is_file() {
            return Self::open_packed(root);
        }
        if root.join(Container::JOURNAL).exists() {
            return Err(FormatError::Unfinished { path: root });
        }
        match prepared::find_index(&root) {
            Some(index) => Self::open_prepared(root, &index),
            None => Self::open_safetensors(root),
        }
    }

    fn open_packed(root: PathBuf) -> Result<Checkpoint, FormatError> {
        let path = root.join(Container::FILE);
        let container = Container::read(&path)?;
        for file in &container.files {
            let path = root.join(&file.path);
            // Whoever needs a missing file says so.
            let Ok(metadata) = path.metadata() else { continue };
            if metadata.len() != file.bytes {
                let what = format!("{} bytes, {} were packed", metadata.len(), file.bytes);
                return Err(FormatError::malformed(&path, what));
            }
        }
        let config = Config::from_value(&path, container.config.clone())?;
        let (file, header) = header::read_header(&root.join(Container::RESIDENT), FileIdx(0))?;
        Self::assemble(Parts {
            kind: CheckpointKind::Packed,
            companion_dirs: vec![root.clone()],
            root,
            config,
            files: vec![file],
            tensors: header.tensors,
            rules: container.rules(),
            container: Some(container.clone()),
            expert_files: ExpertFiles::Packed(Box::new(container)),
        })
    }

    fn open_prepared(root: PathBuf, index: &Path) -> Result<Checkpoint, FormatError> {
        let prepared = prepared::open(&root, index)?;
        Self::assemble(Parts {
            kind: CheckpointKind::Prepared,
            root,
            config: prepared.config,
            files: vec![prepared.file],
            tensors: prepared.tensors,
            rules: prepared.rules,
            companion_dirs: prepared.companion_dirs,
            container: None,
            expert_files: ExpertFiles::Prepared(prepared.experts),
        })
    }

    fn open_safetensors(root: PathBuf) -> Result<Checkpoint, FormatError> {
        let paths = shards::find(&root)?;
        let path = root.join("config.json");
        let config = Config::from_slice(&path, &read_json(&path)?)?;
        let (files, tensors) = shards::read(&root, &paths)?;
        Self::assemble(Parts {
            kind: CheckpointKind::Safetensors,
            companion_dirs: vec![root.clone()],
            root,
            rules: QuantRules::read(&config)?,
            config,
            files,
            tensors,
            container: None,
            expert_files: ExpertFiles::Tensors,
        })
    }

    /// Names tensors canonically and leaves aside what is not used.
    fn assemble(parts: Parts) -> Result<Checkpoint, FormatError> {
        let skip = SkipRule::new(&parts.config);
        let mut tensors: BTreeMap<String, Tensor> = BTreeMap::new();
        let mut n_skipped = 0;
        for tensor in parts.tensors {
            let name = canonical_name(&tensor.stored_name);
            if skip.skips(name) {
                n_skipped += 1;
                continue;
            }
            if let Some(first) = tensors.get(name) {
                return Err(FormatError::Duplicate {
                    path: parts.files[tensor.extent.file.0 as usize].path.clone(),
                    first: first.stored_name.clone(),
                    name: name.to_owned(),
                    second: tensor.stored_name,
                });
            }
            tensors.insert(name.to_owned(), tensor);
        }
        Ok(Checkpoint {
            kind: parts.kind,
            root: parts.root,
            config: parts.config,
            reader: FileReader::new(&parts.files),
            files: parts.files,
            tensors,
            n_skipped,
            skip,
            companion_dirs: parts.companion_dirs,
            container: parts.container,
            rules: parts.rules,
            expert_files: parts.expert_files,
        })
    }

    /// Which kind of files it is made of.
    pub fn kind(&self) -> CheckpointKind {
        self.kind
    }

    /// What its config says about how weights are stored.
    pub fn precision(&self) -> Precision {
        self.rules.precision()
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The model's config.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The files of its tensors; files of experts join them in a bank.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Tensors by canonical name, without those that are left aside.
    pub fn tensors(&self) -> &BTreeMap<String, Tensor> {
        &self.tensors
    }

    /// Whether the model runs without the tensor of that canonical name: a part of multi-token
    /// prediction.
    pub fn is_optional(&self, name: &str) -> bool {
        self.skip.is_optional(name)
    }

    /// How many tensors are left aside whatever a family claims: vision towers, say.
    pub fn n_skipped(&self) -> usize {
        self.n_skipped
    }

    /// Reads its files.
    pub fn reader(&self) -> &FileReader {
        &self.reader
    }

    /// What a packed container says about itself.
    pub fn container(&self) -> Option<&Container> {
        self.container.as_ref()
    }

    /// A file that belongs to the model, such as `tokenizer.json`.
    pub fn companion(&self, name: &str) -> Option<PathBuf> {
        self.companion_dirs.iter().map(|it| it.join(name)).find(|it| it.is_file())
    }

    /// A folder of files that belong to the model, such as further chat templates.
    pub fn companion_folder(&self, name: &str) -> Option<PathBuf> {
        self.companion_dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_dir())
    }

    fn path_of(&self, tensor: &Tensor) -> &Path {
        &self.files[tensor.extent.file.0 as usize].path
    }
}

/// What the formats have in common.
struct Parts {
    kind: CheckpointKind,
    root: PathBuf,
    config: Config,
    files: Vec<SourceFile>,
    tensors: Vec<Tensor>,
    rules: QuantRules,
    companion_dirs: Vec<PathBuf>,
    container: Option<Container>,
    expert_files: ExpertFiles,
}

fn root_of_file(path: &Path) -> Result<PathBuf, FormatError> {
    let not_a_checkpoint = || FormatError::NotACheckpoint { path: path.to_path_buf() };
    let name = path.file_name().and_then(|it| it.to_str()).unwrap_or_default();
    let is_known = name.ends_with(".safetensors")
        || name.ends_with(".safetensors.index.json")
        || [Container::FILE, "config.json", "model_weights.json", "model_weights.bin"]
            .contains(&name);
    if !is_known {
        return Err(not_a_checkpoint());
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_path_buf(),
        None => return Err(not_a_checkpoint()),
    };
    let is_artifacts = name.starts_with("model_weights.") && parent.ends_with("artifacts");
    Ok(if is_artifacts { parent.join("..") } else { parent })
}

/// The bytes of a JSON file of believable length.
fn read_json(path: &Path) -> Result<Vec<u8>, FormatError> {
    read_bounded(path, MAX_JSON_BYTES).map_err(FormatError::io(path))
}

#[cfg(test)]
mod tests;
