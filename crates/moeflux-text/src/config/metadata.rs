//! Special tokens, templates and sampling in the metadata of a GGUF file.

use std::collections::BTreeMap;
use std::path::Path;

use moeflux_core::Dialects;
use moeflux_core::gguf::{Metadata, Value, is_only_model};

use super::{GenerationDefaults, MAX_TEMPLATE_BYTES, MAX_TEMPLATES, TextConfig, template_files};
use super::{INFILL_NAMES, template_paths};
use crate::error::TextError;
use crate::vocabulary::files::damaged;
use crate::vocabulary::gguf::{Kind, key, listed_ends};

/// Names that templates know tokens by, and the keys of their numbers. "seperator" is how the key
/// is spelled.
const NAMED: [(&str, &str); 6] = [
    ("bos_token", key::BOS),
    ("eos_token", key::EOS),
    ("unk_token", key::UNKNOWN),
    ("sep_token", "tokenizer.ggml.seperator_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];

/// Keys of further tokens that end an answer.
const ENDS: [&str; 5] = [
    key::EOT,
    key::EOM,
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

const TEMPLATE: &str = "tokenizer.chat_template";
const ARCHITECTURE: &str = "general.architecture";

/// What some converters write for a token that a model does not have: -1.
const NO_TOKEN: i128 = u32::MAX as i128;

/// Keys that are warned of at most.
const MAX_WARNINGS: usize = 20;

impl TextConfig {
    /// Reads what the metadata says. Template files next to the file (`chat_template.jinja`, the
    /// folder `additional_chat_templates`) take the place of its templates, which are those of the
    /// day of its conversion, unless the folder holds other models too.
    pub(in super::super) fn of_metadata(
        metadata: &Metadata,
        dialects: &Dialects,
    ) -> Result<Self, TextError> {
        let mut config = Self::default();
        let tokens = metadata.texts(key::TOKENS)?.unwrap_or_default();
        let mut special = SpecialIds { metadata, n_tokens: tokens.len(), warnings: Vec::new() };
        let text = |id: u32| tokens.get(id as usize).filter(|text| !text.is_empty()).cloned();
        for (name, key) in NAMED {
            let Some(id) = special.one(key)? else { continue };
            config.named.extend(text(id).map(|text| (name.to_owned(), text)));
            match key {
                key::BOS => config.bos_id = Some(id),
                key::EOS => config.eos_ids.push(id),
                _ => {}
            }
        }
        for key in ENDS {
            config.eos_ids.extend(special.one(key)?);
        }
        let listed = listed_ends(metadata)?;
        let listed = listed.into_iter().filter_map(|id| special.checked(key::EOS_LIST, id.into()));
        config.eos_ids.extend(listed);
        let marks = [key::INFILL_PREFIX, key::INFILL_SUFFIX, key::INFILL_MIDDLE];
        for (name, keys) in INFILL_NAMES.iter().zip(marks) {
            for key in keys {
                let Some(text) = special.one(key)?.and_then(text) else { continue };
                config.named.entry((*name).to_owned()).or_insert(text);
            }
        }
        config.warnings = special.warnings;
        config.add_bos = metadata.bool(key::ADD_BOS)?.or_else(|| adds_bos(metadata, dialects));
        config.chats_begin = config.add_bos == Some(true);
        config.model_type = metadata.text(ARCHITECTURE)?.map(str::to_owned);
        config.sampling = sampling(metadata)?;
        config.read_metadata_templates(metadata)?;
        Ok(config)
    }

    fn read_metadata_templates(&mut self, metadata: &Metadata) -> Result<(), TextError> {
        let path = metadata.path();
        let own = templates(metadata)?;
        let dir = path.parent().unwrap_or(Path::new(""));
        // Templates of a folder with several models are those of one of them at most.
        if !own.is_empty() && !is_only_model(path) {
            let left = template_paths(dir)?.into_iter().find(|(_, path)| path.is_file());
            self.warnings.extend(left.map(|(_, left)| {
                let left = left.display();
                format!("{left} is left aside, because its folder holds other models too")
            }));
        } else {
            self.templates = template_files(dir)?;
            let mut paths = template_paths(dir)?.into_iter();
            let found = paths.find(|(name, _)| self.templates.contains_key(name));
            self.template_file = found.map(|(_, path)| path);
        }
        if self.templates.is_empty() {
            self.template_file = (!own.is_empty()).then(|| path.to_owned());
            self.templates = own;
        }
        Ok(())
    }
}

/// Reads numbers of tokens.
struct SpecialIds<'a> {
    metadata: &'a Metadata,
    /// 0 where the file has no list of tokens.
    n_tokens: usize,
    /// Numbers that no token has: the model may do without them.
    warnings: Vec<String>,
}

impl SpecialIds<'_> {
    /// The token of a key; `None` where the file has no such key, or no such token.
    fn one(&mut self, key: &str) -> Result<Option<u32>, TextError> {
        if self.metadata.get(key) == Some(&Value::Integer(-1)) {
            return Ok(None);
        }
        let number = self.metadata.number(key)?;
        Ok(number.and_then(|number| self.checked(key, number as i128)))
    }

    /// A number, if a token has it.
    fn checked(&mut self, key: &str, number: i128) -> Option<u32> {
        if [-1, NO_TOKEN].contains(&number) {
            return None;
        }
        let id = u32::try_from(number).ok();
        let known = id.filter(|id| self.n_tokens == 0 || (*id as usize) < self.n_tokens);
        if known.is_none() && self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(format!(
                "{}: {key} is {number}, there are {} tokens: it is ignored",
                self.metadata.path().display(),
                self.n_tokens
            ));
        }
        known
    }
}

/// What holds where the file does not say whether a text begins with a token of its own. A
/// `tokenizer.json` says it by itself.
fn adds_bos(metadata: &Metadata, dialects: &Dialects) -> Option<bool> {
    match Kind::of(metadata, dialects) {
        Ok(Kind::ByteLevel(splitter)) => Some(splitter.adds_bos),
        Ok(Kind::SentencePiece | Kind::MergedPieces) => Some(true),
        Ok(Kind::Json) | Err(_) => None,
    }
}

/// Chat templates by name: `tokenizer.chat_template`, and `tokenizer.chat_template.NAME`.
fn templates(metadata: &Metadata) -> Result<BTreeMap<String, String>, TextError> {
    let mut templates = BTreeMap::new();
    for key in metadata.values().keys() {
        let Some(rest) = key.strip_prefix(TEMPLATE) else { continue };
        let name = match rest.strip_prefix('.') {
            Some(name) => name,
            None if rest.is_empty() => "default",
            None => continue,
        };
        let source = metadata.text(key)?.unwrap_or_default();
        if source.len() as u64 > MAX_TEMPLATE_BYTES {
            let what =
                format!("{key} has {} bytes, the limit is {MAX_TEMPLATE_BYTES}", source.len());
            return Err(damaged(metadata.path(), what));
        }
        if !source.is_empty() && templates.len() < MAX_TEMPLATES {
            templates.insert(name.to_owned(), source.to_owned());
        }
    }
    Ok(templates)
}

/// `general.sampling.*`. Who recommends how to sample recommends to sample.
fn sampling(metadata: &Metadata) -> Result<GenerationDefaults, TextError> {
    let float = |name: &str| -> Result<Option<f32>, TextError> {
        let number = metadata.float(&format!("general.sampling.{name}"))?;
        Ok(number.map(|number| number as f32))
    };
    let key = "general.sampling.top_k";
    let top_k = match metadata.get(key) {
        // Not above 0 keeps all tokens.
        Some(Value::Integer(number)) if *number <= 0 => Some(0),
        _ => metadata.number(key)?,
    };
    let named = GenerationDefaults {
        do_sample: None,
        temperature: float("temp")?,
        top_p: float("top_p")?,
        top_k,
        min_p: float("min_p")?,
        repetition_penalty: float("penalty_repeat")?,
    };
    Ok(GenerationDefaults { do_sample: named.names_sampling().then_some(true), ..named })
}
