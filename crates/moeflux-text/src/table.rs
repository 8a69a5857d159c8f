//! The bytes behind every token id, and the rule that joins them.
//!
//! Decoding is concatenation of bytes followed by lossy UTF-8. For byte-level tokenizers that is
//! what `tokenizers` itself does; for byte-fallback ones it differs only in how many U+FFFD stand
//! for bytes that are not UTF-8, and has the merit that a stream needs no look-back.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use moeflux_core::TokenId;
use serde_json::Value;

use super::byte_level::byte_of_char;
use super::error::{TextError, excerpt};
use super::tokenizer_file::MAX_TOKENS;

/// Most characters that a decoder strips of a token.
const MAX_STRIP: usize = 1024;

/// What rows of a picture are in a text.
const PICTURE: &str = "[image]";

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

impl Join {
    /// Spaces that a step puts in after `Strip` stay. So do spaces of tokens that begin with one
    /// by themselves, which vocabularies with such a step do not have.
    fn keep_spaces_of(&mut self, put_in: &str) {
        if put_in.contains(' ') {
            self.strip_start = 0;
        }
    }
}

/// How the text of a vocabulary entry becomes bytes: the steps of the decoder that act on one
/// token, in their order.
#[derive(Debug, Default)]
struct Spelling {
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    /// GPT-2's characters for bytes.
    ByteLevel(HashMap<char, u8>),
    /// `<0x0A>` for a byte.
    ByteFallback,
    Replace {
        from: String,
        to: String,
    },
    /// Removes up to `start` characters `content` before a token, and up to `stop` after it.
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
}

/// State of one decode: which token is the first, and what is still to be stripped.
#[derive(Clone, Debug)]
pub(super) struct Joiner {
    first: bool,
    strip: usize,
    /// The last token was a row of a picture.
    is_picture: bool,
}

impl TokenTable {
    pub(super) fn new(
        path: &Path,
        json: &Value,
        inner: &tokenizers::Tokenizer,
    ) -> Result<Self, TextError> {
        let (spelling, join) = parse_decoder(path, json.get("decoder").unwrap_or(&Value::Null))?;
        let added = inner.get_added_tokens_decoder();
        let vocab = entries(&json["model"]["vocab"]);
        let ids = vocab.iter().map(|(id, _)| *id).chain(added.keys().copied());
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
        let mut texts = vec![None; n_tokens as usize];
        let of_added = added.iter().map(|(id, token)| (*id, token.content.as_str()));
        for (id, text) in vocab.into_iter().chain(of_added) {
            texts[id as usize] = Some(text);
        }
        for text in texts {
            if let Some(text) = text {
                table.bytes.extend(spelling.spell(text.to_owned()));
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
        Joiner { first: true, strip: self.join.strip_start, is_picture: false }
    }
}

/// The ids and texts of `model.vocab`: an object, or the pieces of a Unigram model in order.
fn entries(vocab: &Value) -> Vec<(u32, &str)> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match vocab {
        Value::Object(all) => {
            all.iter().filter_map(|(text, value)| Some((id(value)?, text.as_str()))).collect()
        }
        Value::Array(all) => {
            (0..).zip(all).filter_map(|(id, piece)| Some((id, piece[0].as_str()?))).collect()
        }
        _ => Vec::new(),
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
        let follows_row = std::mem::replace(&mut self.is_picture, id.is_picture());
        if id.is_picture() && !follows_row && special == Special::Show {
            out.extend_from_slice(PICTURE.as_bytes());
        }
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
    /// The bytes of the vocabulary entry `text`.
    fn spell(&self, text: String) -> Vec<u8> {
        self.steps.iter().fold(text.into_bytes(), |bytes, step| {
            // A byte that is no character has been spelled.
            match String::from_utf8(bytes) {
                Ok(text) => step.apply(text),
                Err(err) => err.into_bytes(),
            }
        })
    }
}

impl Step {
    fn apply(&self, text: String) -> Vec<u8> {
        match self {
            Self::ByteLevel(of_char) => {
                let mapped: Option<Vec<u8>> =
                    text.chars().map(|c| of_char.get(&c).copied()).collect();
                mapped.unwrap_or_else(|| text.into_bytes())
            }
            Self::ByteFallback => match fallback_byte(&text) {
                Some(byte) => vec![byte],
                None => text.into_bytes(),
            },
            Self::Replace { from, to } => text.replace(from, to).into_bytes(),
            Self::Strip { content, start, stop } => {
                let mut rest = text.as_str();
                for _ in 0..*start {
                    rest = rest.strip_prefix(*content).unwrap_or(rest);
                }
                for _ in 0..*stop {
                    rest = rest.strip_suffix(*content).unwrap_or(rest);
                }
                rest.as_bytes().to_vec()
            }
        }
    }
}

/// `<0x0A>` stands for the byte 10.
fn fallback_byte(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// The decoder of a `tokenizer.json`. Steps after `Fuse` and `ByteLevel` act on the whole text,
/// the others on one token.
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
    let mut is_fused = false;
    for step in steps {
        let number = |field: &str| step[field].as_u64().unwrap_or(0) as usize;
        let is_known = match kind(step) {
            "ByteLevel" if !is_fused => {
                spelling.steps.push(Step::ByteLevel(byte_of_char()));
                is_fused = true;
                true
            }
            "ByteFallback" => {
                // A whole text is not the spelling of a byte.
                spelling.steps.extend((!is_fused).then_some(Step::ByteFallback));
                true
            }
            "Fuse" => {
                is_fused = true;
                true
            }
            "Replace" => {
                let rule = replacement(step).filter(|(from, _)| !is_fused || is_one_char(from));
                let is_known = rule.is_some();
                join.keep_spaces_of(rule.as_ref().map_or("", |(_, to)| to));
                spelling.steps.extend(rule.map(|(from, to)| Step::Replace { from, to }));
                is_known
            }
            "Metaspace" => {
                let from = step["replacement"].as_str().unwrap_or("▁").to_owned();
                let is_bare = step["prepend_scheme"] != "never"
                    && step["add_prefix_space"] != Value::Bool(false);
                join.bare_first |= is_bare && !is_fused;
                let to = if is_bare && is_fused { "" } else { " " };
                join.keep_spaces_of(to);
                spelling.steps.push(Step::Replace { from, to: to.into() });
                true
            }
            "Strip" if is_fused => {
                join.strip_start += number("start");
                step["content"] == " " && number("stop") == 0
            }
            "Strip" => {
                let content = step["content"].as_str().filter(|text| is_one_char(text));
                let content = content.and_then(|text| text.chars().next());
                let (start, stop) = (number("start"), number("stop"));
                let rule = content.map(|content| Step::Strip { content, start, stop });
                let is_known = rule.is_some() && start.max(stop) <= MAX_STRIP;
                spelling.steps.extend(rule);
                is_known
            }
            _ => false,
        };
        if !is_known {
            return Err(unknown(path, step));
        }
    }
    Ok((spelling, join))
}

fn replacement(step: &Value) -> Option<(String, String)> {
    let from = step["pattern"]["String"].as_str().filter(|from| !from.is_empty())?;
    Some((from.to_owned(), step["content"].as_str()?.to_owned()))
}

fn is_one_char(text: &str) -> bool {
    text.chars().count() == 1
}

fn kind(decoder: &Value) -> &str {
    decoder.get("type").and_then(Value::as_str).unwrap_or("")
}

fn unknown(path: &Path, step: &Value) -> TextError {
    TextError::Field {
        path: path.to_owned(),
        field: "a step of the decoder".into(),
        value: excerpt(&step.to_string()),
        want: "ByteLevel, ByteFallback, Fuse, Metaspace, Replace of a text (of one character \
               after Fuse), or Strip (of spaces before the text after Fuse)",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What the tokens become one after another, by the decoder with these steps.
    fn decode(steps: &[&Value], tokens: &[&str]) -> Result<String, TextError> {
        let decoder = json!({"type": "Sequence", "decoders": steps});
        let (spelling, join) = parse_decoder(Path::new("tokenizer.json"), &decoder)?;
        let bytes: Vec<u8> =
            tokens.iter().flat_map(|token| spelling.spell((*token).to_owned())).collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let n_spaces = text.len() - text.trim_start_matches(' ').len();
        Ok(text[n_spaces.min(join.strip_start)..].to_owned())
    }

    #[test]
    fn steps_of_a_decoder_come_in_any_order() {
        let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let bytes = json!({"type": "ByteFallback"});
        let fuse = json!({"type": "Fuse"});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let tokens = ["▁▁a", "<0xC3>", "<0xA9>", "▁b", "<0x20>"];
        let decoded = |steps: &[&Value]| decode(steps, &tokens).unwrap();
        // As the library decodes them with the same steps.
        assert_eq!(decoded(&[&replace, &bytes, &fuse, &strip]), " aé b ");
        assert_eq!(decoded(&[&bytes, &replace, &fuse, &strip]), " aé b ");
        assert_eq!(decoded(&[&bytes, &fuse, &replace, &strip]), " aé b ");
        assert_eq!(decoded(&[&bytes, &fuse, &strip, &replace]), "  aé b ");
        assert_eq!(decoded(&[&replace, &strip, &bytes, &fuse]), " aéb ");
        assert_eq!(decoded(&[&replace, &fuse, &bytes]), "  a<0xC3><0xA9> b<0x20>");
    }

    #[test]
    fn a_step_that_needs_the_whole_text_is_refused() {
        let fuse = json!({"type": "Fuse"});
        for step in [
            json!({"type": "Strip", "content": " ", "start": 0, "stop": 1}),
            json!({"type": "Replace", "pattern": {"String": "ab"}, "content": " "}),
            json!({"type": "WordPiece", "prefix": "##"}),
        ] {
            let error = decode(&[&fuse, &step], &[]).unwrap_err().to_string();
            assert!(error.contains("a step of the decoder"), "{error}");
        }
    }
}
