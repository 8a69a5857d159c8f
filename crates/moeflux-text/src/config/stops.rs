//! Tokens that end an answer by what they are called.
//!
//! A GGUF file has room for one token that ends a text, one that ends a turn and one that ends a
//! message, where `generation_config.json` lists all. Its converters know that programs find the
//! others by their texts.

use std::collections::BTreeMap;

use moeflux_core::gguf::Metadata;

use crate::error::TextError;
use crate::vocabulary::gguf::key;

/// Texts of tokens that end an answer in every model that has them as markup.
const STOPS: [&str; 26] = [
    "<|endoftext|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// Control, and user-defined.
const MARKUP: [i64; 2] = [3, 4];

/// Adds the numbers of such tokens to `ends`, which has those that the file's keys name.
pub(super) fn add_named(
    metadata: &Metadata,
    tokens: &[String],
    ends: &mut Vec<u32>,
) -> Result<(), TextError> {
    let uses = metadata.integers(key::TOKEN_TYPE)?.unwrap_or_default();
    let markup = (0..).zip(tokens.iter().zip(uses)).filter(|(_, (_, kind))| MARKUP.contains(kind));
    let found: BTreeMap<&str, u32> = markup
        .map(|(id, (text, _))| (text.as_str(), id))
        .filter(|(text, _)| STOPS.contains(text))
        .collect();
    ends.extend(found.values());
    // Where an answer has several messages, this ends one of them.
    let has = |all: &[&str]| all.iter().all(|text| found.contains_key(text));
    if has(&["<|return|>", "<|call|>"]) || has(&["<|calls|>", "<|flush|>"]) {
        let end = found.get("<|end|>");
        ends.retain(|id| Some(id) != end);
    }
    Ok(())
}
