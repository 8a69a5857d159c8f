//! Text to token ids and back, over a model's own vocabulary.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use moeflux_core::gguf::{Metadata, read_metadata};
use moeflux_core::{Dialects, TokenId};

use super::config::{GenerationDefaults, TextConfig};
use super::control_names;
use super::encode::{Encoder, Markup, Origin, to_ids};
use super::error::{TextError, excerpt};
use super::fence::{MarkupText, Rendered};
use super::guard::{Source, catch_panic, guarded};
use super::learned::KnownTemplates;
use super::placeholders::Placeholder;
use super::source::{MetadataText, TextSource};
use super::stream::StreamDecoder;
use super::table::{Special, TokenTable};
use super::tokenizer_file;
use super::vocabulary::VocabularyFiles;
use crate::vocabulary::files::Vocabulary;

/// Encoded once when a tokenizer is opened, because some files make the library panic on any text.
const PROBE: &str = "Hello, World 123!\n\t  a\u{301} é ™ 世界 ﬁ 😀 \u{1}";

/// A tokenizer with the special tokens, templates and defaults of its model.
///
/// A control token is any added token, special or not (`<think>`, `<tool_call>`), but for those
/// of white space alone, with which some vocabularies spell indentation.
#[derive(Debug)]
pub struct Tokenizer {
    pub(super) encoder: Encoder,
    table: Arc<TokenTable>,
    /// What begins every text.
    prefix: Vec<TokenId>,
    eos: Vec<TokenId>,
    config: TextConfig,
    pub(super) templates: KnownTemplates,
    /// The file that the vocabulary was read from.
    file: PathBuf,
}

impl Tokenizer {
    /// Opens the tokenizer of a model. `dialects` are those of the families that may run it, and say
    /// what its files leave to code.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] where there is no vocabulary, else what cannot be used and why.
    pub fn open(source: &TextSource, dialects: &Dialects) -> Result<Tokenizer, TextError> {
        match source {
            TextSource::Directory(dir) => Tokenizer::from_dir(dir, dialects),
            TextSource::Gguf(path) => Tokenizer::from_metadata(&read_metadata(path)?, dialects),
        }
    }

    /// The tokenizer of the model at a path: a directory, or a file of a checkpoint.
    ///
    /// # Errors
    /// As [`TextSource::at`] and [`Tokenizer::open`].
    pub fn at(path: &Path, dialects: &Dialects) -> Result<Tokenizer, TextError> {
        Tokenizer::open(&TextSource::at(path, dialects)?, dialects)
    }

    /// Opens the vocabulary of a model directory
    /// ([`VOCABULARY_FILES`](moeflux_core::checkpoint::companions::VOCABULARY_FILES) says of which files)
    /// together with `tokenizer_config.json`, `generation_config.json`, `config.json` and the
    /// template files, where they exist.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] where there is no vocabulary, else the file that cannot be used
    /// and why.
    pub fn from_dir(dir: &Path, dialects: &Dialects) -> Result<Tokenizer, TextError> {
        let files = VocabularyFiles::find(dir)?;
        Tokenizer::of_files(&files, TextConfig::read(dir)?, dialects)
    }

    /// Opens the vocabulary in the metadata of a GGUF file, with its special tokens, templates and
    /// sampling. Template files next to the file take the place of its templates, unless the folder
    /// holds other models too; where its
    /// vocabulary cannot be read, that of a `tokenizer.json` next to it serves, if it has the
    /// same tokens.
    ///
    /// # Errors
    /// The key that cannot be used and why.
    pub fn from_metadata(metadata: &Metadata, dialects: &Dialects) -> Result<Tokenizer, TextError> {
        let MetadataText { path, vocabulary, config } = MetadataText::read(metadata, dialects)?;
        let mut tokenizer = Tokenizer::assemble(&path, vocabulary, config)?;
        tokenizer.add_known_template(dialects);
        Ok(tokenizer)
    }

    /// Opens a `tokenizer.json` alone: no template, and no end of a text but those that are known by name.
    ///
    /// # Errors
    /// Where the file cannot be used.
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        let files = VocabularyFiles::Json(path.to_owned());
        Self::of_files(&files, TextConfig::default(), &Dialects::default())
    }

    fn of_files(
        files: &VocabularyFiles,
        config: TextConfig,
        dialects: &Dialects,
    ) -> Result<Self, TextError> {
        let vocabulary = files.read(&config.vocabulary, dialects)?;
        let mut tokenizer = Self::assemble(files.path(), vocabulary, config)?;
        tokenizer.add_known_template(dialects);
        Ok(tokenizer)
    }

    /// A tokenizer of a vocabulary, whatever it was made from; `path` is what errors name.
    fn assemble(
        path: &Path,
        vocabulary: Vocabulary,
        mut config: TextConfig,
    ) -> Result<Self, TextError> {
        let Vocabulary { json, named } = vocabulary;
        for (name, text) in named {
            config.named.entry(name.to_owned()).or_insert(text);
        }
        tokenizer_file::check(&json, config.vocabulary.n_logits()).map_err(|bad| {
            TextError::Field {
                path: path.to_owned(),
                field: bad.field,
                value: excerpt(&bad.value),
                want: bad.want,
            }
        })?;
        let (encoder, table) = Encoder::new(path, &json)?;
        let mut tokenizer = Self {
            encoder,
            table: Arc::new(table),
            prefix: Vec::new(),
            eos: Vec::new(),
            config,
            templates: KnownTemplates::default(),
            file: path.to_owned(),
        };
        let listed = tokenizer.listed_ends();
        let refuse = |source: Source| TextError::Tokenizer { path: path.to_owned(), source };
        tokenizer.prefix = guarded(|| tokenizer.find_prefix(&listed)).map_err(refuse)?;
        let control = |text: &str| {
            let id = tokenizer.id_of(text).map(|id| id.0);
            id.filter(|id| tokenizer.encoder.control.contains_key(id))
        };
        tokenizer.eos = control_names::ends(&listed, control).into_iter().map(TokenId).collect();
        // A text that it cannot encode is that text's error.
        catch_panic(|| drop(tokenizer.encoder.inner.encode(PROBE, true)))
            .map_err(|err| refuse(err.into()))?;
        Ok(tokenizer)
    }

    /// Tokens that files name as ends, the one that they call so first.
    fn listed_ends(&self) -> Vec<u32> {
        let named = self.config.named.get("eos_token").and_then(|text| self.id_of(text));
        named.map(|id| id.0).into_iter().chain(self.config.eos_ids.iter().copied()).collect()
    }

    /// Some models come with a program where others have a template. Without a `model_type` their
    /// tokens tell them: later models have those of earlier ones and more.
    fn add_known_template(&mut self, dialects: &Dialects) {
        if !self.config.templates.is_empty() {
            return;
        }
        let model_type = self.config.model_type.as_deref();
        let knows = |token: &&str| self.id_of(token).is_some_and(|id| self.is_control(id));
        let fitting = dialects.templates().filter(|template| {
            let is_of = |name: &str| template.models.contains(&name);
            model_type.is_none_or(is_of) && template.tokens.iter().all(knows)
        });
        let found = fitting.max_by_key(|template| template.tokens.len());
        let added = found.map(|template| ("default".to_owned(), template.source.to_owned()));
        self.config.templates.extend(added);
    }

    /// `add_bos_token` decides; if it is absent, what the post-processor puts before an empty text.
    fn find_prefix(&self, ends: &[u32]) -> Result<Vec<TokenId>, Source> {
        Ok(match self.config.add_bos {
            Some(true) => self.bos_id().into_iter().collect(),
            Some(false) => Vec::new(),
            None => {
                let ids = to_ids(&self.encoder.inner.encode("", true)?);
                if ids.len() == 1 && !ends.contains(&ids[0].0) { ids } else { Vec::new() }
            }
        })
    }

    /// Whether `id` is a control token.
    pub fn is_control(&self, id: TokenId) -> bool {
        self.encoder.is_control_id(id.0)
    }

    /// Token ids of `text`, without a beginning-of-text token. With [`Markup::Literal`] no control
    /// token is among them, whatever the text.
    ///
    /// # Errors
    /// Where the text cannot be encoded.
    pub fn encode(&self, text: &str, markup: Markup) -> Result<Vec<TokenId>, TextError> {
        self.encode_within(text, markup, usize::MAX)
    }

    /// As [`Tokenizer::encode`], for a text that may have at most `max_tokens`. What is longer is
    /// refused as early as that is certain, in little memory.
    ///
    /// # Errors
    /// [`TextError::TooLong`] with the number of tokens, or with one below which the text cannot
    /// come.
    pub fn encode_within(
        &self,
        text: &str,
        markup: Markup,
        max_tokens: usize,
    ) -> Result<Vec<TokenId>, TextError> {
        self.encoder.encode_parts(text, Origin::Markup(markup), max_tokens)
    }

    /// The first `n_tokens` of `text`, or all where there are fewer.
    ///
    /// # Errors
    /// Where the text cannot be encoded.
    pub fn encode_first(
        &self,
        text: &str,
        markup: Markup,
        n_tokens: usize,
    ) -> Result<Vec<TokenId>, TextError> {
        self.encoder.encode_first(text, markup, n_tokens)
    }

    /// A raw prompt, at whatever door it comes in: text in which control tokens count, after the token
    /// that begins every text, which may be written in the text as well.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_within`].
    pub fn encode_prompt(&self, text: &str, max_tokens: usize) -> Result<Vec<TokenId>, TextError> {
        let begin = self.decode(&self.prefix);
        let is_begun = !begin.is_empty() && text.starts_with(&begin);
        let n_before = if is_begun { 0 } else { self.prefix.len() };
        let max_text = max_tokens.saturating_sub(n_before);
        let of_text = self.encode_within(text, Markup::Parse, max_text);
        let of_text = of_text.map_err(|err| err.with_tokens_before(n_before))?;
        self.begun(&self.prefix, of_text, max_tokens)
    }

    /// Tokens of a text behind those that begin it, where it does not begin with them.
    pub(super) fn begun(
        &self,
        begin: &[TokenId],
        of_text: Vec<TokenId>,
        max_tokens: usize,
    ) -> Result<Vec<TokenId>, TextError> {
        if begin.is_empty() || of_text.starts_with(begin) {
            return Ok(of_text);
        }
        let n_tokens = begin.len() + of_text.len();
        if n_tokens > max_tokens {
            return Err(TextError::TooLong { n_tokens, is_exact: true, max_tokens });
        }
        Ok([begin, &of_text].concat())
    }

    /// The tokens that begin every text.
    pub fn prefix(&self) -> &[TokenId] {
        &self.prefix
    }

    /// A rendered conversation. Control tokens come from the template alone: one that would span
    /// a fence is encoded as ordinary text. Where there is none, the ids are those of the whole
    /// text with [`Markup::Parse`]. A GGUF file may ask for a token that begins every text: it stands
    /// in front where the template writes none.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_within`].
    pub fn encode_chat(
        &self,
        rendered: &Rendered,
        max_tokens: usize,
    ) -> Result<Vec<TokenId>, TextError> {
        let origin = match rendered.fences() {
            [] => Origin::Markup(Markup::Parse),
            fences => Origin::Fences(fences),
        };
        let tokens = self.encoder.encode_parts(rendered.text(), origin, max_tokens)?;
        let begin = if self.config.chats_begin { self.prefix.as_slice() } else { &[] };
        self.begun(begin, tokens, max_tokens)
    }

    /// What the user should know of the model's files although nothing failed.
    pub fn warnings(&self) -> &[String] {
        &self.config.warnings
    }

    /// The text of a token that files name, such as `eos_token`.
    pub(super) fn named(&self, name: &str) -> Option<&str> {
        self.config.named.get(name).map(String::as_str)
    }

    /// A number of tokens below which `text` cannot come; zero where nothing is certain.
    pub(super) fn fewest_tokens(&self, text: &str) -> usize {
        self.encoder.fewest_tokens(text)
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
        self.encoder.inner.token_to_id(token).map(TokenId)
    }

    /// Tokens that end an answer, ascending: all that any of the model's files names, and those that
    /// are known by their texts.
    pub fn eos_ids(&self) -> &[TokenId] {
        &self.eos
    }

    /// The token that the model's files call the end, else the first that ends an answer.
    pub fn eos_id(&self) -> Option<TokenId> {
        let named = self.listed_ends().into_iter().map(TokenId).find(|id| self.eos.contains(id));
        named.or_else(|| self.eos.first().copied())
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

    /// The token that stands for a picture.
    pub(super) fn placeholder(&self) -> Option<Placeholder> {
        Placeholder::find(|text| self.id_of(text).filter(|id| self.is_control(*id)))
    }

    /// How many tokens of a prompt stand for rows of pictures.
    pub fn n_placeholders(&self, tokens: &[TokenId]) -> usize {
        self.placeholder().map_or(0, |placeholder| placeholder.count(tokens))
    }

    /// What a template needs to know about control tokens.
    pub fn markup_text(&self) -> MarkupText {
        let control = self.encoder.control.iter();
        let mut tokens: Vec<_> =
            control.map(|(id, text)| (text.clone(), self.is_special(TokenId(*id)))).collect();
        tokens.sort_unstable();
        let normalizer = self.encoder.inner.get_normalizer().cloned();
        MarkupText::with_normalizer(tokens, self.config.named.clone(), normalizer)
    }
}
