//! Whether a `tokenizer.json` is that of a GGUF file.

use std::path::Path;

use moeflux_core::gguf::Metadata;
use serde_json::Value as Json;

use super::key;
use crate::error::{TextError, excerpt};
use crate::vocabulary::files::damaged;

/// Converters rewrite the texts of some added tokens: one in this many may be another.
const ONE_OF: usize = 64;

/// Refuses a `tokenizer.json` of another model: folders hold files of several.
///
/// # Errors
/// A token that it has under another number.
pub(crate) fn check_same_tokens(
    metadata: &Metadata,
    path: &Path,
    json: &Json,
) -> Result<(), TextError> {
    let tokens = metadata.texts(key::TOKENS)?.unwrap_or_default();
    let model = &json["model"]["vocab"];
    let numbered = model.as_object().into_iter().flatten();
    let numbered = numbered.filter_map(|(text, id)| Some((text.as_str(), id.as_u64()? as usize)));
    let listed = model.as_array().into_iter().flatten().enumerate();
    let listed = listed.filter_map(|(id, entry)| Some((entry[0].as_str()?, id)));
    let added = json["added_tokens"].as_array().into_iter().flatten();
    let added = added
        .filter_map(|token| Some((token["content"].as_str()?, token["id"].as_u64()? as usize)));
    let (mut n_all, mut n_other, mut first) = (0, 0, None);
    for (text, id) in numbered.chain(listed).chain(added) {
        n_all += 1;
        if tokens.get(id).is_none_or(|token| token != text) {
            n_other += 1;
            first = first.or(Some((text, id)));
        }
    }
    let Some((text, id)) = first.filter(|_| n_other > n_all / ONE_OF) else { return Ok(()) };
    let here = match tokens.get(id) {
        Some(token) => format!("token {id} is {:?} there, not {:?}", excerpt(text), excerpt(token)),
        None => format!("it has a token {id}, there are {}", tokens.len()),
    };
    Err(damaged(
        path,
        format!("this is not the tokenizer of {}: {here}", metadata.path().display()),
    ))
}
