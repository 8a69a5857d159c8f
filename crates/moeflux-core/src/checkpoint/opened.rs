//! A model whose files were found and checked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checksum::part_checksum;
use super::derived::DerivedTensors;
use super::names::SkipRule;
use super::prepared::ExpertsDir;
use super::quantization::{Precision, QuantRules};
use super::{Config, Container, Extent, FileReader, FormatError, Tensor};
use crate::SourceFile;
use crate::gguf::{Metadata, NamedTensor, StoredNames};
use crate::quant::Encoding;

/// The format of a checkpoint's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointKind {
    /// Safetensors, as Hugging Face or MLX write them.
    Safetensors,
    /// A directory that the original system prepared.
    Prepared,
    /// A container that `moeflux pack` wrote.
    Packed,
    /// GGUF files, as llama.cpp writes them.
    Gguf,
}

/// The files of a model, whose headers were read and checked.
#[derive(Debug)]
pub struct Checkpoint {
    pub(super) kind: CheckpointKind,
    pub(super) root: PathBuf,
    pub(super) config: Config,
    pub(super) files: Vec<SourceFile>,
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) n_skipped: usize,
    /// Those of them that belong to parts of a model which are not its text, by canonical name.
    pub(super) other_parts: Vec<NamedTensor>,
    pub(super) warnings: Vec<String>,
    pub(super) skip: SkipRule,
    /// Those of [`Dialects`](crate::Dialects).
    pub(super) joined_experts: Vec<[&'static str; 2]>,
    pub(super) reader: FileReader,
    pub(super) derived: Arc<DerivedTensors>,
    pub(super) companion_dirs: Vec<PathBuf>,
    pub(super) container: Option<Container>,
    pub(super) rules: QuantRules,
    pub(super) expert_files: ExpertFiles,
    pub(super) gguf: Option<Gguf>,
}

/// What only checkpoints of GGUF files have.
#[derive(Debug)]
pub(super) struct Gguf {
    pub(super) metadata: Metadata,
    pub(super) names: FileNames,
}

/// Translates canonical names of tensors into those of files.
#[derive(Clone, Copy, Debug)]
pub(super) enum FileNames {
    Architecture(StoredNames),
    Part(fn(&str) -> Option<String>),
}

impl FileNames {
    fn stored(&self, canonical: &str) -> Option<String> {
        match self {
            FileNames::Architecture(names) => names.stored(canonical),
            FileNames::Part(stored) => stored(canonical),
        }
    }
}

/// Where routed experts are stored.
#[derive(Clone, Debug)]
pub(super) enum ExpertFiles {
    Tensors,
    Prepared(ExpertsDir),
    Packed(Box<Container>),
}

/// Tensors by their names.
///
/// # Errors
/// If two have the same name.
pub(super) fn by_name(
    named: Vec<NamedTensor>,
    files: &[SourceFile],
) -> Result<BTreeMap<String, Tensor>, FormatError> {
    let mut tensors: BTreeMap<String, Tensor> = BTreeMap::new();
    for NamedTensor { name, tensor } in named {
        if let Some(first) = tensors.get(&name) {
            // Where the bytes are computed, the first file stands for those that they come from.
            let file = files.get(tensor.extent.file.0 as usize).unwrap_or(&files[0]);
            return Err(FormatError::Duplicate {
                path: file.path.clone(),
                first: first.stored_name.clone(),
                name,
                second: tensor.stored_name,
            });
        }
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// The reader of a checkpoint's files and of what is computed from them.
pub(super) fn reader_of(
    files: &[SourceFile],
    root: &Path,
    derived: &Arc<DerivedTensors>,
) -> FileReader {
    let mut readable = files.to_vec();
    let derived = Arc::clone(derived);
    readable.push(SourceFile::derived(root, derived));
    FileReader::new(&readable)
}

impl Checkpoint {
    /// The format of the files.
    pub fn kind(&self) -> CheckpointKind {
        self.kind
    }

    /// How the config says that weights are stored.
    pub fn precision(&self) -> Precision {
        self.rules.precision()
    }

    /// The directory of the checkpoint; of GGUF files, which may share one with other models, the
    /// first file.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The model's config.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The files of the tensors. A bank adds the files of experts to them.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Tensors by canonical name, without those that are skipped.
    pub fn tensors(&self) -> &BTreeMap<String, Tensor> {
        &self.tensors
    }

    /// Whether the tensor with this canonical name is stored, in whatever format: the weight of a
    /// module may be packed under another name.
    pub fn holds(&self, name: &str) -> bool {
        let packed = name.strip_suffix(".weight").is_some_and(|module| {
            ["weight_packed", "qweight"]
                .iter()
                .any(|part| self.tensors.contains_key(&format!("{module}.{part}")))
        });
        packed || self.tensors.contains_key(name)
    }

    /// Whether the model runs without the tensor with this canonical name, because it belongs to
    /// multi-token prediction.
    pub fn is_optional(&self, name: &str) -> bool {
        self.skip.is_optional(name)
    }

    /// Number of tensors that are skipped for every family, such as those of vision towers.
    pub fn n_skipped(&self) -> usize {
        self.n_skipped
    }

    /// Tensors of other parts of the model than its text, as a checkpoint of their own with this config:
    /// those to whose canonical names `name_of` gives a name there. `None` where there are none.
    ///
    /// # Errors
    /// If two of them get the same name.
    pub fn part(
        &self,
        name_of: &dyn Fn(&str) -> Option<String>,
        config: Config,
    ) -> Result<Option<Checkpoint>, FormatError> {
        let named = |other: &NamedTensor| {
            Some(NamedTensor { name: name_of(&other.name)?, tensor: other.tensor.clone() })
        };
        let tensors = by_name(self.other_parts.iter().filter_map(named).collect(), &self.files)?;
        if tensors.is_empty() {
            return Ok(None);
        }
        let derived = Arc::new(DerivedTensors::new(&self.files));
        Ok(Some(Checkpoint {
            kind: self.kind,
            root: self.root.clone(),
            config,
            reader: reader_of(&self.files, &self.root, &derived),
            derived,
            files: self.files.clone(),
            tensors,
            n_skipped: 0,
            other_parts: Vec::new(),
            warnings: Vec::new(),
            skip: SkipRule::default(),
            joined_experts: Vec::new(),
            companion_dirs: self.companion_dirs.clone(),
            container: self.container.clone(),
            rules: self.rules.clone(),
            expert_files: ExpertFiles::Tensors,
            gguf: None,
        }))
    }

    /// What of its files contradicts what was read instead, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The reader of the files.
    pub fn reader(&self) -> &FileReader {
        &self.reader
    }

    /// The description of the container; `None` for other formats.
    pub fn container(&self) -> Option<&Container> {
        self.container.as_ref()
    }

    /// The keys of the GGUF file, or of the first part of a split set; `None` for other formats.
    pub fn gguf(&self) -> Option<&Metadata> {
        self.gguf.as_ref().map(|gguf| &gguf.metadata)
    }

    /// The error for a tensor, by its canonical name, whose values cannot be right.
    pub fn refuse_tensor(&self, canonical: &str, what: &str) -> FormatError {
        match self.tensors.get(canonical) {
            Some(tensor) => {
                let what = format!("tensor {}: {what}", tensor.stored_name);
                FormatError::malformed(self.path_of(tensor), what)
            }
            None => FormatError::malformed(&self.root, format!("tensor {canonical}: {what}")),
        }
    }

    /// The name that messages show for a tensor that is missing.
    pub fn shown_name(&self, canonical: &str) -> String {
        let stored = self.gguf.as_ref().and_then(|gguf| gguf.names.stored(canonical));
        stored.unwrap_or_else(|| canonical.to_owned())
    }

    /// Path of a file that belongs to the model, such as `tokenizer.json`; `None` if it does not
    /// exist.
    pub fn companion(&self, name: &str) -> Option<PathBuf> {
        self.companion_dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file())
    }

    /// Path of a folder that belongs to the model, such as that of further chat templates; `None`
    /// if it does not exist.
    pub fn companion_folder(&self, name: &str) -> Option<PathBuf> {
        self.companion_dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_dir())
    }

    /// The file of a tensor; the checkpoint where it is computed from others.
    pub(super) fn path_of(&self, tensor: &Tensor) -> &Path {
        let file = self.files.get(tensor.extent.file.0 as usize);
        file.map_or(&self.root, |file| &file.path)
    }

    /// Checks that the elements in `bytes`, which were read from `extent`, are finite numbers.
    /// `files` are those of the checkpoint, or those of a bank, which begin with them.
    ///
    /// # Errors
    /// [`FormatError::NotFinite`] with the first element that is not finite.
    pub fn check_finite(
        &self,
        files: &[SourceFile],
        encoding: Encoding,
        extent: Extent,
        bytes: &[u8],
    ) -> Result<(), FormatError> {
        let Some((found, value)) = encoding.first_not_finite(bytes) else { return Ok(()) };
        let path = match files.get(extent.file.0 as usize) {
            Some(file) => file.path.clone(),
            None => self.root.clone(),
        };
        let holds = |tensor: &&Tensor| {
            let Extent { file, offset, len } = tensor.extent;
            file == extent.file && (offset..offset + len as u64).contains(&extent.offset)
        };
        let (name, first) = match self.tensors.values().find(holds) {
            Some(tensor) => {
                let n_bytes = encoding.unit_bytes() as u64;
                let before = ((extent.offset - tensor.extent.offset) / n_bytes) as usize;
                (tensor.stored_name.clone(), before * encoding.unit_elements())
            }
            None => (self.name_of_computed(files, extent), 0),
        };
        Err(FormatError::NotFinite { path, name, element: first + found, value })
    }

    /// The tensors from which what an extent has was computed.
    fn name_of_computed(&self, files: &[SourceFile], extent: Extent) -> String {
        let file = files.get(extent.file.0 as usize);
        let inputs = file.and_then(|file| file.derived.as_ref());
        let inputs = inputs.map_or_else(Vec::new, |derived| derived.inputs(extent.offset));
        let has = |tensor: &&Tensor| inputs.contains(&tensor.extent);
        let names = self.tensors.values().filter(has).map(|tensor| tensor.stored_name.as_str());
        match names.collect::<Vec<_>>()[..] {
            [] => format!("at byte {}", extent.offset),
            ref names => format!("computed from {}", names.join(" and ")),
        }
    }

    /// Checks the bytes of a whole tensor, which were read from `extent`, against its checksum.
    /// Accepts tensors without a checksum.
    ///
    /// # Errors
    /// [`FormatError::Damaged`] if the checksum differs.
    pub fn check_tensor(&self, extent: Extent, bytes: &[u8]) -> Result<(), FormatError> {
        let Some(container) = &self.container else { return Ok(()) };
        let is_whole = |tensor: &&Tensor| tensor.extent == extent && extent.len > 0;
        let Some(tensor) = self.tensors.values().find(is_whole) else { return Ok(()) };
        let Some(want) = container.resident_checksum(&tensor.stored_name) else { return Ok(()) };
        if part_checksum(bytes) == want {
            return Ok(());
        }
        let (path, name) = (self.path_of(tensor).to_path_buf(), tensor.stored_name.clone());
        Err(FormatError::Damaged { path, name })
    }
}
