//! The vocabulary in the metadata of a GGUF file.
//!
//! The file has all tokens with their numbers and what they are for, and the merges or the scores.
//! Of the way in which texts are split it has a name (`splitters`). Where it holds the whole
//! `tokenizer.json` as well, that is read.

pub(crate) mod key;
mod same;
mod splitters;
mod tokens;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use moeflux_core::gguf::{Metadata, Value};
use moeflux_core::{Dialects, Splitter};
use serde_json::{Value as Json, json};

use self::tokens::{TokenList, Use};
use super::facts::{AddedToken, VocabularyFacts};
use super::files::{MAX_JSON_BYTES, Vocabulary, damaged, without_bom};
use super::merges::{MAX_MERGES, merges};
use super::parts::Tokens;
use super::patterns;
use super::sentencepiece::{self, Model, ModelKind, NormalizerSettings, Piece, PieceKind, Trainer};
use crate::error::{TextError, excerpt};

pub(crate) use self::same::check_same_tokens;
pub(crate) use self::tokens::listed_ends;

/// What helps where a file's own description of its tokenizer does not.
const REMEDY: &str = "put the tokenizer.json of the model next to the file";

/// The kind of a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes that are merged, after a split.
    ByteLevel(Splitter),
    /// Pieces of sentencepiece.
    SentencePiece,
    /// Pieces of whole texts, which merges make of characters.
    MergedPieces,
    /// The whole `tokenizer.json`.
    Json,
}

impl Kind {
    /// The kind of the vocabulary in a file, with the names that families have for them.
    ///
    /// # Errors
    /// Where there is none, or none that is known for sure.
    pub(crate) fn of(metadata: &Metadata, dialects: &Dialects) -> Result<Kind, TextError> {
        if metadata.text(key::HUGGINGFACE_JSON)?.is_some() {
            return Ok(Kind::Json);
        }
        let refuse = |what: String| Err(damaged(metadata.path(), format!("{what}: {REMEDY}")));
        match metadata.text(key::MODEL)? {
            Some("gpt2") => {}
            Some("llama") => return Ok(Kind::SentencePiece),
            Some(other) if dialects.merged_pieces().any(|name| name == other) => {
                return Ok(Kind::MergedPieces);
            }
            None | Some("none" | "no_vocab") => {
                return refuse(format!(
                    "the file has no tokenizer ({} is {})",
                    key::MODEL,
                    metadata.get(key::MODEL).map_or("missing".to_owned(), Value::shown)
                ));
            }
            Some(other) => {
                let known = ["gpt2", "llama"].into_iter().chain(dialects.merged_pieces());
                return refuse(format!(
                    "{} is {:?}, which is not read (known are {})",
                    key::MODEL,
                    excerpt(other),
                    known.collect::<Vec<_>>().join(", ")
                ));
            }
        }
        match metadata.text(key::PRE)? {
            None => refuse(format!("{} is missing, which says how texts are split", key::PRE)),
            Some(name) => match splitters::named(name, dialects) {
                Some(splitter) => Ok(Kind::ByteLevel(splitter)),
                None => refuse(format!(
                    "{} is {:?}, a way to split texts that is not known here (known are {})",
                    key::PRE,
                    excerpt(name),
                    splitters::names(dialects)
                )),
            },
        }
    }
}

/// Reads the vocabulary, with the names that families have for kinds and splits.
///
/// # Errors
/// Where there is none, or it is damaged.
pub(crate) fn vocabulary(
    metadata: &Metadata,
    dialects: &Dialects,
) -> Result<Vocabulary, TextError> {
    let json = match Kind::of(metadata, dialects)? {
        Kind::Json => whole_json(metadata)?,
        Kind::ByteLevel(splitter) => byte_level(metadata, splitter)?,
        Kind::MergedPieces => merged_pieces(metadata)?,
        Kind::SentencePiece => return sentencepiece_model(metadata),
    };
    Ok(Vocabulary { json, named: BTreeMap::new() })
}

fn whole_json(metadata: &Metadata) -> Result<Json, TextError> {
    let key = key::HUGGINGFACE_JSON;
    let text = metadata.text(key)?.unwrap_or_default();
    let refuse = |what: String| damaged(metadata.path(), format!("{key} {what}"));
    if text.len() as u64 > MAX_JSON_BYTES {
        return Err(refuse(format!("has {} bytes, the limit is {MAX_JSON_BYTES}", text.len())));
    }
    serde_json::from_slice(without_bom(text.as_bytes()))
        .map_err(|err| refuse(format!("is not valid JSON: {}", moeflux_core::json_problem(&err))))
}

fn byte_level(metadata: &Metadata, splitter: Splitter) -> Result<Json, TextError> {
    let path = metadata.path();
    let list = TokenList::read(metadata)?;
    let merges = match metadata.texts(key::MERGES)? {
        Some(lines) => read_merges(path, lines, &list)?,
        None if splitters::finds_merges_by_rank(&splitter) => merges_by_rank(path, &list)?,
        None => {
            let rule = format!("list the merges; {REMEDY}");
            return Err(metadata.missing(key::MERGES, &rule).into());
        }
    };
    let mut tokens = Tokens::default();
    for (id, text, kind) in list.all() {
        let inserted = match kind {
            Use::Control => tokens.add(AddedToken::plain(text.to_owned(), true), id),
            Use::UserDefined | Use::Unknown => {
                tokens.add(AddedToken::plain(text.to_owned(), false), id)
            }
            // The original has no such token.
            Use::Unused => Ok(()),
            Use::Normal | Use::Byte => tokens.insert(text, id),
        };
        inserted.map_err(|what| damaged(path, format!("{}: {what}", key::TOKENS)))?;
    }
    let parts = patterns::parts(splitter.splitting, false);
    Ok(tokens.into_byte_level(merges, splitter.ignores_merges, parts))
}

/// Characters that are merged without a split, and bytes where there is no piece.
fn merged_pieces(metadata: &Metadata) -> Result<Json, TextError> {
    let path = metadata.path();
    let list = TokenList::read(metadata)?;
    let lines = metadata.texts(key::MERGES)?;
    let rule = format!("list the merges; {REMEDY}");
    let lines = lines.ok_or_else(|| metadata.missing(key::MERGES, &rule))?;
    let merges = read_merges(path, lines, &list)?;
    let mut tokens = Tokens::default();
    let (mut unknown, mut has_bytes) = (None, false);
    for (id, text, kind) in list.all() {
        has_bytes |= kind == Use::Byte;
        if kind == Use::Unknown {
            unknown = Some(text);
        }
        let inserted = match kind {
            Use::Control | Use::Unknown => tokens.add(AddedToken::plain(text.to_owned(), true), id),
            Use::UserDefined => tokens.add(AddedToken::plain(text.to_owned(), false), id),
            // The original has no such token.
            Use::Unused => Ok(()),
            Use::Normal | Use::Byte => tokens.insert(text, id),
        };
        inserted.map_err(|what| damaged(path, format!("{}: {what}", key::TOKENS)))?;
    }
    let space = sentencepiece::SPACE;
    Ok(json!({
        "added_tokens": tokens.added_json(),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": space},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": space}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]},
        "model": {
            "type": "BPE",
            "unk_token": unknown,
            "fuse_unk": true,
            "byte_fallback": has_bytes,
            "ignore_merges": false,
            "vocab": tokens.ids,
            "merges": merges,
        },
    }))
}

/// Merges whose two parts and whose result are tokens; others never happen.
fn read_merges(
    path: &Path,
    lines: &[String],
    list: &TokenList<'_>,
) -> Result<Vec<Json>, TextError> {
    if lines.len() > MAX_MERGES {
        let what = format!("{}: {} merges, {MAX_MERGES} are read", key::MERGES, lines.len());
        return Err(damaged(path, what));
    }
    let mut merges = Vec::with_capacity(lines.len());
    let mut whole = String::new();
    for (idx, line) in lines.iter().enumerate() {
        let (left, right) = pair(line).ok_or_else(|| {
            let line = excerpt(line);
            let what = format!("{}: entry {idx} is {line:?}, not two tokens", key::MERGES);
            damaged(path, what)
        })?;
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        if [left, right, &whole].iter().all(|text| list.id(text).is_some()) {
            merges.push(json!([left, right]));
        }
    }
    Ok(merges)
}

/// The two parts of a merge, of which the first may begin with a space.
fn pair(line: &str) -> Option<(&str, &str)> {
    let first = line.chars().next()?.len_utf8();
    let at = first + line[first..].find(' ')?;
    let (left, right) = (&line[..at], &line[at + 1..]);
    (!right.is_empty()).then_some((left, right))
}

fn merges_by_rank(path: &Path, list: &TokenList<'_>) -> Result<Vec<Json>, TextError> {
    let normal: Vec<(&str, u32)> = list
        .all()
        .filter(|(_, _, kind)| *kind == Use::Normal)
        .map(|(id, text, _)| (text, id))
        .collect();
    let parts: HashMap<&str, u32> = normal.iter().copied().collect();
    let best_first: Vec<&str> = normal.into_iter().map(|(text, _)| text).collect();
    merges(&best_first, &parts).map_err(|what| damaged(path, format!("{}: {what}", key::TOKENS)))
}

fn sentencepiece_model(metadata: &Metadata) -> Result<Vocabulary, TextError> {
    let list = TokenList::read(metadata)?;
    let scores = list.scores(metadata)?;
    let mut facts = VocabularyFacts::default();
    let mut pieces: Vec<Piece> = (0..list.len() as u32).map(unused_piece).collect();
    for (id, text, kind) in list.all() {
        if kind == Use::UserDefined {
            facts.added.insert(id, AddedToken::plain(text.to_owned(), false));
        }
        pieces[id as usize] = Piece {
            text: Some(text.to_owned()),
            score: Some(scores[id as usize]),
            kind: Some(piece_kind(kind).into()),
        };
    }
    let unknown = metadata.number(key::UNKNOWN)?.and_then(|id| pieces.get(id)?.text.clone());
    facts.special.extend(unknown);
    let byte_fallback = list.all().any(|(_, _, kind)| kind == Use::Byte);
    let model = Model {
        pieces,
        trainer: Some(Trainer {
            kind: Some(ModelKind::Bpe.into()),
            byte_fallback: Some(byte_fallback),
            ..Trainer::default()
        }),
        normalizer: Some(NormalizerSettings {
            precompiled_charsmap: charsmap(metadata)?,
            add_dummy_prefix: Some(metadata.bool(key::ADD_SPACE_PREFIX)?.unwrap_or(true)),
            remove_extra_whitespaces: Some(
                metadata.bool(key::REMOVE_EXTRA_WHITESPACES)?.unwrap_or(false),
            ),
            escape_whitespaces: Some(true),
        }),
    };
    // The file's own keys name the tokens.
    let named = BTreeMap::new();
    Ok(Vocabulary { named, ..sentencepiece::of_model(metadata.path(), model, &facts)? })
}

/// A number without a token.
fn unused_piece(id: u32) -> Piece {
    Piece {
        text: Some(format!("[EMPTY_{id}]")),
        score: Some(0.0),
        kind: Some(PieceKind::Unused.into()),
    }
}

fn piece_kind(kind: Use) -> PieceKind {
    match kind {
        Use::Normal => PieceKind::Normal,
        Use::Unknown => PieceKind::Unknown,
        Use::Control => PieceKind::Control,
        Use::UserDefined => PieceKind::UserDefined,
        Use::Unused => PieceKind::Unused,
        Use::Byte => PieceKind::Byte,
    }
}

/// sentencepiece's map of characters.
fn charsmap(metadata: &Metadata) -> Result<Option<Vec<u8>>, TextError> {
    let key = key::PRECOMPILED_CHARSMAP;
    let Some(numbers) = metadata.integers(key)? else { return Ok(None) };
    // Of bytes with or without sign.
    let byte = |number: &i64| {
        u8::try_from(*number).ok().or_else(|| i8::try_from(*number).ok().map(i8::cast_unsigned))
    };
    match numbers.iter().map(byte).collect() {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(damaged(metadata.path(), format!("{key} holds numbers that are no bytes"))),
    }
}

#[cfg(test)]
mod tests;
