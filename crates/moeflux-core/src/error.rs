//! The errors of checkpoints. Each message names the file, the value and the remedy.

use std::io;
use std::path::{Path, PathBuf};

use crate::dense_model::DenseModel;

/// A checkpoint that cannot be used as it is.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The system refused to read the file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The path has no files of a model.
    #[error(
        "{}: no model here; expected moeflux.json, model_weights.json, *.gguf, or *.safetensors \
         with a config.json",
        path.display()
    )]
    NotACheckpoint {
        /// The path that was searched.
        path: PathBuf,
    },
    /// A container that is not complete, because its packing was interrupted.
    #[error("{}: packing was interrupted; run `moeflux pack` again to finish it", path.display())]
    Unfinished {
        /// The directory.
        path: PathBuf,
    },
    /// A file that is not the JSON that it should be.
    #[error("{}: {}", path.display(), crate::json_problem(source))]
    Json {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// A file that is inconsistent, or contradicts another file.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// A description of the problem, with the value.
        what: String,
    },
    /// A GGUF file of an architecture that no family runs.
    #[error(
        "{}: general.architecture {name:?} is not supported; supported are {known}",
        path.display()
    )]
    UnknownArchitecture {
        /// The file.
        path: PathBuf,
        /// The architecture.
        name: String,
        /// The architectures that are read.
        known: String,
    },
    /// A model without experts.
    #[error("{}: {source}", path.display())]
    Dense {
        /// The config, or the GGUF file.
        path: PathBuf,
        /// The model.
        source: DenseModel,
    },
    /// A download that has not finished, and nothing else.
    #[error("{}: the download of {name} has not finished: run it again", path.display())]
    PartOfDownload {
        /// The directory.
        path: PathBuf,
        /// The file that is being written, or was.
        name: String,
    },
    /// A format or mode that this program does not support.
    #[error("{}: {what} is not supported", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The format or mode.
        what: String,
    },
    /// The config lacks a key.
    #[error("{}: {key} is missing; it must {rule}", path.display())]
    ConfigMissing {
        /// The config's file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The accepted values.
        rule: String,
    },
    /// The config has a value that cannot be right.
    #[error("{}: {key} is {value}; it must {rule}", path.display())]
    ConfigValue {
        /// The config's file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The accepted values.
        rule: String,
    },
    /// A tensor that the model needs and that no file has.
    #[error("{}: tensor {name} is missing; is the download complete?", path.display())]
    TensorMissing {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor's canonical name.
        name: String,
    },
    /// A file that was written to while it is read.
    #[error("{}: it was written to while the model runs; start again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A tensor whose name has a prefix that no exporter of models writes.
    #[error(
        "{}: tensor {name} is missing, there is {stored}: save the model without what stands before its names; \
         one that was trained with an adapter is merged first (merge_and_unload)", path.display()
    )]
    OddPrefix {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor's canonical name.
        name: String,
        /// Its name in the file.
        stored: String,
    },
    /// The weights of an adapter without those of its model.
    #[error(
        "{}: an adapter (LoRA), no model: merge it into {base} (merge_and_unload), and name that folder",
        path.display()
    )]
    Adapter {
        /// The folder.
        path: PathBuf,
        /// The model that it was trained on, or words for it.
        base: String,
    },
    /// A tensor with a shape that does not fit the config.
    #[error("{}: tensor {name} has shape {have:?}, the config asks for {want}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor's name in the file.
        name: String,
        /// Its shape.
        have: Vec<usize>,
        /// The accepted shapes.
        want: String,
    },
    /// A weight that is NaN or infinite.
    #[error(
        "{}: element {element} of tensor {name} is {value}: the file is damaged or was written \
         wrongly; fetch or convert the model again",
        path.display()
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor's name in the file.
        name: String,
        /// Index of the first such element, in the order of the file.
        element: usize,
        /// The element: NaN or an infinity.
        value: f32,
    },
    /// A tensor whose checksum differs from that in the container.
    #[error(
        "{}: tensor {name} does not have the checksum that it was packed with: the file is \
         damaged; copy it again or pack the model anew",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The tensor's name in the file.
        name: String,
    },
    /// Two tensors with the same canonical name.
    #[error("{}: tensors {first} and {second} both mean {name}", path.display())]
    Duplicate {
        /// The file of the second tensor.
        path: PathBuf,
        /// Name of the first tensor in its file.
        first: String,
        /// Name of the second tensor in its file.
        second: String,
        /// The canonical name.
        name: String,
    },
    /// Tensors that the model's family does not use.
    #[error("{}: {n} tensors are not part of this model family: {names}", path.display())]
    Unclaimed {
        /// The checkpoint.
        path: PathBuf,
        /// Number of such tensors.
        n: usize,
        /// Names of up to three of them.
        names: String,
    },
}

impl FormatError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> FormatError {
        let path = path.to_path_buf();
        move |source| FormatError::Io { path, source }
    }

    pub(crate) fn json(path: &Path) -> impl FnOnce(serde_json::Error) -> FormatError {
        let path = path.to_path_buf();
        move |source| FormatError::Json { path, source }
    }

    pub(crate) fn malformed(path: &Path, what: impl Into<String>) -> FormatError {
        FormatError::Malformed { path: path.to_path_buf(), what: what.into() }
    }

    pub(crate) fn unsupported(path: &Path, what: impl Into<String>) -> FormatError {
        FormatError::Unsupported { path: path.to_path_buf(), what: what.into() }
    }
}
