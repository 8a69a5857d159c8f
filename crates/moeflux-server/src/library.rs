//! Where a server's models come from.

use std::time::{SystemTime, UNIX_EPOCH};

use moeflux_core::OptionId;
use moeflux_engine::{Engine, Inspection};

use crate::model::is_called;

/// A model that a server may load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryModel {
    /// What requests call it; the first is its name, of which there is always one.
    pub names: Vec<String>,
    /// Other names that mean it, and that lists of models leave out.
    pub aliases: Vec<String>,
    /// Bytes of its files.
    pub bytes: u64,
    /// When its files were last changed or used, where the system notes it.
    pub modified: Option<SystemTime>,
}

impl LibraryModel {
    /// A model of which only the name is known.
    pub(crate) fn named(name: &str) -> LibraryModel {
        let names = vec![name.to_owned()];
        LibraryModel { names, aliases: Vec::new(), bytes: 0, modified: None }
    }

    /// Whether it is meant by a name.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        is_called(&self.names, name) || is_called(&self.aliases, name)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// When its files were last changed or used, in seconds since 1970.
    pub(crate) fn modified_at(&self) -> Option<u64> {
        let since = self.modified?.duration_since(UNIX_EPOCH).ok()?;
        Some(since.as_secs())
    }
}

/// Why a model cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// There is none of this name.
    #[error("{0}")]
    NotFound(String),
    /// It cannot be used: it does not fit, its files are damaged, its download failed. In one line.
    #[error("{0}")]
    Failed(String),
    /// This library does not do this.
    #[error("{0}")]
    Refused(String),
}

/// How far a download is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullProgress {
    /// What is done, in words.
    pub status: String,
    /// Bytes that are here, where bytes are downloaded.
    pub done: u64,
    /// Bytes of all that is downloaded; 0 where this is not known.
    pub total: u64,
}

/// Where a server's models come from. All of it blocks, and may be called from several threads.
pub trait Library: Send + Sync {
    /// The models there are now, by name. Called often: opens none of them.
    fn models(&self) -> Vec<LibraryModel>;

    /// What a model is, and what it takes in memory. Reads headers, no weights.
    ///
    /// # Errors
    /// Where there is no such model, or it cannot be run.
    fn inspect(&self, name: &str) -> Result<Inspection, LibraryError>;

    /// Opens a model.
    ///
    /// # Errors
    /// Where there is no such model, it cannot be run, or does not fit.
    fn open(&self, name: &str) -> Result<Engine, LibraryError>;

    /// Downloads a model, so that it is among those of [`Library::models`].
    ///
    /// # Errors
    /// Where there is no such model, it cannot be run, the download fails, or this library downloads
    /// none.
    fn pull(&self, name: &str, progress: &mut dyn FnMut(PullProgress)) -> Result<(), LibraryError>;

    /// Removes a model's files.
    ///
    /// # Errors
    /// Where there is no such model, or this library removes none.
    fn remove(&self, name: &str) -> Result<(), LibraryError>;
}

/// The library of a server whose one model was opened by its caller.
pub(crate) struct OneModel {
    pub(crate) model: LibraryModel,
}

/// Why a server with one model changes nothing about it.
fn fixed() -> LibraryError {
    let hub = OptionId::Hub;
    LibraryError::Refused(format!(
        "this server serves the model that it was started with: {hub} serves, downloads and removes the \
         models of the Hub's cache"
    ))
}

impl Library for OneModel {
    fn models(&self) -> Vec<LibraryModel> {
        vec![self.model.clone()]
    }

    fn inspect(&self, _name: &str) -> Result<Inspection, LibraryError> {
        Err(fixed())
    }

    fn open(&self, _name: &str) -> Result<Engine, LibraryError> {
        Err(fixed())
    }

    fn pull(&self, _: &str, _: &mut dyn FnMut(PullProgress)) -> Result<(), LibraryError> {
        Err(fixed())
    }

    fn remove(&self, _name: &str) -> Result<(), LibraryError> {
        Err(fixed())
    }
}
