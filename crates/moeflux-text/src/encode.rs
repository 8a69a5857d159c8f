//! Text to token ids, part by part.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use moeflux_core::TokenId;
use serde_json::Value;
use tokenizers::{Encoding, Model, Normalizer, OffsetType, PreTokenizedString, Token};

use super::error::TextError;
use super::guard::{Source, guarded};
use super::library::of_json;
use super::pieces::Pieces;
use super::pipeline::{Pipeline, Run};
use super::table::TokenTable;

/// Texts up to this length are encoded whatever they hold, so that their number of tokens is known.
const COUNTED_BYTES: usize = 256 << 10;

/// Tokens beyond the limit that are counted before a text is given up.
const COUNTED_TOKENS: usize = 65_536;

/// Longest part, where a text cannot be taken apart and the number of tokens is limited. Encoding
/// takes about 150 bytes of memory for each byte of a part.
const MAX_PART_BYTES: usize = 512 << 10;

/// Whether control tokens in a text count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Markup {
    /// `<|im_end|>` is a control token.
    Parse,
    /// `<|im_end|>` is ten characters. For text from outside.
    Literal,
}

/// A part of the text that is one added token.
type Kept = (Range<usize>, u32);

/// Where control tokens in a text may come from.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    Markup(Markup),
    /// From what does not reach over these places.
    Fences(&'a [usize]),
}

/// A part of a text.
#[derive(Clone, Copy)]
struct Part<'a> {
    text: &'a str,
    /// It goes on where another part ended.
    continues: bool,
}

/// What turns text into ids.
#[derive(Debug)]
pub(super) struct Encoder {
    pub(super) inner: tokenizers::Tokenizer,
    pipeline: Pipeline,
    pub(super) pieces: Pieces,
    /// The control tokens, by id.
    pub(super) control: HashMap<u32, String>,
    /// What stands for text that the vocabulary cannot spell.
    unk: Option<u32>,
}

impl Encoder {
    /// That of a description that was checked, and its tokens; `path` is what errors name.
    pub(super) fn new(path: &Path, json: &Value) -> Result<(Self, TokenTable), TextError> {
        let refuse = |source: Source| TextError::Tokenizer { path: path.to_owned(), source };
        let inner = guarded(|| {
            let mut inner = of_json(json)?;
            inner.with_truncation(None)?;
            inner.with_padding(None);
            Ok(inner)
        });
        let inner = inner.map_err(refuse)?;
        let pipeline = guarded(|| Pipeline::new(&inner)).map_err(refuse)?;
        let table = TokenTable::new(path, json, &inner)?;
        let pieces = Pieces::new(json, &inner, &table);
        let control = inner
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, t)| t.special || !t.content.trim().is_empty())
            .map(|(id, t)| (id, t.content))
            .collect();
        let unk_text = json["model"]["unk_token"].as_str();
        let unk_id = json["model"]["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok());
        let unk = unk_text.and_then(|text| inner.token_to_id(text)).or(unk_id);
        Ok((Self { inner, pipeline, pieces, control, unk }, table))
    }

    pub(super) fn is_control_id(&self, id: u32) -> bool {
        self.control.contains_key(&id) && self.unk != Some(id)
    }

    /// A number of tokens below which `text` cannot come; zero where nothing is certain.
    pub(super) fn fewest_tokens(&self, text: &str) -> usize {
        self.pieces.fewest_tokens(text)
    }

    /// The first `n_tokens` of `text`, or all where there are fewer.
    pub(super) fn encode_first(
        &self,
        text: &str,
        markup: Markup,
        n_tokens: usize,
    ) -> Result<Vec<TokenId>, TextError> {
        let mut ids = Vec::new();
        self.each_part(text, Origin::Markup(markup), Some(n_tokens), |part, _| {
            ids.extend(part);
            ids.len() < n_tokens
        })?;
        ids.truncate(n_tokens);
        Ok(ids)
    }

    /// The ids of a text that may have at most `max_tokens`.
    pub(super) fn encode_parts(
        &self,
        text: &str,
        origin: Origin<'_>,
        max_tokens: usize,
    ) -> Result<Vec<TokenId>, TextError> {
        let is_limited = max_tokens < usize::MAX;
        if is_limited && text.len() > COUNTED_BYTES {
            let n_tokens = self.pieces.fewest_tokens(text);
            if n_tokens > max_tokens {
                return Err(TextError::TooLong { n_tokens, is_exact: false, max_tokens });
            }
        }
        let max_counted = max_tokens.saturating_add(COUNTED_TOKENS.max(max_tokens / 2));
        let mut ids = Vec::new();
        let mut n_tokens = 0;
        let mut is_exact = true;
        self.each_part(text, origin, is_limited.then_some(max_tokens), |part, is_last| {
            n_tokens += part.len();
            if n_tokens > max_tokens {
                ids = Vec::new()
            } else {
                ids.extend(part)
            }
            is_exact = is_last;
            n_tokens <= max_counted
        })?;
        if n_tokens > max_tokens {
            Err(TextError::TooLong { n_tokens, is_exact, max_tokens })
        } else {
            Ok(ids)
        }
    }

    /// Gives the ids of each part of a text and whether it is the last, until `take` wants no more.
    fn each_part(
        &self,
        text: &str,
        origin: Origin<'_>,
        max_tokens: Option<usize>,
        mut take: impl FnMut(Vec<TokenId>, bool) -> bool,
    ) -> Result<(), TextError> {
        let refuse = |source| TextError::Encode { n_bytes: text.len(), source };
        let run = self.pipeline.start(text.len());
        let mut start = 0;
        for end in self.pieces.ends(text) {
            let max_bytes = MAX_PART_BYTES.max(max_tokens.unwrap_or(usize::MAX).saturating_mul(4));
            if end - start > max_bytes {
                return Err(TextError::Unbroken { n_bytes: end - start, max_bytes });
            }
            let part = Part { text: &text[start..end], continues: start > 0 };
            let ids = match origin {
                Origin::Markup(markup) => guarded(|| self.encode_part(part, markup, &run)),
                Origin::Fences(fences) => {
                    let first = fences.partition_point(|fence| *fence <= start);
                    let last = fences.partition_point(|fence| *fence < end);
                    let inside: Vec<_> =
                        fences[first..last.max(first)].iter().map(|fence| fence - start).collect();
                    guarded(|| self.encode_fenced(part, &inside, &run))
                }
            };
            if !take(ids.map_err(refuse)?, end == text.len()) {
                break;
            }
            start = end;
        }
        Ok(())
    }

    /// A text as one part, between fences where these are given.
    #[cfg(test)]
    pub(super) fn encode_at_once(
        &self,
        text: &str,
        markup: Markup,
        fences: &[usize],
    ) -> Vec<TokenId> {
        let run = self.pipeline.start(text.len());
        let part = Part { text, continues: false };
        let ids = match fences {
            [] => self.encode_part(part, markup, &run),
            fences => self.encode_fenced(part, fences, &run),
        };
        ids.unwrap()
    }

    fn encode_part(
        &self,
        part: Part<'_>,
        markup: Markup,
        run: &Run<'_>,
    ) -> Result<Vec<TokenId>, Source> {
        let ids = to_ids(&self.parse(part, run, OffsetType::None)?);
        if markup == Markup::Parse || !ids.iter().any(|id| self.is_control_id(id.0)) {
            return Ok(ids);
        }
        let encoding = self.parse(part, run, OffsetType::Byte)?;
        let mut kept = self.added_tokens(&encoding, 0);
        kept.retain(|(_, id)| !self.control.contains_key(id));
        self.encode_around(part, &kept, run)
    }

    fn encode_fenced(
        &self,
        part: Part<'_>,
        fences: &[usize],
        run: &Run<'_>,
    ) -> Result<Vec<TokenId>, Source> {
        let text = part.text;
        let encoding = self.parse(part, run, OffsetType::Byte)?;
        let is_safe = encoding
            .get_ids()
            .iter()
            .zip(encoding.get_offsets())
            .all(|(&id, &at)| !self.is_control_id(id) || !is_fenced(text, fences, at.0..at.1));
        if is_safe {
            return Ok(to_ids(&encoding));
        }
        let mut kept = Vec::new();
        let mut start = 0;
        for end in fences.iter().copied().chain([text.len()]) {
            let between = Part { text: &text[start..end], continues: false };
            let found = self.parse(between, run, OffsetType::Byte)?;
            kept.extend(self.added_tokens(&found, start));
            start = end;
        }
        kept.retain(|(at, _)| !is_fenced(text, fences, at.clone()));
        self.encode_around(part, &kept, run)
    }

    /// Added tokens of an encoding of text that begins at byte `start`.
    fn added_tokens(&self, encoding: &Encoding, start: usize) -> Vec<Kept> {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let all = encoding.get_ids().iter().zip(encoding.get_offsets());
        all.filter(|(id, at)| added.contains_key(id) && self.unk != Some(**id) && at.0 < at.1)
            .map(|(&id, &(from, to))| (start + from..start + to, id))
            .collect()
    }

    /// Encodes `text` as if `kept` were its only added tokens. Should the model itself know the
    /// text of a control token, that part is encoded character by character.
    fn encode_around(
        &self,
        part: Part<'_>,
        kept: &[Kept],
        run: &Run<'_>,
    ) -> Result<Vec<TokenId>, Source> {
        let encoding = self.encode_plainly(part, kept, run)?;
        let mut ids = Vec::with_capacity(encoding.len());
        for (&id, &(from, to)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
            let idx = kept.binary_search_by_key(&from, |(at, _)| at.start);
            if !self.is_control_id(id) || idx.is_ok_and(|idx| kept[idx] == (from..to, id)) {
                ids.push(TokenId(id));
                continue;
            }
            for c in part.text.get(from..to).unwrap_or_default().chars() {
                let mut utf8 = [0; 4];
                let one = Part { text: c.encode_utf8(&mut utf8), continues: false };
                let one = self.encode_plainly(one, &[], run)?;
                ids.extend(to_ids(&one).into_iter().filter(|id| !self.is_control_id(id.0)));
            }
        }
        Ok(ids)
    }

    /// What the library does without its post-processor, which would trim the offsets.
    fn parse(
        &self,
        part: Part<'_>,
        run: &Run<'_>,
        offsets: OffsetType,
    ) -> Result<Encoding, Source> {
        run.begin(part.continues);
        let added = self.inner.get_added_vocabulary();
        self.finish(added.extract_and_normalize(Some(run), part.text), run, offsets)
    }

    /// The pipeline of the library with `kept` in place of its own search for added tokens.
    fn encode_plainly(
        &self,
        part: Part<'_>,
        kept: &[Kept],
        run: &Run<'_>,
    ) -> Result<Encoding, Source> {
        let text = part.text;
        let mut parts = PreTokenizedString::from(text);
        parts.split(|_, whole| {
            let mut pieces = Vec::with_capacity(kept.len() * 2 + 1);
            let mut start = 0;
            let end = [(text.len()..text.len(), None)];
            for (at, id) in kept.iter().map(|(at, id)| (at.clone(), Some(*id))).chain(end) {
                if start < at.start {
                    pieces.extend(whole.slice(original(start..at.start)).map(|s| (s, None)));
                }
                let token = id.zip(whole.slice(original(at.clone()))).map(|(id, slice)| {
                    let token = Token::new(id, slice.get().to_owned(), (0, slice.get().len()));
                    (slice, Some(vec![token]))
                });
                pieces.extend(token);
                start = at.end;
            }
            Ok(pieces)
        })?;
        run.begin(part.continues);
        parts.normalize(|part| run.normalize(part))?;
        self.finish(parts, run, OffsetType::Byte)
    }

    fn finish(
        &self,
        mut parts: PreTokenizedString,
        run: &Run<'_>,
        offsets: OffsetType,
    ) -> Result<Encoding, Source> {
        run.pre_tokenize(&mut parts)?;
        self.inner.get_model().tokenize_in_pretokenized(&mut parts, None)?;
        parts.into_encoding(None, 0, offsets)
    }
}

fn original(at: Range<usize>) -> tokenizers::normalizer::Range<Range<usize>> {
    tokenizers::normalizer::Range::Original(at)
}

/// Whether a fence stands inside `at`, not counting the white space that some added tokens
/// swallow; for a token of one character, whether one stands right after it.
fn is_fenced(text: &str, fences: &[usize], at: Range<usize>) -> bool {
    let part = text.get(at.clone()).unwrap_or_default();
    let core = part.trim();
    let start = at.start + part.len() - part.trim_start().len();
    let reach = start + core.len() + usize::from(core.chars().count() == 1);
    let first = fences.partition_point(|&fence| fence <= start);
    fences.get(first).is_some_and(|&fence| fence < reach)
}

pub(super) fn to_ids(encoding: &tokenizers::Encoding) -> Vec<TokenId> {
    encoding.get_ids().iter().copied().map(TokenId).collect()
}
