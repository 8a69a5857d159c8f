//! Why a conversion ends early.

use std::io;
use std::path::{Path, PathBuf};

use moeflux_core::checkpoint::FormatError;
use moeflux_core::quant::QuantiseError;
use moeflux_core::{OptionId, WriteError};
use moeflux_model::LoadError;
use moeflux_text::TextError;

/// Why a checkpoint could not be converted or verified.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The checkpoint is damaged, or of no known family.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Packing failed, or what was packed does not read back.
    #[error(transparent)]
    Pack(#[from] PackError),
}

/// A packing, or a verification, that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The source, or what was read back, is not what it should be.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The vision tower of the source, or of what was packed, is not what it should be.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The tokenizer or the templates of a GGUF file cannot be read.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An option has a value that does not exist.
    #[error("{what} cannot be {value}; allowed are {allowed}")]
    Option {
        /// Which.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What would do.
        allowed: String,
    },
    /// The destination holds other things.
    #[error("{}: the directory is not empty; choose a new one", path.display())]
    NotEmpty {
        /// The destination.
        path: PathBuf,
    },
    /// The destination is complete.
    #[error(
        "{}: holds a packed container already; {} packs it again",
        path.display(),
        OptionId::Force
    )]
    AlreadyPacked {
        /// The destination.
        path: PathBuf,
    },
    /// The destination is the source.
    #[error("{}: source and destination are the same directory", path.display())]
    SameDirectory {
        /// The destination.
        path: PathBuf,
    },
    /// Another process packs there.
    #[error("{}: another process is packing here; wait for it", path.display())]
    Busy {
        /// The destination.
        path: PathBuf,
    },
    /// What was begun there was begun otherwise.
    #[error("{}: cannot continue: {what}; {} starts over", path.display(), OptionId::Force)]
    Differs {
        /// The destination.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// A weight that no quantisation holds.
    #[error("{name}: {source}")]
    Quantise {
        /// The tensor.
        name: String,
        /// Which element.
        source: QuantiseError,
    },
    /// What was written is not what should have been.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

impl PackError {
    pub(crate) fn read(path: &Path, source: io::Error) -> PackError {
        PackError::Write(WriteError::at(path)(source))
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> PackError {
        PackError::Damaged { path: path.to_path_buf(), what: what.into() }
    }
}
