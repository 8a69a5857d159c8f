//! GPT-2's pair of files: `vocab.json` with ids by token, `merges.txt` with a pair on every line.

use std::path::Path;

use moeflux_core::Dialects;
use serde_json::{Value, json};

use super::classes;
use super::facts::VocabularyFacts;
use super::parts::Tokens;
use super::patterns;
use crate::error::{TextError, excerpt};
use crate::vocabulary::files::{Vocabulary, damaged, without_bom};

/// The two files, read.
pub(super) struct Pair<'a> {
    pub(super) vocab_path: &'a Path,
    pub(super) vocab: Value,
    pub(super) merges_path: &'a Path,
    pub(super) merges: Vec<u8>,
}

/// Reads such a vocabulary.
pub(super) fn vocabulary(
    pair: &Pair<'_>,
    facts: &VocabularyFacts,
    dialects: &Dialects,
) -> Result<Vocabulary, TextError> {
    let path = pair.vocab_path;
    let splitting = classes::of_merges(path, facts, dialects)?;
    let ids = pair.vocab.as_object().filter(|ids| !ids.is_empty());
    let ids =
        ids.ok_or_else(|| damaged(path, "this must be an object with an id for each token"))?;
    let mut tokens = Tokens::default();
    for (text, id) in ids {
        let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let number = number.ok_or_else(|| {
            let (text, id) = (excerpt(text), excerpt(&id.to_string()));
            damaged(path, format!("the id of {text:?} is {id}, it must be a number"))
        })?;
        tokens.insert(text, number).map_err(|what| damaged(path, what))?;
    }
    let merges = read_merges(pair.merges_path, &pair.merges, &tokens)?;
    tokens.add_all(path, facts)?;
    let prefix_space = facts.add_prefix_space.unwrap_or(false);
    let json = tokens.into_byte_level(merges, false, patterns::parts(splitting, prefix_space));
    Ok(Vocabulary { json, named: classes::named_tokens(path, facts) })
}

fn read_merges(path: &Path, bytes: &[u8], tokens: &Tokens) -> Result<Vec<Value>, TextError> {
    let text = std::str::from_utf8(without_bom(bytes))
        .map_err(|_| damaged(path, "this is not text, two tokens on every line"))?;
    let mut merges = Vec::new();
    for (idx, line) in text.lines().enumerate() {
        let line = line.trim_end_matches('\r');
        if line.is_empty() || (idx == 0 && line.starts_with("#version")) {
            continue;
        }
        let pair = line
            .split_once(' ')
            .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '));
        let at = || format!("line {} is {:?}", idx + 1, excerpt(line));
        let (left, right) = pair.ok_or_else(|| damaged(path, at() + ", not two tokens"))?;
        let whole = format!("{left}{right}");
        if let Some(missing) = [left, right, &whole].iter().find(|text| tokens.id(text).is_none()) {
            let what = format!("{}, but vocab.json has no token {:?}", at(), excerpt(missing));
            return Err(damaged(path, what));
        }
        merges.push(json!([left, right]));
    }
    Ok(merges)
}
