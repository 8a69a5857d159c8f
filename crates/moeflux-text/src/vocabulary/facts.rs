//! What `tokenizer_config.json`, `added_tokens.json` and `config.json` say about a vocabulary.

use std::collections::BTreeMap;

use moeflux_core::checkpoint::language_model;
use serde_json::{Map, Value};

/// Facts that vocabulary files leave to the files next to them.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct VocabularyFacts {
    /// The tokenizer's class, without `Fast` at its end.
    pub(super) class: Option<String>,
    /// The module of a class that is published with the model.
    pub(super) module: Option<String>,
    /// What `config.json` calls the architecture, and its text model.
    pub(super) model_types: Vec<String>,
    /// Tokens that the model has logits for.
    pub(super) n_logits: Option<u32>,
    /// Added tokens by id.
    pub(super) added: BTreeMap<u32, AddedToken>,
    /// Texts of tokens that are special, whatever their ids.
    pub(super) special: Vec<String>,
    pub(super) legacy: Option<bool>,
    pub(super) add_prefix_space: Option<bool>,
}

/// An entry of `added_tokens_decoder`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) content: String,
    pub(super) special: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    pub(super) single_word: bool,
    pub(super) normalized: bool,
}

impl AddedToken {
    /// A token that is taken from texts as it is, before anything else is done with them.
    pub(super) fn plain(content: String, special: bool) -> Self {
        Self { content, special, ..Self::default() }
    }
}

impl VocabularyFacts {
    /// Adds what `tokenizer_config.json` says.
    ///
    /// # Errors
    /// The field that makes no sense, and its value.
    pub(in super::super) fn add_tokenizer_config(
        &mut self,
        fields: &Map<String, Value>,
    ) -> Result<(), (&'static str, Value)> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let class = text(fields.get("tokenizer_class"));
        self.class = class.map(|class| class.strip_suffix("Fast").unwrap_or(&class).to_owned());
        let auto = fields.get("auto_map").and_then(|map| map.get("AutoTokenizer"));
        let auto = auto.and_then(|one| one.as_str().or_else(|| one.get(0)?.as_str()));
        // `repository--module.Class`
        let name = auto.map(|name| name.rsplit("--").next().unwrap_or(name));
        self.module = name.and_then(|name| name.split('.').next()).map(str::to_owned);
        self.legacy = fields.get("legacy").and_then(Value::as_bool);
        self.add_prefix_space = fields.get("add_prefix_space").and_then(Value::as_bool);
        if let Some(added) = fields.get("added_tokens_decoder").and_then(Value::as_object) {
            for (id, token) in added {
                let entry = id.parse().ok().zip(added_token(token));
                let (id, token) = entry.ok_or_else(|| {
                    let mut bad = Map::new();
                    bad.insert(id.clone(), token.clone());
                    ("added_tokens_decoder", Value::Object(bad))
                })?;
                self.added.insert(id, token);
            }
        }
        let more = ["additional_special_tokens", "extra_special_tokens"];
        let lists = more.iter().filter_map(|name| fields.get(*name)?.as_array()).flatten();
        self.special.extend(lists.filter_map(content));
        Ok(())
    }

    /// Adds what `added_tokens.json` says: ids by text.
    pub(in super::super) fn add_added_tokens(&mut self, fields: &Map<String, Value>) {
        for (content, id) in fields {
            let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) else { continue };
            let token =
                AddedToken { normalized: true, ..AddedToken::plain(content.clone(), false) };
            self.added.entry(id).or_insert(token);
        }
    }

    /// Adds what `config.json` says.
    pub(in super::super) fn add_config(&mut self, fields: &Map<String, Value>) {
        let inner = language_model(fields);
        for fields in [Some(fields), inner].into_iter().flatten() {
            let model_type = fields.get("model_type").and_then(Value::as_str);
            self.model_types.extend(model_type.map(str::to_owned));
            let size = fields.get("vocab_size").and_then(Value::as_u64);
            self.n_logits = size.and_then(|size| u32::try_from(size).ok()).or(self.n_logits);
        }
    }

    /// Adds texts of tokens that are special: `eos_token` and the like.
    pub(in super::super) fn add_special<'a>(&mut self, texts: impl Iterator<Item = &'a String>) {
        self.special.extend(texts.cloned());
    }

    /// Tokens that the model has logits for, where a file says so.
    pub(in super::super) fn n_logits(&self) -> Option<u32> {
        self.n_logits
    }

    pub(super) fn is_special(&self, text: &str) -> bool {
        self.special.iter().any(|special| special == text)
    }
}

/// A text, or an object with `content`.
fn content(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

fn added_token(value: &Value) -> Option<AddedToken> {
    let flag = |name: &str| value.get(name).and_then(Value::as_bool);
    let special = flag("special").unwrap_or(false);
    let content = content(value).filter(|text| !text.is_empty())?;
    Some(AddedToken {
        content,
        special,
        lstrip: flag("lstrip").unwrap_or(false),
        rstrip: flag("rstrip").unwrap_or(false),
        single_word: flag("single_word").unwrap_or(false),
        normalized: flag("normalized").unwrap_or(!special),
    })
}
