//! What can be wrong with a checkpoint, each message with file, value and
//! remedy.

use std::io;
use std::path::{Path, PathBuf};

/// A checkpoint that cannot be used as it is.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing here that looks like a model.
    #[error(
        "{}: no model here; expected moeflux.json, model_weights.json or *.safetensors with a \
         config.json",
        path.display()
    )]
    NotACheckpoint {
        /// Where was looked.
        path: PathBuf,
    },
    /// A container whose packing never ended.
    #[error("{}: packing was interrupted; run `moeflux pack` again to finish it", path.display())]
    Unfinished {
        /// The directory.
        path: PathBuf,
    },
    /// Text that is not the JSON that it should be.
    #[error("{}: {}", path.display(), crate::json_problem(source))]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A file that contradicts itself, or another file.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the value.
        what: String,
    },
    /// A format or mode that this program does not read.
    #[error("{}: {what} is not supported", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What.
        what: String,
    },
    /// The config lacks a key.
    #[error("{}: {key} is missing; it must {rule}", path.display())]
    ConfigMissing {
        /// The config's file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What values are accepted.
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
        /// What values are accepted.
        rule: String,
    },
    /// The model needs a tensor that no file has.
    #[error("{}: tensor {name} is missing; is the download complete?", path.display())]
    TensorMissing {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor's canonical name.
        name: String,
    },
    /// A tensor whose shape is not what the config says.
    #[error("{}: tensor {name} has shape {have:?}, the config asks for {want}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor, as the file calls it.
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
        /// The tensor, as the file calls it.
        name: String,
        /// The first such element, in the order of the file.
        element: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// A tensor whose bytes are not those that were packed.
    #[error(
        "{}: tensor {name} does not have the checksum that it was packed with: the file is \
         damaged; copy it again or pack the model anew",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The tensor, as the file calls it.
        name: String,
    },
    /// Two tensors that mean the same one.
    #[error("{}: tensors {first} and {second} both mean {name}", path.display())]
    Duplicate {
        /// The file of the second.
        path: PathBuf,
        /// One name in the files.
        first: String,
        /// Another.
        second: String,
        /// The canonical name.
        name: String,
    },
    /// Tensors that the model's family has no use for.
    #[error("{}: {n} tensors are not part of this model family: {names}", path.display())]
    Unclaimed {
        /// The checkpoint.
        path: PathBuf,
        /// How many.
        n: usize,
        /// Up to three of them.
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
