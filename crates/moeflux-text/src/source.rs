//! Where the vocabulary, the chat templates and the sampling defaults of a model are.
//!
//! A model is a directory with files for them, or a GGUF file whose metadata has them. All that
//! opens a model's tokenizer goes through [`TextSource`], or the functions of [`Tokenizer`] here.

use std::path::{Path, PathBuf};

use moeflux_core::Dialects;
use moeflux_core::checkpoint::companions::{TOKENIZER_JSON, VOCABULARY_FILES};
use moeflux_core::checkpoint::{Checkpoint, FormatError};
use moeflux_core::gguf::{Metadata, read_metadata};

use super::config::TextConfig;
use super::error::TextError;
use super::tokenizer::Tokenizer;
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

    /// Opens the tokenizer.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] where there is no vocabulary, else what cannot be used and why.
    pub fn open(&self) -> Result<Tokenizer, TextError> {
        match self {
            TextSource::Directory(dir) => Tokenizer::from_dir(dir),
            TextSource::Gguf(path) => Tokenizer::from_metadata(&read_metadata(path)?),
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

impl Tokenizer {
    /// The tokenizer of an open checkpoint, whatever its format.
    ///
    /// # Errors
    /// As [`TextSource::open`].
    pub fn of(checkpoint: &Checkpoint) -> Result<Tokenizer, TextError> {
        match checkpoint.gguf() {
            Some(metadata) => Tokenizer::from_metadata(metadata),
            None => TextSource::of(checkpoint).open(),
        }
    }

    /// The tokenizer of the model at a path: a directory, or a file of a checkpoint.
    ///
    /// # Errors
    /// As [`TextSource::at`] and [`TextSource::open`].
    pub fn at(path: &Path, dialects: &Dialects) -> Result<Tokenizer, TextError> {
        TextSource::at(path, dialects)?.open()
    }

    /// Opens the vocabulary of a model directory ([`VOCABULARY_FILES`] says of which files)
    /// together with `tokenizer_config.json`, `generation_config.json`, `config.json` and the
    /// template files, where they exist.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] where there is no vocabulary, else the file that cannot be used
    /// and why.
    pub fn from_dir(dir: &Path) -> Result<Tokenizer, TextError> {
        let files = VocabularyFiles::find(dir)?;
        Tokenizer::of_files(&files, TextConfig::read(dir)?)
    }

    /// Opens the vocabulary in the metadata of a GGUF file, with its special tokens, templates and
    /// sampling. Template files next to the file take the place of its templates; where its
    /// vocabulary cannot be read, that of a `tokenizer.json` next to it serves, if it has the
    /// same tokens.
    ///
    /// # Errors
    /// The key that cannot be used and why.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TextError> {
        let MetadataText { path, vocabulary, config } = MetadataText::read(metadata)?;
        Tokenizer::assemble(&path, vocabulary, config)
    }
}

/// The text side of a GGUF file.
pub(super) struct MetadataText {
    /// Where the vocabulary comes from.
    path: PathBuf,
    pub(super) vocabulary: Vocabulary,
    pub(super) config: TextConfig,
}

impl MetadataText {
    pub(super) fn read(metadata: &Metadata) -> Result<Self, TextError> {
        let reason = match gguf::vocabulary(metadata) {
            Ok(vocabulary) => {
                let config = TextConfig::of_metadata(metadata)?;
                return Ok(Self { path: metadata.path().to_owned(), vocabulary, config });
            }
            Err(reason) => reason,
        };
        let dir = metadata.path().parent().unwrap_or(Path::new(""));
        if metadata.get(gguf::key::TOKENS).is_none() {
            // The whole of the text side is elsewhere, or nowhere.
            let Ok(files) = VocabularyFiles::find(dir) else { return Err(reason) };
            let config = TextConfig::read(dir)?;
            let vocabulary = files.read(&config.vocabulary)?;
            return Ok(Self { path: files.path().to_owned(), vocabulary, config });
        }
        let path = dir.join(TOKENIZER_JSON);
        if !path.is_file() {
            return Err(reason);
        }
        let vocabulary = VocabularyFiles::Json(path.clone()).read(&VocabularyFacts::default())?;
        gguf::check_same_tokens(metadata, &path, &vocabulary.json)?;
        Ok(Self { path, vocabulary, config: TextConfig::of_metadata(metadata)? })
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
