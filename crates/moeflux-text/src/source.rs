//! Where the vocabulary, the chat templates and the sampling defaults of a model are.
//!
//! A model is a directory with files for them, or a GGUF file whose metadata has them. All that
//! opens a model's tokenizer goes through these.

use std::path::{Path, PathBuf};

use moeflux_core::Dialects;
use moeflux_core::checkpoint::companions::{TOKENIZER_JSON, VOCABULARY_FILES};
use moeflux_core::checkpoint::{Checkpoint, FormatError};
use moeflux_core::gguf::Metadata;

use super::config::TextConfig;
use super::error::TextError;
use super::vocabulary::files::Vocabulary;
use super::vocabulary::{VocabularyFacts, VocabularyFiles, gguf};

/// Where the text side of a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextSource {
    /// Files of a directory, as Hugging Face's tools write them.
    Directory(PathBuf),
    /// The metadata of a GGUF file; of a split set, that of its first file.
    Gguf(PathBuf),
}

impl TextSource {
    /// That of an open checkpoint.
    pub fn of(checkpoint: &Checkpoint) -> TextSource {
        if let Some(metadata) = checkpoint.gguf() {
            return TextSource::Gguf(metadata.path().to_owned());
        }
        let found = VOCABULARY_FILES.iter().find_map(|name| checkpoint.companion(name));
        let dir = found.as_deref().and_then(Path::parent);
        TextSource::Directory(dir.unwrap_or(checkpoint.root()).to_owned())
    }

    /// That of the model at a path: a directory, or a file of a checkpoint. A directory with a
    /// vocabulary needs no weights. `dialects` are those of the families that may run it.
    ///
    /// # Errors
    /// Where there is no model, or its weights are damaged so that they do not tell.
    pub fn at(path: &Path, dialects: &Dialects) -> Result<TextSource, TextError> {
        if path.is_dir() && VocabularyFiles::find(path).is_ok() && !has_gguf(path) {
            return Ok(TextSource::Directory(path.to_owned()));
        }
        match Checkpoint::open(path, dialects) {
            Ok(checkpoint) => Ok(TextSource::of(&checkpoint)),
            // Which says what is missing.
            Err(FormatError::NotACheckpoint { .. }) if path.is_dir() => {
                Ok(TextSource::Directory(path.to_owned()))
            }
            Err(err) => Err(err.into()),
        }
    }

    /// The names of the files that the vocabulary is read from. The files are not read.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] where there are none.
    pub fn names(&self) -> Result<String, TextError> {
        match self {
            TextSource::Directory(dir) => VocabularyFiles::find(dir).map(|files| files.name()),
            TextSource::Gguf(path) => {
                let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
                Ok(format!("metadata of {name}"))
            }
        }
    }
}

/// The text side of a GGUF file.
pub(super) struct MetadataText {
    /// Where the vocabulary comes from.
    pub(super) path: PathBuf,
    pub(super) vocabulary: Vocabulary,
    pub(super) config: TextConfig,
}

impl MetadataText {
    pub(super) fn read(metadata: &Metadata, dialects: &Dialects) -> Result<Self, TextError> {
        let reason = match gguf::vocabulary(metadata, dialects) {
            Ok(vocabulary) => {
                let config = TextConfig::of_metadata(metadata, dialects)?;
                return Ok(Self { path: metadata.path().to_owned(), vocabulary, config });
            }
            Err(reason) => reason,
        };
        let dir = metadata.path().parent().unwrap_or(Path::new(""));
        if metadata.get(gguf::key::TOKENS).is_none() {
            // The whole of the text side is elsewhere, or nowhere.
            let Ok(files) = VocabularyFiles::find(dir) else { return Err(reason) };
            let config = TextConfig::read(dir)?;
            let vocabulary = files.read(&config.vocabulary, dialects)?;
            return Ok(Self { path: files.path().to_owned(), vocabulary, config });
        }
        let path = dir.join(TOKENIZER_JSON);
        if !path.is_file() {
            return Err(reason);
        }
        let facts = VocabularyFacts::default();
        let vocabulary = VocabularyFiles::Json(path.clone()).read(&facts, dialects)?;
        gguf::check_same_tokens(metadata, &path, &vocabulary.json)?;
        Ok(Self { path, vocabulary, config: TextConfig::of_metadata(metadata, dialects)? })
    }
}

/// Whether a directory has GGUF files.
fn has_gguf(dir: &Path) -> bool {
    const MOST_NAMES: usize = 10_000;
    let entries = dir.read_dir().into_iter().flatten().take(MOST_NAMES).flatten();
    entries.map(|entry| PathBuf::from(entry.file_name())).any(|name| {
        name.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
    })
}
