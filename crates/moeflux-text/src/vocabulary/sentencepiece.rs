//! sentencepiece's `tokenizer.model`: pieces with scores, and how texts are normalised.
//!
//! The settings of the file are translated to steps of a `tokenizer.json`, so that texts become
//! the ids that sentencepiece's own library gives. As in transformers, control pieces and the
//! tokens of `added_tokens_decoder` are looked for in texts first, and the text between two of
//! them is a text of its own, with its own dummy prefix, unless `legacy` is false.
//!
//! Three things differ from sentencepiece's library. A map of characters (`precompiled_charsmap`)
//! is applied to one grapheme at a time. A unigram vocabulary adds scores in 64 bits, so that
//! another of two segmentations with the same score may be taken. And where a text has the name of
//! a byte (`<0x0A>`), no piece of a unigram vocabulary spans the first two characters of it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prost::Message;
use serde_json::{Value, json};

use super::facts::{AddedToken, VocabularyFacts};
use super::merges::merges;
use super::parts::Tokens;
use crate::error::{TextError, excerpt};
use crate::tokenizer_file::{MAX_REGEX_BYTES, MAX_TOKENS};
use crate::vocabulary::files::{Vocabulary, damaged};

/// What stands for a space.
pub(super) const SPACE: &str = "\u{2581}";

/// `ModelProto` of `sentencepiece_model.proto`, the fields that matter here.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Model {
    #[prost(message, repeated, tag = "1")]
    pub(super) pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    pub(super) trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    pub(super) normalizer: Option<NormalizerSettings>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Piece {
    #[prost(string, optional, tag = "1")]
    pub(super) text: Option<String>,
    #[prost(float, optional, tag = "2")]
    pub(super) score: Option<f32>,
    #[prost(enumeration = "PieceKind", optional, tag = "3", default = "Normal")]
    pub(super) kind: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum PieceKind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// `TrainerSpec`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Trainer {
    #[prost(enumeration = "ModelKind", optional, tag = "3", default = "Unigram")]
    pub(super) kind: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    pub(super) treat_whitespace_as_suffix: Option<bool>,
    #[prost(bool, optional, tag = "35")]
    pub(super) byte_fallback: Option<bool>,
    #[prost(int32, optional, tag = "41", default = "1")]
    pub(super) bos_id: Option<i32>,
    #[prost(int32, optional, tag = "42", default = "2")]
    pub(super) eos_id: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ModelKind {
    Unigram = 1,
    Bpe = 2,
    Word = 3,
    Char = 4,
}

/// `NormalizerSpec`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NormalizerSettings {
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) precompiled_charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3", default = "true")]
    pub(super) add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4", default = "true")]
    pub(super) remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5", default = "true")]
    pub(super) escape_whitespaces: Option<bool>,
}

/// The pieces under the names that the files next to the vocabulary give them.
struct Pieces {
    names: Vec<String>,
    model: Model,
}

/// Reads such a vocabulary; `path` is what errors name.
pub(super) fn vocabulary(
    path: &Path,
    bytes: &[u8],
    facts: &VocabularyFacts,
) -> Result<Vocabulary, TextError> {
    let model = Model::decode(bytes).map_err(|err| {
        let what = "this is neither a model of sentencepiece nor a vocabulary of tiktoken";
        damaged(path, format!("{what} ({err})"))
    })?;
    of_model(path, model, facts)
}

/// The vocabulary of a model, wherever it was read from; `path` is what errors name.
pub(super) fn of_model(
    path: &Path,
    model: Model,
    facts: &VocabularyFacts,
) -> Result<Vocabulary, TextError> {
    let pieces = Pieces::check(path, model, facts)?;
    let trainer = pieces.model.trainer.clone().unwrap_or_default();
    if trainer.treat_whitespace_as_suffix() {
        return Err(damaged(path, "treat_whitespace_as_suffix is set, which is not supported"));
    }
    let mut tokens = Tokens::default();
    for (id, name) in (0..).zip(&pieces.names) {
        tokens.insert(name, id).map_err(|what| damaged(path, what))?;
    }
    for (id, name) in pieces.of_kind(PieceKind::Control) {
        let token = AddedToken::plain(name.to_owned(), true);
        tokens.add(token, id).map_err(|what| damaged(path, what))?;
    }
    // With a dummy prefix, the normalised text of a token is not its text.
    let mut raw = facts.clone();
    raw.added.values_mut().for_each(|token| token.normalized = false);
    tokens.add_all(path, &raw)?;
    let named = pieces.named_tokens(&trainer);
    let isolated = pieces.isolated(&tokens, facts);
    if let Isolated::Added(texts) = &isolated {
        for (id, name) in texts {
            let token = AddedToken::plain(name.clone(), false);
            tokens.add(token, *id).map_err(|what| damaged(path, what))?;
        }
    }
    let unspoken = match trainer.kind() {
        ModelKind::Unigram => pieces.unspoken(),
        _ => String::new(),
    };
    let settings = pieces.model.normalizer.clone().unwrap_or_default();
    let added = tokens.added_json();
    let has_whole = !isolated.pattern().is_empty();
    let model = pieces.model_json(path, &trainer, tokens, has_whole)?;
    let has_bos = facts.class.as_deref().is_some_and(|class| {
        ["LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"].contains(&class)
    });
    let bos = named.get("bos_token").filter(|_| has_bos);
    let json = json!({
        "added_tokens": added,
        "normalizer": normalizer(&settings, facts),
        "pre_tokenizer": pre_tokenizer(&settings, facts, isolated.pattern(), &unspoken),
        "post_processor": bos.map(|bos| begin_with(bos, &model["vocab"])),
        "decoder": decoder(&settings),
        "model": model,
    });
    Ok(Vocabulary { json, named })
}

/// User-defined pieces, which sentencepiece takes from texts whole.
enum Isolated {
    /// A pattern that finds them in normalised text; empty where there are none.
    Pattern(String),
    /// More of them than a pattern may have: they are added tokens.
    Added(Vec<(u32, String)>),
}

impl Isolated {
    fn pattern(&self) -> &str {
        match self {
            Self::Pattern(pattern) => pattern,
            Self::Added(_) => "",
        }
    }
}

impl Pieces {
    fn check(path: &Path, model: Model, facts: &VocabularyFacts) -> Result<Self, TextError> {
        if model.pieces.is_empty() || model.pieces.len() > MAX_TOKENS as usize {
            let what = format!("it has {} pieces, 1 to {MAX_TOKENS} are read", model.pieces.len());
            return Err(damaged(path, what));
        }
        let names = (0..).zip(&model.pieces).map(|(id, piece)| {
            let added = facts.added.get(&id).map(|token| token.content.as_str());
            added.unwrap_or(piece.text()).to_owned()
        });
        let names: Vec<String> = names.collect();
        let unfit = names
            .iter()
            .zip(&model.pieces)
            .find(|(name, piece)| name.is_empty() || !piece.score().is_finite());
        if let Some((name, piece)) = unfit {
            let what = format!("the piece {:?} has the score {}", excerpt(name), piece.score());
            return Err(damaged(path, what + ": a piece has a text and a finite score"));
        }
        Ok(Self { names, model })
    }

    fn of_kind(&self, kind: PieceKind) -> impl Iterator<Item = (u32, &str)> {
        let all = (0..).zip(&self.names).zip(&self.model.pieces);
        all.filter(move |(_, piece)| piece.kind() == kind)
            .map(|((id, name), _)| (id, name.as_str()))
    }

    fn named_tokens(&self, trainer: &Trainer) -> BTreeMap<&'static str, String> {
        let control: HashMap<u32, &str> = self.of_kind(PieceKind::Control).collect();
        let ids = [("bos_token", trainer.bos_id()), ("eos_token", trainer.eos_id())];
        let named = ids.iter().filter_map(|(name, id)| {
            let text = control.get(&u32::try_from(*id).ok()?)?;
            Some((*name, (*text).to_owned()))
        });
        named.collect()
    }

    fn isolated(&self, tokens: &Tokens, facts: &VocabularyFacts) -> Isolated {
        let is_added = |id: u32| facts.added.contains_key(&id);
        let pieces = self.of_kind(PieceKind::UserDefined);
        let mut pieces: Vec<(u32, String)> = pieces
            .filter(|(id, name)| !is_added(*id) && tokens.id(name) == Some(*id))
            .map(|(id, name)| (id, name.to_owned()))
            .collect();
        // The longest that fits is taken.
        pieces.sort_by_key(|(id, name)| (std::cmp::Reverse(name.len()), *id));
        let escaped: Vec<String> = pieces.iter().map(|(_, name)| escape(name)).collect();
        let pattern = escaped.join("|");
        if pattern.len() > MAX_REGEX_BYTES {
            Isolated::Added(pieces)
        } else {
            Isolated::Pattern(pattern)
        }
    }

    /// A pattern for the first character of texts that no piece stands for although they are its
    /// name: `<0x0A>` is no byte where a text spells it. The library knows names alone, and does not
    /// find what is split there.
    fn unspoken(&self) -> String {
        let bytes = String::from("<(?=0x[0-9A-F]{2}>)");
        let unknown = self.of_kind(PieceKind::Unknown).filter_map(|(_, name)| {
            let rest = name.chars().next().map(char::len_utf8)?;
            let (first, rest) = name.split_at(rest);
            (!rest.is_empty()).then(|| format!("{}(?={})", escape(first), escape(rest)))
        });
        std::iter::once(bytes).chain(unknown.take(1)).collect::<Vec<_>>().join("|")
    }

    /// `model` of a `tokenizer.json`.
    fn model_json(
        &self,
        path: &Path,
        trainer: &Trainer,
        tokens: Tokens,
        has_whole: bool,
    ) -> Result<Value, TextError> {
        let unknown = self.of_kind(PieceKind::Unknown).next();
        let byte_fallback = trainer.byte_fallback();
        let bpe = |merges: Vec<Value>| {
            json!({
                "type": "BPE",
                "unk_token": unknown.map(|(_, name)| name),
                "fuse_unk": true,
                "byte_fallback": byte_fallback,
                "ignore_merges": has_whole,
                "vocab": tokens.ids,
                "merges": merges,
            })
        };
        match trainer.kind() {
            ModelKind::Bpe => {
                let merges = self.merges().map_err(|what| damaged(path, what))?;
                Ok(bpe(merges))
            }
            ModelKind::Char => Ok(bpe(Vec::new())),
            ModelKind::Unigram => {
                let vocab = self.scored(&tokens);
                Ok(json!({
                    "type": "Unigram",
                    "unk_id": unknown.map(|(id, _)| id),
                    "byte_fallback": byte_fallback,
                    "vocab": vocab,
                }))
            }
            ModelKind::Word => {
                Err(damaged(path, "its model type is WORD: BPE, UNIGRAM and CHAR are read"))
            }
        }
    }

    /// All tokens by id with their scores. Added tokens, and ids between them that have no token,
    /// get the least score, which is that of a token that texts seldom become.
    fn scored(&self, tokens: &Tokens) -> Vec<Value> {
        let scores = || self.model.pieces.iter().map(Piece::score);
        let least = scores().fold(0.0, f32::min);
        let pieces = self.names.iter().zip(scores()).map(|(name, score)| json!([name, score]));
        let more = (self.names.len() as u32..tokens.end()).map(|id| match tokens.text(id) {
            Some(text) => json!([text, least]),
            None => json!([format!("<|reserved_token_{id}|>"), least]),
        });
        pieces.chain(more).collect()
    }

    fn merges(&self) -> Result<Vec<Value>, &'static str> {
        let normal: Vec<(u32, &str)> = self.of_kind(PieceKind::Normal).collect();
        let parts: HashMap<&str, u32> = normal.iter().map(|(id, name)| (*name, *id)).collect();
        let mut best_first = normal;
        let score = |id: u32| self.model.pieces[id as usize].score();
        best_first.sort_by(|a, b| score(b.0).total_cmp(&score(a.0)).then(a.0.cmp(&b.0)));
        let best_first: Vec<&str> = best_first.into_iter().map(|(_, name)| name).collect();
        merges(&best_first, &parts)
    }
}

fn normalizer(settings: &NormalizerSettings, facts: &VocabularyFacts) -> Value {
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let mut steps = Vec::new();
    if let Some(map) = settings.precompiled_charsmap.as_ref().filter(|map| !map.is_empty()) {
        let map = BASE64_STANDARD.encode(map);
        steps.push(json!({"type": "Precompiled", "precompiled_charsmap": map}));
    }
    if settings.remove_extra_whitespaces() {
        steps.push(replace(json!({"Regex": r"\A +"}), ""));
        steps.push(replace(json!({"Regex": " {2,}"}), " "));
    }
    let is_escaped = settings.escape_whitespaces();
    if is_escaped {
        steps.push(replace(json!({"String": " "}), SPACE));
    }
    if settings.remove_extra_whitespaces() {
        // At the end also the character that stands for a space.
        let end = if is_escaped { format!(r"{SPACE}+\z") } else { String::from(r" +\z") };
        steps.push(replace(json!({"Regex": end}), ""));
    }
    if has_prefix(settings, facts) && facts.legacy != Some(false) {
        let prefix = if is_escaped { SPACE } else { " " };
        steps.push(json!({"type": "Prepend", "prepend": prefix}));
    }
    json!({"type": "Sequence", "normalizers": steps})
}

fn has_prefix(settings: &NormalizerSettings, facts: &VocabularyFacts) -> bool {
    settings.add_dummy_prefix() && facts.add_prefix_space != Some(false)
}

fn pre_tokenizer(
    settings: &NormalizerSettings,
    facts: &VocabularyFacts,
    isolated: &str,
    unspoken: &str,
) -> Value {
    let mut steps = Vec::new();
    if has_prefix(settings, facts) && facts.legacy == Some(false) {
        steps.push(json!({
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": "first",
            "split": false,
        }));
    }
    let split = |pattern: &str, behavior: &str| {
        json!({
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": behavior,
            "invert": false,
        })
    };
    if !isolated.is_empty() {
        steps.push(split(isolated, "Isolated"));
    }
    if !unspoken.is_empty() {
        // Behind the first character, and not before it.
        steps.push(split(unspoken, "MergedWithPrevious"));
    }
    if steps.is_empty() { Value::Null } else { json!({"type": "Sequence", "pretokenizers": steps}) }
}

/// Puts the token `bos` before a text.
fn begin_with(bos: &str, vocab: &Value) -> Value {
    let id = match vocab {
        Value::Array(list) => list.iter().position(|entry| entry[0] == bos).map(Value::from),
        ids => ids.get(bos).cloned(),
    };
    let token = json!({"id": bos, "ids": [id], "tokens": [bos]});
    let begin = json!({"SpecialToken": {"id": bos, "type_id": 0}});
    let text = |name: &str, kind: u8| json!({"Sequence": {"id": name, "type_id": kind}});
    json!({
        "type": "TemplateProcessing",
        "single": [begin, text("A", 0)],
        "pair": [begin, text("A", 0), text("B", 1)],
        "special_tokens": {bos: token},
    })
}

fn decoder(settings: &NormalizerSettings) -> Value {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if settings.add_dummy_prefix() || settings.remove_extra_whitespaces() {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

/// A regular expression that matches `text` alone.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        // Other characters mean something else where they are escaped: `\<` is a word's start.
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
