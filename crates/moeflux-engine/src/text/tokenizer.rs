//! Text to token ids and back, over a model's own vocabulary.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use moeflux_core::TokenId;
use serde::Deserialize;
use tokenizers::{Encoding, Model, Normalizer, OffsetType, PreTokenizedString, Token};

use super::chat::ChatTemplate;
use super::config::{GenerationDefaults, TextConfig};
use super::error::{TextError, excerpt};
use super::fence::{MarkupText, Rendered};
use super::guard::catch_panic;
use super::output::DSML;
use super::pipeline::{Pipeline, Run};
use super::stream::StreamDecoder;
use super::table::{Special, TokenTable};
use super::tokenizer_file;
use super::vocabulary::{Vocabulary, VocabularyFiles};

/// Encoded once when a tokenizer is opened, because some files make the library panic on any text.
const PROBE: &str = "Hello, World 123!\n\t  a\u{301} é ™ 世界 ﬁ 😀 \u{1}";

/// What DeepSeek-V3.2 reads.
const DEEPSEEK_V32: &str = include_str!("deepseek_v32.jinja");

/// Whether control tokens in a text count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Markup {
    /// `<|im_end|>` is a control token.
    Parse,
    /// `<|im_end|>` is ten characters. For text that somebody else wrote.
    Literal,
}

/// A tokenizer with the special tokens, templates and defaults of its model.
///
/// A control token is any added token, special or not (`<think>`, `<tool_call>`), but for those
/// of white space alone, with which some vocabularies spell indentation.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pipeline: Pipeline,
    table: Arc<TokenTable>,
    control: HashMap<u32, String>,
    unk: Option<u32>,
    prefix: Vec<TokenId>,
    eos: Vec<TokenId>,
    config: TextConfig,
}

type Source = Box<dyn std::error::Error + Send + Sync>;
/// A part of the text that is one added token.
type Kept = (Range<usize>, u32);

impl Tokenizer {
    /// Opens the vocabulary of a model directory ([`VOCABULARY_FILES`](super::VOCABULARY_FILES)
    /// says of which files) together with `tokenizer_config.json`, `generation_config.json`,
    /// `config.json` and the template files, where they exist.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] where there is no vocabulary, else the file that cannot be used
    /// and why.
    pub fn from_dir(dir: &Path) -> Result<Self, TextError> {
        let files = VocabularyFiles::find(dir)?;
        Self::open(&files, TextConfig::read(dir)?)
    }

    /// Opens a `tokenizer.json` alone: no end-of-text tokens, no template.
    ///
    /// # Errors
    /// Where the file cannot be used.
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        Self::open(&VocabularyFiles::Json(path.to_owned()), TextConfig::default())
    }

    /// The names of the files that [`Tokenizer::from_dir`] reads the vocabulary from.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] where there are none.
    pub fn files_of(dir: &Path) -> Result<String, TextError> {
        VocabularyFiles::find(dir).map(|files| files.name())
    }

    fn open(files: &VocabularyFiles, mut config: TextConfig) -> Result<Self, TextError> {
        let path = files.path().to_owned();
        let Vocabulary { json, named } = files.read(&config.vocabulary)?;
        for (name, text) in named {
            config.named.entry(name.to_owned()).or_insert(text);
        }
        tokenizer_file::check(&json).map_err(|bad| TextError::Field {
            path: path.clone(),
            field: bad.field,
            value: excerpt(&bad.value),
            want: bad.want,
        })?;
        let refuse = |source: Source| TextError::Tokenizer { path: path.clone(), source };
        let inner = guarded(|| {
            // From what was checked: of a key that comes twice the text would give another value.
            let mut inner = tokenizers::Tokenizer::deserialize(&json)?;
            inner.with_truncation(None)?;
            inner.with_padding(None);
            Ok(inner)
        });
        let inner = inner.map_err(refuse)?;
        let pipeline = guarded(|| Pipeline::new(&inner)).map_err(refuse)?;
        let table = Arc::new(TokenTable::new(&path, &json, &inner)?);
        let control = inner
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, t)| t.special || !t.content.trim().is_empty())
            .map(|(id, t)| (id, t.content))
            .collect();
        let unk_text = json["model"]["unk_token"].as_str();
        let unk_id = json["model"]["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok());
        let unk = unk_text.and_then(|text| inner.token_to_id(text)).or(unk_id);
        let mut tokenizer = Self {
            inner,
            pipeline,
            table,
            control,
            unk,
            prefix: Vec::new(),
            eos: Vec::new(),
            config,
        };
        tokenizer.eos = tokenizer.find_eos();
        tokenizer.prefix = guarded(|| tokenizer.find_prefix()).map_err(refuse)?;
        // A text that it cannot encode is that text's error.
        catch_panic(|| drop(tokenizer.inner.encode(PROBE, true)))
            .map_err(|err| refuse(err.into()))?;
        tokenizer.add_known_template();
        Ok(tokenizer)
    }

    fn find_eos(&self) -> Vec<TokenId> {
        let named = self.config.named.get("eos_token").and_then(|text| self.id_of(text));
        let mut eos: Vec<_> = self.config.eos_ids.iter().copied().map(TokenId).collect();
        eos.extend(named);
        eos.sort_unstable();
        eos.dedup();
        eos
    }

    /// DeepSeek-V3.2 comes with a Python script where others have a template.
    fn add_known_template(&mut self) {
        let model_type = self.config.model_type.as_deref();
        let tokens = [DSML, "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"];
        let knows = |it: &&str| self.id_of(it).is_some_and(|it| self.is_control(it));
        let is_it = model_type.is_none_or(|it| it == "deepseek_v32") && tokens.iter().all(knows);
        if is_it && self.config.templates.is_empty() {
            self.config.templates.insert("default".into(), DEEPSEEK_V32.into());
        }
    }

    /// `add_bos_token` decides; if it is absent, what the post-processor puts before an empty text.
    fn find_prefix(&self) -> Result<Vec<TokenId>, Source> {
        Ok(match self.config.add_bos {
            Some(true) => self.bos_id().into_iter().collect(),
            Some(false) => Vec::new(),
            None => {
                let ids = to_ids(&self.inner.encode("", true)?);
                if ids.len() == 1 && !self.eos.contains(&ids[0]) { ids } else { Vec::new() }
            }
        })
    }

    /// Token ids of `text`, without a beginning-of-text token. With [`Markup::Literal`] no control
    /// token is among them, whatever the text.
    pub fn encode(&self, text: &str, markup: Markup) -> Result<Vec<TokenId>, TextError> {
        let refuse = |source| TextError::Encode { n_bytes: text.len(), source };
        guarded(|| self.encode_unguarded(text, markup)).map_err(refuse)
    }

    fn encode_unguarded(&self, text: &str, markup: Markup) -> Result<Vec<TokenId>, Source> {
        let run = self.pipeline.start(text.len());
        let ids = to_ids(&self.parse(text, &run, OffsetType::None)?);
        if markup == Markup::Parse || !ids.iter().any(|id| self.is_control_id(id.0)) {
            return Ok(ids);
        }
        let encoding = self.parse(text, &run, OffsetType::Byte)?;
        let mut kept = self.added_tokens(&encoding, 0);
        kept.retain(|(_, id)| !self.control.contains_key(id));
        self.encode_around(text, &kept, &run)
    }

    /// A raw prompt: what [`Tokenizer::encode`] gives behind the tokens that begin every text.
    pub fn encode_prompt(&self, text: &str, markup: Markup) -> Result<Vec<TokenId>, TextError> {
        let mut ids = self.prefix.clone();
        ids.extend(self.encode(text, markup)?);
        Ok(ids)
    }

    /// A rendered conversation. Control tokens come from the template alone: one that would span
    /// a fence is encoded as ordinary text. Where there is none, the ids are those of the whole
    /// text with [`Markup::Parse`].
    pub fn encode_chat(&self, rendered: &Rendered) -> Result<Vec<TokenId>, TextError> {
        let (text, fences) = (rendered.text(), rendered.fences());
        let refuse = |source| TextError::Encode { n_bytes: text.len(), source };
        if fences.is_empty() {
            return self.encode(text, Markup::Parse);
        }
        guarded(|| self.encode_fenced(text, fences)).map_err(refuse)
    }

    fn encode_fenced(&self, text: &str, fences: &[usize]) -> Result<Vec<TokenId>, Source> {
        let run = self.pipeline.start(text.len());
        let encoding = self.parse(text, &run, OffsetType::Byte)?;
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
            let part = self.parse(&text[start..end], &run, OffsetType::Byte)?;
            kept.extend(self.added_tokens(&part, start));
            start = end;
        }
        kept.retain(|(at, _)| !is_fenced(text, fences, at.clone()));
        self.encode_around(text, &kept, &run)
    }

    /// Whether `id` is a control token.
    pub fn is_control(&self, id: TokenId) -> bool {
        self.is_control_id(id.0)
    }

    fn is_control_id(&self, id: u32) -> bool {
        self.control.contains_key(&id) && self.unk != Some(id)
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
        text: &str,
        kept: &[Kept],
        run: &Run<'_>,
    ) -> Result<Vec<TokenId>, Source> {
        let encoding = self.encode_plainly(text, kept, run)?;
        let mut ids = Vec::with_capacity(encoding.len());
        for (&id, &(from, to)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
            let idx = kept.binary_search_by_key(&from, |(at, _)| at.start);
            if !self.is_control_id(id) || idx.is_ok_and(|idx| kept[idx] == (from..to, id)) {
                ids.push(TokenId(id));
                continue;
            }
            for c in text.get(from..to).unwrap_or_default().chars() {
                let one = self.encode_plainly(c.encode_utf8(&mut [0; 4]), &[], run)?;
                ids.extend(to_ids(&one).into_iter().filter(|id| !self.is_control_id(id.0)));
            }
        }
        Ok(ids)
    }

    /// What the library does without its post-processor, which would trim the offsets.
    fn parse(&self, text: &str, run: &Run<'_>, offsets: OffsetType) -> Result<Encoding, Source> {
        let added = self.inner.get_added_vocabulary();
        self.finish(added.extract_and_normalize(Some(run), text), run, offsets)
    }

    /// The pipeline of the library with `kept` in place of its own search for added tokens.
    fn encode_plainly(&self, text: &str, kept: &[Kept], run: &Run<'_>) -> Result<Encoding, Source> {
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

    /// The text of `ids`, special tokens included. Ids outside of the vocabulary add nothing;
    /// bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[TokenId]) -> String {
        let mut joiner = self.table.joiner();
        let mut bytes = Vec::new();
        for &id in ids {
            joiner.push(&self.table, id, Special::Show, &mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Decodes token by token, with or without special tokens.
    pub fn stream(&self, special: Special) -> StreamDecoder {
        StreamDecoder::new(Arc::clone(&self.table), special)
    }

    /// The bytes that a token adds to a text, empty for an id outside of the vocabulary.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.table.bytes(id)
    }

    /// One more than the largest id. A model may have more logits than this.
    pub fn vocab_size(&self) -> usize {
        self.table.vocab_size()
    }

    /// The id whose text in the vocabulary is `token`.
    pub fn id_of(&self, token: &str) -> Option<TokenId> {
        self.inner.token_to_id(token).map(TokenId)
    }

    /// Tokens that end an answer, ascending: all that any of the model's files names.
    pub fn eos_ids(&self) -> &[TokenId] {
        &self.eos
    }

    /// The token that begins a text, if the model has one.
    pub fn bos_id(&self) -> Option<TokenId> {
        let named = self.config.named.get("bos_token").and_then(|text| self.id_of(text));
        named.or(self.config.bos_id.map(TokenId))
    }

    /// Whether `id` is flagged special, as the end of a turn is.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.table.is_special(id)
    }

    /// Sampling that the makers of the model recommend.
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        &self.config.sampling
    }

    /// The model's chat template: `tool_use` if there is one and it is asked for, else `default`,
    /// else the only one. `None` for a model without a template, or with several of other names.
    pub fn chat_template(&self, with_tools: bool) -> Option<Result<ChatTemplate, TextError>> {
        let source = self.chat_template_source(with_tools)?;
        Some(ChatTemplate::new(source, self.markup_text()))
    }

    /// The text of that template.
    pub fn chat_template_source(&self, with_tools: bool) -> Option<&str> {
        let templates = &self.config.templates;
        let for_tools = templates.get("tool_use").filter(|_| with_tools);
        let only = templates.values().next().filter(|_| templates.len() == 1);
        for_tools.or_else(|| templates.get("default")).or(only).map(String::as_str)
    }

    /// The names of the model's chat templates.
    pub fn chat_template_names(&self) -> impl Iterator<Item = &str> {
        self.config.templates.keys().map(String::as_str)
    }

    /// What a template needs to know about control tokens.
    pub fn markup_text(&self) -> MarkupText {
        let control = self.control.iter();
        let mut tokens: Vec<_> =
            control.map(|(id, text)| (text.clone(), self.is_special(TokenId(*id)))).collect();
        tokens.sort_unstable();
        let normalizer = self.inner.get_normalizer().cloned();
        MarkupText::with_normalizer(tokens, self.config.named.clone(), normalizer)
    }
}

/// The work of the library, with its panics as errors.
fn guarded<T>(work: impl FnOnce() -> Result<T, Source>) -> Result<T, Source> {
    catch_panic(work)?
}

fn to_ids(encoding: &Encoding) -> Vec<TokenId> {
    encoding.get_ids().iter().copied().map(TokenId).collect()
}

fn original(at: Range<usize>) -> tokenizers::normalizer::Range<Range<usize>> {
    tokenizers::normalizer::Range::Original(at)
}

/// Whether a fence stands inside `at`, not counting the white space that some added tokens
/// swallow; for a token of one character, whether one stands behind it.
fn is_fenced(text: &str, fences: &[usize], at: Range<usize>) -> bool {
    let part = text.get(at.clone()).unwrap_or_default();
    let core = part.trim();
    let start = at.start + part.len() - part.trim_start().len();
    let reach = start + core.len() + usize::from(core.chars().count() == 1);
    let first = fences.partition_point(|&fence| fence <= start);
    fences.get(first).is_some_and(|&fence| fence < reach)
}
