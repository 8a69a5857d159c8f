//! The files in which models publish their vocabularies.
//!
//! Every kind, and that in the metadata of a GGUF file (`gguf`), is turned into the content of a
//! `tokenizer.json`, so that all of them take the same path afterwards: the checks of
//! `tokenizer_file`, the tokenizer library, the table of bytes.
//! What a file leaves to the code of a tokenizer class (the pre-tokenizer, reserved tokens, the
//! token that begins a text) is what `transformers` or the model's published class does.

mod classes;
mod facts;
pub(crate) mod files;
pub(crate) mod gguf;
mod merges;
mod merges_file;
mod parts;
mod patterns;
mod sentencepiece;
mod tiktoken;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use moeflux_core::Dialects;
use moeflux_core::checkpoint::companions::{MERGES, SENTENCEPIECE, TIKTOKEN, VOCAB};

use super::error::TextError;
use crate::vocabulary::files::{MAX_BYTES, MAX_JSON_BYTES, Vocabulary, parse_json, read};

pub(super) use facts::VocabularyFacts;

/// Where the vocabulary of a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VocabularyFiles {
    /// `tokenizer.json`.
    Json(PathBuf),
    /// Tokens in base64 and their ranks.
    Tiktoken(PathBuf),
    /// GPT-2's pair of files.
    Merges { vocab: PathBuf, merges: PathBuf },
    /// sentencepiece's file; some models give this name to tokens in base64.
    SentencePiece(PathBuf),
}

impl VocabularyFiles {
    /// The files of the model in `dir`.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] where there are none.
    pub(super) fn find(dir: &Path) -> Result<Self, TextError> {
        // A link that leads nowhere is found, so that the error of reading it names it.
        let found =
            |name: &str| Some(dir.join(name)).filter(|path| path.symlink_metadata().is_ok());
        if let Some(path) = found("tokenizer.json") {
            return Ok(Self::Json(path));
        }
        if let Some(path) = found(TIKTOKEN) {
            return Ok(Self::Tiktoken(path));
        }
        let pair = (found(VOCAB), found(MERGES));
        if let (Some(vocab), Some(merges)) = pair {
            return Ok(Self::Merges { vocab, merges });
        }
        if let Some(path) = found(SENTENCEPIECE) {
            return Ok(Self::SentencePiece(path));
        }
        let there = match pair {
            (Some(_), None) => format!("{VOCAB} is there without {MERGES}"),
            (None, Some(_)) => format!("{MERGES} is there without {VOCAB}"),
            _ => other_vocabulary(dir),
        };
        Err(TextError::NoTokenizer { dir: dir.to_owned(), there })
    }

    /// The file that errors name.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Json(path) | Self::Tiktoken(path) | Self::SentencePiece(path) => path,
            Self::Merges { vocab, .. } => vocab,
        }
    }

    /// What a person calls it: the names of its files.
    pub(super) fn name(&self) -> String {
        let name = |path: &Path| {
            path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
        };
        match self {
            Self::Merges { vocab, merges } => format!("{} and {}", name(vocab), name(merges)),
            one => name(one.path()),
        }
    }

    /// Reads the vocabulary; `dialects` say what files leave to the code of a model.
    ///
    /// # Errors
    /// Where a file cannot be read, is damaged, or leaves to a class that is not known how texts
    /// are split.
    pub(super) fn read(
        &self,
        facts: &VocabularyFacts,
        dialects: &Dialects,
    ) -> Result<Vocabulary, TextError> {
        match self {
            Self::Json(path) => {
                let json = parse_json(path, &read(path, MAX_JSON_BYTES)?)?;
                Ok(Vocabulary { json, named: BTreeMap::new() })
            }
            Self::Tiktoken(path) => tiktoken::vocabulary(path, &read(path, MAX_BYTES)?, facts),
            Self::Merges { vocab, merges } => {
                merges_file::vocabulary(&read_pair(vocab, merges)?, facts, dialects)
            }
            Self::SentencePiece(path) => {
                let bytes = read(path, MAX_BYTES)?;
                if tiktoken::is_tiktoken(&bytes) {
                    tiktoken::vocabulary(path, &bytes, facts)
                } else {
                    sentencepiece::vocabulary(path, &bytes, facts)
                }
            }
        }
    }
}

fn read_pair<'a>(vocab: &'a Path, merges: &'a Path) -> Result<merges_file::Pair<'a>, TextError> {
    Ok(merges_file::Pair {
        vocab_path: vocab,
        vocab: parse_json(vocab, &read(vocab, MAX_BYTES)?)?,
        merges_path: merges,
        merges: read(merges, MAX_BYTES)?,
    })
}

/// A vocabulary of a kind that is not read, in words; empty if there is none.
fn other_vocabulary(dir: &Path) -> String {
    const MOST_NAMES: usize = 10_000;
    let is_other = |name: &str| {
        ["tekken.json", "spiece.model", "sentencepiece.bpe.model", "vocab.txt"].contains(&name)
            || name.ends_with(".tiktoken")
    };
    let entries = dir.read_dir().into_iter().flatten().take(MOST_NAMES).flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    match names.filter(|name| is_other(name)).min() {
        Some(name) => format!("{name} is there, which is not read"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests;
