//! Why a checkpoint cannot be made up.

use std::error::Error;
use std::path::PathBuf;

use moeflux_core::WriteError;
use moeflux_core::checkpoint::FormatError;

use crate::error::PackError;

/// A checkpoint that could not be made up.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// There is no such shape.
    #[error("no shape is called {name:?}; there are {known}")]
    UnknownShape {
        /// The name.
        name: String,
        /// Names that would do.
        known: String,
    },
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
    /// A working directory that this program did not make is in the way.
    #[error("{}: in the way; move it or choose another name", path.display())]
    InTheWay {
        /// The directory.
        path: PathBuf,
    },
    /// The family does not accept the shape.
    #[error("{0}")]
    Manifest(Box<dyn Error + Send + Sync>),
    /// The config does not hold together.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The destination cannot be used.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}
