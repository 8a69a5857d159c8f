//! The bytes behind every token id, and the rule that joins them.
//!
//! Decoding is concatenation of bytes followed by lossy UTF-8. For byte-level tokenizers that is
//! what `tokenizers` itself does; for byte-fallback ones it differs only in how many U+FFFD stand
//! for bytes that are not UTF-8, and has the merit that a stream needs no look-back.

use std::collections::HashSet;
use std::path::Path;

use moeflux_core::TokenId;
use serde_json::Value;

use super::error::{TextError, excerpt};
use super::tokenizer_file::MAX_TOKENS;

/// Whether special tokens appear in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Every token is written.
    Show,
    /// Tokens flagged special (end of turn and the like) are left out.
    Hide,
}

#[derive(Debug)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    ends: Vec<usize>, // (vocab_size,): token i is bytes[ends[i - 1]..ends[i]]
    special: HashSet<u32>,
    join: Join,
}

/// What happens at the start of a text and between tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Join {
    /// Spaces removed at the very start of the text.
    strip_start: usize,
    /// All spaces of the first token are removed.
    bare_first: bool,
    /// A space stands between two tokens.
    spaced: bool,
}

/// How the text of a vocabulary entry becomes bytes.
#[derive(Debug, Default)]
struct Spelling {
    byte_level: bool,
    byte_fallback: bool,
    replace: Vec<(String, String)>,
}

/// State of one decode: which token is the first, and what is still to be stripped.
#[derive(Clone, Debug)]
pub(super) struct Joiner {
    first: bool,
    strip: usize,
}

impl TokenTable {
    pub(super) fn new(
        path: &Path,
        json: &Value,
        inner: &tokenizers::Tokenizer,
    ) -> Result<Self, TextError> {
        let (spelling, join) = parse_decoder(path, json.get("decoder").unwrap_or(&Value::Null))?;
        let added = inner.get_added_tokens_decoder();
        let ids = inner.get_vocab(true).into_values().chain(added.keys().copied());
        let n_tokens = ids.max().map_or(0, |max| max.saturating_add(1));
        if n_tokens > MAX_TOKENS {
            return Err(TextError::Field {
                path: path.to_owned(),
                field: "the largest token id".into(),
                value: (n_tokens - 1).to_string(),
                want: "below 4194304",
            });
        }
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(n_tokens as usize),
            special: added.iter().filter(|(_, t)| t.special).map(|(id, _)| *id).collect(),
            join,
        };
        let of_char = byte_of_char();
        for id in 0..n_tokens {
            if let Some(text) = inner.id_to_token(id) {
                spelling.spell(&text, &of_char, &mut table.bytes);
            }
            table.ends.push(table.bytes.len());
        }
        Ok(table)
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn bytes(&self, id: TokenId) -> &[u8] {
        let idx = id.0 as usize;
        let Some(&end) = self.ends.get(idx) else { return &[] };
        let start = if idx == 0 { 0 } else { self.ends[idx - 1] };
        &self.bytes[start..end]
    }

    pub(super) fn is_special(&self, id: TokenId) -> bool {
        self.special.contains(&id.0)
    }

    pub(super) fn joiner(&self) -> Joiner {
        Joiner { first: true, strip: self.join.strip_start }
    }
}

impl Joiner {
    /// Appends the bytes of `id` to `out`, as they stand after the tokens seen before.
    pub(super) fn push(
        &mut self,
        table: &TokenTable,
        id: TokenId,
        special: Special,
        out: &mut Vec<u8>,
    ) {
        if id.0 as usize >= table.vocab_size() || (special == Special::Hide && table.is_special(id))
        {
            return;
        }
        let mut bytes = table.bytes(id);
        if table.join.spaced && !self.first {
            out.push(b' ');
        }
        if table.join.bare_first && self.first {
            out.extend(bytes.iter().filter(|&&b| b != b' '));
            bytes = &[];
        }
        self.first = false;
        while self.strip > 0 && !bytes.is_empty() {
            if bytes[0] == b' ' {
                bytes = &bytes[1..];
                self.strip -= 1;
            } else {
                self.strip = 0;
            }
        }
        out.extend_from_slice(bytes);
    }
}

impl Spelling {
    fn spell(&self, text: &str, of_char: &std::collections::HashMap<char, u8>, out: &mut Vec<u8>) {
        if self.byte_level {
            let mapped: Option<Vec<u8>> = text.chars().map(|c| of_char.get(&c).copied()).collect();
            match mapped {
                Some(bytes) => out.extend(bytes),
                None => out.extend_from_slice(text.as_bytes()),
            }
            return;
        }
        let mut text = text.to_owned();
        for (from, to) in &self.replace {
            text = text.replace(from, to);
        }
        match fallback_byte(&text).filter(|_| self.byte_fallback) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(text.as_bytes()),
        }
    }
}

/// `<0x0A>` stands for the byte 10.
fn fallback_byte(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// GPT-2's printable stand-ins: printable Latin-1 stands for itself, the other bytes are counted
/// up from U+0100.
fn byte_of_char() -> std::collections::HashMap<char, u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    (0..=255u8)
        .filter_map(|b| {
            let code = if printable(b) {
                u32::from(b)
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).map(|c| (c, b))
        })
        .collect()
}

fn parse_decoder(path: &Path, decoder: &Value) -> Result<(Spelling, Join), TextError> {
    let mut spelling = Spelling::default();
    let mut join = Join::default();
    let one = std::slice::from_ref(decoder);
    let steps = match kind(decoder) {
        "" => {
            join.spaced = true;
            return Ok((spelling, join));
        }
        "Sequence" => decoder["decoders"].as_array().map_or(&[][..], Vec::as_slice),
        _ => one,
    };
    let mut fused = false;
    for step in steps {
        let known = match kind(step) {
            "ByteLevel" => {
                spelling.byte_level = true;
                spelling.replace.is_empty()
            }
            "ByteFallback" => {
                spelling.byte_fallback = true;
                !spelling.byte_level
            }
            "Fuse" => {
                fused = true;
                true
            }
            "Replace" => {
                let from = step["pattern"]["String"].as_str().filter(|from| !from.is_empty());
                let rule = from.zip(step["content"].as_str());
                spelling.replace.extend(rule.map(|(a, b)| (a.to_owned(), b.to_owned())));
                rule.is_some() && !spelling.byte_level && !spelling.byte_fallback
            }
            "Metaspace" => {
                let mark = step["replacement"].as_str().unwrap_or("▁").to_owned();
                spelling.replace.push((mark, " ".into()));
                join.bare_first = step["prepend_scheme"] != "never"
                    && step["add_prefix_space"] != Value::Bool(false);
                steps.len() == 1
            }
            "Strip" => {
                join.strip_start = step["start"].as_u64().unwrap_or(0) as usize;
                fused && step["content"] == " " && step["stop"].as_u64().unwrap_or(0) == 0
            }
            _ => false,
        };
        if !known {
            return Err(unknown(path, step));
        }
    }
    Ok((spelling, join))
}

fn kind(decoder: &Value) -> &str {
    decoder.get("type").and_then(Value::as_str).unwrap_or("")
}

fn unknown(path: &Path, step: &Value) -> TextError {
    TextError::Field {
        path: path.to_owned(),
        field: "a step of the decoder".into(),
        value: excerpt(&step.to_string()),
        want: "ByteLevel, or of the kind Replace, ByteFallback, Fuse, Strip, Metaspace in \
               sentencepiece's order",
    }
}
