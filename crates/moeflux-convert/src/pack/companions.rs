//! Files of a model besides its weights.

use std::borrow::Cow;
use std::path::PathBuf;

use moeflux_core::checkpoint::Checkpoint;
use moeflux_core::checkpoint::companions::TEMPLATE_FOLDER;
use moeflux_core::files::read_bounded;
use moeflux_model::dialects;
use moeflux_text::text_files;

use crate::error::PackError;

/// Files of a model in addition to its weights.
pub(super) const COMPANIONS: [&str; 15] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tiktoken.model",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "README.md",
];

/// Most further chat templates that are copied.
pub(super) const MAX_TEMPLATES: usize = 64;

/// A file that a container gets in addition to weights.
pub(super) struct Companion {
    /// The path in the container.
    pub(super) name: String,
    content: Content,
}

enum Content {
    /// A copy of this file.
    File(PathBuf),
    /// Made from the metadata of a GGUF file.
    Made(Vec<u8>),
}

impl Companion {
    /// Length in bytes; 0 if the file cannot be read.
    pub(super) fn n_bytes(&self) -> u64 {
        match &self.content {
            Content::File(path) => path.metadata().map_or(0, |found| found.len()),
            Content::Made(bytes) => bytes.len() as u64,
        }
    }

    /// The content.
    ///
    /// # Errors
    /// If the file cannot be read or is too long.
    pub(super) fn read(&self) -> Result<Cow<'_, [u8]>, PackError> {
        match &self.content {
            Content::File(path) => {
                let bytes = read_bounded(path, MAX_COMPANION_BYTES);
                bytes.map(Cow::Owned).map_err(|err| PackError::read(path, err))
            }
            Content::Made(bytes) => Ok(Cow::Borrowed(bytes)),
        }
    }
}

/// The files that a container gets in addition to weights.
///
/// # Errors
/// If the metadata of a GGUF file describes no tokenizer that can be read.
pub(super) fn companions_of(checkpoint: &Checkpoint) -> Result<Vec<Companion>, PackError> {
    if let Some(metadata) = checkpoint.gguf() {
        let files = text_files(metadata, dialects())?.into_iter();
        let made = files.map(|file| Companion {
            name: file.name.to_owned(),
            content: Content::Made(file.content.into_bytes()),
        });
        return Ok(made.collect());
    }
    let file = |(name, path)| Companion { name, content: Content::File(path) };
    Ok(files_of(checkpoint).into_iter().map(file).collect())
}

/// The files of `checkpoint` that are copied: names in the container, and where they are.
fn files_of(checkpoint: &Checkpoint) -> Vec<(String, PathBuf)> {
    let named = |name: &&str| Some((name.to_string(), checkpoint.companion(name)?));
    let mut files: Vec<_> = COMPANIONS.iter().filter_map(named).collect();
    let folder = checkpoint.companion_folder(TEMPLATE_FOLDER);
    let entries = folder.and_then(|folder| folder.read_dir().ok()).into_iter().flatten().flatten();
    let mut templates: Vec<_> = entries
        .take(MAX_TEMPLATES)
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .filter(|(name, path)| name.ends_with(".jinja") && path.is_file())
        .map(|(name, path)| (format!("{TEMPLATE_FOLDER}/{name}"), path))
        .collect();
    templates.sort_unstable();
    files.extend(templates);
    files
}

/// Longest of them: the limit for `tokenizer.json`.
const MAX_COMPANION_BYTES: u64 = 128 << 20;
