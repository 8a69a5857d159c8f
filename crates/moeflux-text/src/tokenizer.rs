//! Text to token ids and back, over a model's own vocabulary.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use moeflux_core::TokenId;
use serde::Deserialize;

use super::config::{GenerationDefaults, TextConfig};
use super::error::{TextError, excerpt};
use super::fence::MarkupText;
use super::guard::catch_panic;
use super::learned::KnownTemplates;
use super::output::DSML;
use super::pieces::Pieces;
use super::pipeline::Pipeline;
use super::stream::StreamDecoder;
use super::table::{Special, TokenTable};
use super::tokenizer_file;
use super::vocabulary::VocabularyFiles;
use crate::vocabulary::files::Vocabulary;

/// Encoded once when a tokenizer is opened, because some files make the library panic on any text.
const PROBE: &str = "Hello, World 123!\n\t  a\u{301} é ™ 世界 ﬁ 😀 \u{1}";

/// What DeepSeek-V3.2 reads.
const DEEPSEEK_V32: &str = include_str!("deepseek_v32.jinja");

/// A tokenizer with the special tokens, templates and defaults of its model.
///
/// A control token is any added token, special or not (`<think>`, `<tool_call>`), but for those
/// of white space alone, with which some vocabularies spell indentation.
#[derive(Debug)]
pub struct Tokenizer {
    pub(super) inner: tokenizers::Tokenizer,
    pub(super) pipeline: Pipeline,
    pub(super) pieces: Pieces,
    table: Arc<TokenTable>,
    pub(super) control: HashMap<u32, String>,
    pub(super) unk: Option<u32>,
    pub(super) prefix: Vec<TokenId>,
    eos: Vec<TokenId>,
    config: TextConfig,
    pub(super) templates: KnownTemplates,
    /// The file that the vocabulary was read from.
    file: PathBuf,
}

type Source = Box<dyn std::error::Error + Send + Sync>;

impl Tokenizer {
    /// Opens a `tokenizer.json` alone: no end-of-text tokens, no template.
    ///
    /// # Errors
    /// Where the file cannot be used.
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        Self::of_files(&VocabularyFiles::Json(path.to_owned()), TextConfig::default())
    }

    pub(super) fn of_files(files: &VocabularyFiles, config: TextConfig) -> Result<Self, TextError> {
        Self::assemble(files.path(), files.read(&config.vocabulary)?, config)
    }

    /// A tokenizer of a vocabulary, whatever it was made from; `path` is what errors name.
    pub(super) fn assemble(
        path: &Path,
        vocabulary: Vocabulary,
        mut config: TextConfig,
    ) -> Result<Self, TextError> {
        let Vocabulary { json, named } = vocabulary;
        for (name, text) in named {
            config.named.entry(name.to_owned()).or_insert(text);
        }
        tokenizer_file::check(&json).map_err(|bad| TextError::Field {
            path: path.to_owned(),
            field: bad.field,
            value: excerpt(&bad.value),
            want: bad.want,
        })?;
        let refuse = |source: Source| TextError::Tokenizer { path: path.to_owned(), source };
        let inner = guarded(|| {
            // From what was checked: of a key that comes twice the text would give another value.
            let mut inner = tokenizers::Tokenizer::deserialize(&json)?;
            inner.with_truncation(None)?;
            inner.with_padding(None);
            Ok(inner)
        });
        let inner = inner.map_err(refuse)?;
        let pipeline = guarded(|| Pipeline::new(&inner)).map_err(refuse)?;
        let table = Arc::new(TokenTable::new(path, &json, &inner)?);
        let pieces = Pieces::new(&json, &inner, &table);
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
            pieces,
            table,
            control,
            unk,
            prefix: Vec::new(),
            eos: Vec::new(),
            config,
            templates: KnownTemplates::default(),
            file: path.to_owned(),
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
        let knows = |token: &&str| self.id_of(token).is_some_and(|id| self.is_control(id));
        let is_v32 = model_type.is_none_or(|model_type| model_type == "deepseek_v32")
            && tokens.iter().all(knows);
        if is_v32 && self.config.templates.is_empty() {
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

    /// Whether `id` is a control token.
    pub fn is_control(&self, id: TokenId) -> bool {
        self.is_control_id(id.0)
    }

    pub(super) fn is_control_id(&self, id: u32) -> bool {
        self.control.contains_key(&id) && self.unk != Some(id)
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

    /// The bytes and flags of all tokens.
    pub(super) fn table(&self) -> Arc<TokenTable> {
        Arc::clone(&self.table)
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

    /// The file that the vocabulary was read from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The file that the chat template comes from, where it has one of its own.
    pub fn template_file(&self) -> Option<&Path> {
        self.config.template_file.as_deref()
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
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, Source>) -> Result<T, Source> {
    catch_panic(work)?
}

pub(super) fn to_ids(encoding: &tokenizers::Encoding) -> Vec<TokenId> {
    encoding.get_ids().iter().copied().map(TokenId).collect()
}
