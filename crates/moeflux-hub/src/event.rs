//! What the caller hears while a model is found, inspected or downloaded.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::HubError;

/// Something that happened. Events arrive on the thread that called.
#[derive(Debug)]
pub enum Event<'a> {
    /// The Hub cannot be asked; an earlier copy that is complete is used.
    Stale {
        /// Why the Hub could not be asked.
        reason: &'a HubError,
    },
    /// Another process downloads the same repository; this one waits until it is done.
    Waiting {
        /// The file that the other process holds locked.
        lock: &'a Path,
    },
    /// A GGUF file of several was chosen.
    Chosen(&'a Chosen),
    /// Headers are about to be written to a folder for temporary files, which is removed with the
    /// value that holds them.
    HeadersFolder {
        /// The folder.
        dir: &'a Path,
    },
    /// Headers of weights were read.
    Headers {
        /// Files whose headers are here.
        done: usize,
        /// Files whose headers are needed.
        total: usize,
    },
    /// A download begins. There is room for it.
    Start {
        /// Its size and its place.
        download: &'a Download,
    },
    /// Bytes of the download have arrived.
    Bytes {
        /// Bytes of all files that are here, those of earlier runs included.
        done: u64,
        /// Bytes of all files.
        total: u64,
        /// Bytes that arrived since the last event of this kind; none for bytes that were here.
        received: u64,
    },
    /// A request failed and will be repeated.
    Retrying(&'a Retry),
}

/// Which of the GGUF files of a repository was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// `org/name`.
    pub repo: String,
    /// What chooses it behind a colon: `Q4_K_M`.
    pub label: String,
    /// Its path in the repository; of a split file that of the first part.
    pub path: String,
    /// Whether there are others, of which none was asked for.
    pub is_default: bool,
    /// The path of its vision tower, which comes with it; `None` where the repository has none.
    pub tower: Option<String>,
    /// Files that belong to the model and are not read: other copies of the tower, importance matrices.
    pub passed_over: Vec<String>,
}

/// A request that failed and will be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The file, or the repository and its revision.
    pub what: String,
    /// Why the request failed.
    pub reason: String,
    /// Time until the next attempt.
    pub wait: Duration,
    /// The attempt that follows; the first one is 1.
    pub attempt: u32,
    /// How many attempts there are in all.
    pub n_attempts: u32,
}

/// What a download takes, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download {
    /// `org/name`.
    pub repo: String,
    /// What chooses the GGUF file behind a colon, where the model is one.
    pub label: Option<String>,
    /// The commit that the revision stands for, 40 hexadecimal digits.
    pub commit: String,
    /// Files that a model needs.
    pub n_files: usize,
    /// Bytes of these files.
    pub bytes: u64,
    /// Bytes of them that are not here yet.
    pub missing_bytes: u64,
    /// The cache that the files go to.
    pub dir: PathBuf,
    /// Bytes that the file system of `dir` has left for this user; `None` if it does not say.
    pub free_bytes: Option<u64>,
    /// Whether the repository has a tokenizer that can be read, without which no text can be made.
    pub has_tokenizer: bool,
}

impl Download {
    /// What names the model: `org/name`, or `org/name:Q4_K_M`.
    pub fn name(&self) -> String {
        match &self.label {
            Some(label) => format!("{}:{label}", self.repo),
            None => self.repo.clone(),
        }
    }

    /// Whether the missing bytes have room.
    pub fn fits(&self) -> bool {
        self.free_bytes.is_none_or(|free| self.missing_bytes <= free)
    }

    /// Refuses what has no room.
    ///
    /// # Errors
    /// [`HubError::NoRoom`] with both numbers.
    pub fn check_room(&self) -> Result<(), HubError> {
        match self.free_bytes {
            Some(free) if !self.fits() => Err(HubError::NoRoom {
                repo: self.repo.clone(),
                dir: self.dir.clone(),
                needed: self.missing_bytes,
                free,
            }),
            _ => Ok(()),
        }
    }
}
