//! A model whose files have been found and checked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::names::SkipRule;
use super::prepared::ExpertsDir;
use super::quantization::{Precision, QuantRules};
use super::{Config, Container, FileReader, Tensor};
use crate::SourceFile;

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

/// A model's files, their headers read and checked.
#[derive(Debug)]
pub struct Checkpoint {
    pub(super) kind: CheckpointKind,
    pub(super) root: PathBuf,
    pub(super) config: Config,
    pub(super) files: Vec<SourceFile>,
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) n_skipped: usize,
    pub(super) skip: SkipRule,
    pub(super) reader: FileReader,
    pub(super) companion_dirs: Vec<PathBuf>,
    pub(super) container: Option<Container>,
    pub(super) rules: QuantRules,
    pub(super) expert_files: ExpertFiles,
}

/// Where routed experts are, if not among the tensors.
#[derive(Clone, Debug)]
pub(super) enum ExpertFiles {
    Tensors,
    Prepared(ExpertsDir),
    Packed(Box<Container>),
}

impl Checkpoint {
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

    pub(super) fn path_of(&self, tensor: &Tensor) -> &Path {
        &self.files[tensor.extent.file.0 as usize].path
    }
}
