//! What the formats of vocabulary files have in common.

use std::collections::BTreeMap;
use std::path::Path;

use moeflux_core::files::read_bounded;
use serde_json::Value;

use crate::error::TextError;

/// Longest `tokenizer.json` that is read; the largest published ones have about 35 MB.
pub(super) const MAX_JSON_BYTES: u64 = 128 << 20;

/// Longest of the other files; published ones have up to 5 MB.
pub(super) const MAX_BYTES: u64 = 16 << 20;

/// A vocabulary as a `tokenizer.json` would hold it.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    pub(crate) json: Value,
    /// Named tokens, such as `eos_token`, for a model whose files name none.
    pub(crate) named: BTreeMap<&'static str, String>,
}

pub(super) fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, TextError> {
    read_bounded(path, max_bytes)
        .map_err(|source| TextError::Read { path: path.to_owned(), source })
}

pub(super) fn parse_json(path: &Path, bytes: &[u8]) -> Result<Value, TextError> {
    serde_json::from_slice(without_bom(bytes))
        .map_err(|source| TextError::Json { path: path.to_owned(), source })
}

/// The bytes without the mark that some editors put before UTF-8 text.
pub(super) fn without_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// The error of a vocabulary file: `what` says what is wrong, and what to do where that is not
/// plain.
pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> TextError {
    TextError::Vocabulary { path: path.to_owned(), what: what.into() }
}
