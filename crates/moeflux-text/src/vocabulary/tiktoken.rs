//! Vocabularies of tiktoken: a token in base64 and its rank on every line.
//!
//! The rank is the id of the token and its place in the order of merges. How texts are split and
//! which tokens are added is in the code of the tokenizer's class (`classes`).

use std::collections::HashMap;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::classes;
use super::facts::{AddedToken, VocabularyFacts};
use super::merges::merges;
use super::parts::Tokens;
use super::patterns;
use crate::byte_level::char_of_byte;
use crate::error::{TextError, excerpt};
use crate::vocabulary::files::{Vocabulary, damaged, without_bom};

/// Bytes of a token; the longest of published ones are 128 spaces.
const MAX_TOKEN_BYTES: usize = 1024;

/// Tokens behind the ranks that Moonshot's class reserves. Those that `added_tokens_decoder` does
/// not name are called by their ids.
const N_RESERVED: u32 = 256;

/// Whether the first line is a token in base64 and a number.
pub(super) fn is_tiktoken(bytes: &[u8]) -> bool {
    let bytes = without_bom(bytes);
    let line = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
    std::str::from_utf8(line).is_ok_and(|line| entry(line).is_some())
}

/// The token and the rank of a line.
fn entry(line: &str) -> Option<(Vec<u8>, u32)> {
    let (token, rank) = line.trim_end().split_once(' ')?;
    let token = BASE64_STANDARD.decode(token).ok().filter(|token| !token.is_empty())?;
    Some((token, rank.trim_start().parse().ok()?))
}

/// Reads such a vocabulary; `path` is what errors name.
pub(super) fn vocabulary(
    path: &Path,
    bytes: &[u8],
    facts: &VocabularyFacts,
) -> Result<Vocabulary, TextError> {
    let refuse = |what: String| damaged(path, what);
    let splitting = classes::of_ranks(path, facts)?;
    let text = std::str::from_utf8(without_bom(bytes)).map_err(|_| {
        refuse(String::from("this is not text, a token in base64 and its rank on every line"))
    })?;
    let mut ranks = read_ranks(text).map_err(refuse)?;
    ranks.sort_unstable_by_key(|(_, rank)| *rank);
    let mut tokens = Tokens::default();
    for (token, rank) in &ranks {
        tokens.insert(token, *rank).map_err(refuse)?;
    }
    if let Some(missing) = (0..=255u8).find(|b| tokens.id(&spell(&[*b])).is_none()) {
        return Err(refuse(format!("it has no token for the byte {missing:#04x}")));
    }
    let parts: HashMap<&str, u32> =
        ranks.iter().map(|(token, rank)| (token.as_str(), *rank)).collect();
    let best_first: Vec<&str> = ranks.iter().map(|(token, _)| token.as_str()).collect();
    let merges = merges(&best_first, &parts).map_err(|what| refuse(what.to_owned()))?;
    let n_ranks = ranks.len() as u32;
    tokens.add_all(path, &tiktoken_facts(facts))?;
    if classes::is_kimi(path, facts) {
        reserve(&mut tokens, n_ranks, facts);
    }
    let prefix_space = facts.add_prefix_space.unwrap_or(false);
    let json = tokens.into_byte_level(merges, true, patterns::parts(splitting, prefix_space));
    Ok(Vocabulary { json, named: classes::named_tokens(path, facts) })
}

/// tiktoken takes added tokens from texts as they are, with no space around them.
fn tiktoken_facts(facts: &VocabularyFacts) -> VocabularyFacts {
    let mut facts = facts.clone();
    for token in facts.added.values_mut() {
        *token = AddedToken::plain(std::mem::take(&mut token.content), token.special);
    }
    facts
}

/// Names the reserved ids that have no name, up to what the model has logits for.
fn reserve(tokens: &mut Tokens, n_ranks: u32, facts: &VocabularyFacts) {
    let end = n_ranks + N_RESERVED;
    let end = facts.n_logits.map_or(end, |n_logits| end.min(n_logits));
    for id in n_ranks..end {
        if !tokens.has_id(id) {
            let token = AddedToken::plain(format!("<|reserved_token_{id}|>"), true);
            // A name that is taken stays with the token that has it.
            let _ = tokens.add(token, id);
        }
    }
}

/// Tokens in GPT-2's spelling, and their ranks.
fn read_ranks(text: &str) -> Result<Vec<(String, u32)>, String> {
    let chars = char_of_byte();
    let mut ranks = Vec::new();
    for (idx, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let (token, rank) = entry(line).ok_or_else(|| {
            format!("line {} is {:?}, not a token in base64 and its rank", idx + 1, excerpt(line))
        })?;
        if token.len() > MAX_TOKEN_BYTES {
            return Err(format!(
                "the token of line {} has {} bytes, the limit is {MAX_TOKEN_BYTES}",
                idx + 1,
                token.len()
            ));
        }
        ranks.push((token.iter().map(|b| chars[usize::from(*b)]).collect(), rank));
    }
    if ranks.is_empty() {
        return Err(String::from("it is empty"));
    }
    Ok(ranks)
}

fn spell(bytes: &[u8]) -> String {
    let chars = char_of_byte();
    bytes.iter().map(|b| chars[usize::from(*b)]).collect()
}
