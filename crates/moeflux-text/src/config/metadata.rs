//! Special tokens, templates and sampling in the metadata of a GGUF file.

use std::collections::BTreeMap;

use moeflux_core::Dialects;
use moeflux_core::gguf::{Metadata, Value};

use super::{GenerationDefaults, MAX_TEMPLATE_BYTES, MAX_TEMPLATES, TextConfig, template_files};
use super::{stops, template_paths};
use crate::error::TextError;
use crate::vocabulary::files::damaged;
use crate::vocabulary::gguf::{Kind, key};

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
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

const TEMPLATE: &str = "tokenizer.chat_template";
const ARCHITECTURE: &str = "general.architecture";

/// What some converters write for a token that a model does not have: -1.
const NO_TOKEN: usize = u32::MAX as usize;

impl TextConfig {
    /// Reads what the metadata says. Template files next to the file (`chat_template.jinja`, the
    /// folder `additional_chat_templates`) take the place of its templates, which are those of the
    /// day of its conversion.
    pub(in super::super) fn of_metadata(
        metadata: &Metadata,
        dialects: &Dialects,
    ) -> Result<Self, TextError> {
        let mut config = Self::default();
        let tokens = metadata.texts(key::TOKENS)?.unwrap_or_default();
        for (name, key) in NAMED {
            let Some(id) = token_id(metadata, key, tokens.len())? else { continue };
            let text = tokens.get(id as usize).filter(|text| !text.is_empty());
            config.named.extend(text.map(|text| (name.to_owned(), text.clone())));
            match key {
                key::BOS => config.bos_id = Some(id),
                key::EOS => config.eos_ids.push(id),
                _ => {}
            }
        }
        for key in ENDS {
            config.eos_ids.extend(token_id(metadata, key, tokens.len())?);
        }
        stops::add_named(metadata, tokens, &mut config.eos_ids)?;
        config.add_bos = metadata.bool(key::ADD_BOS)?.or_else(|| adds_bos(metadata, dialects));
        config.model_type = metadata.text(ARCHITECTURE)?.map(str::to_owned);
        config.sampling = sampling(metadata)?;
        config.read_metadata_templates(metadata)?;
        Ok(config)
    }

    fn read_metadata_templates(&mut self, metadata: &Metadata) -> Result<(), TextError> {
        if let Some(dir) = metadata.path().parent() {
            self.templates = template_files(dir)?;
            let mut paths = template_paths(dir)?.into_iter();
            let found = paths.find(|(name, _)| self.templates.contains_key(name));
            self.template_file = found.map(|(_, path)| path);
        }
        if self.templates.is_empty() {
            self.templates = templates(metadata)?;
            let has_one = !self.templates.is_empty();
            self.template_file = has_one.then(|| metadata.path().to_owned());
        }
        Ok(())
    }
}

/// The number of a token; `None` where the file has no such key. `n_tokens` is 0 where the file
/// has no list of tokens.
fn token_id(metadata: &Metadata, key: &str, n_tokens: usize) -> Result<Option<u32>, TextError> {
    let Some(value) = metadata.get(key).filter(|value| **value != Value::Integer(-1)) else {
        return Ok(None);
    };
    let number = metadata.number(key)?.filter(|number| *number != NO_TOKEN);
    let Some(number) = number else { return Ok(None) };
    match u32::try_from(number) {
        Ok(id) if n_tokens == 0 || number < n_tokens => Ok(Some(id)),
        _ => {
            let rule = format!("be the number of one of the {n_tokens} tokens");
            Err(metadata.refuse(key, value, &rule).into())
        }
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
    let (temperature, top_p) = (float("temp")?, float("top_p")?);
    let samples = temperature.is_some() || top_p.is_some() || top_k.is_some();
    Ok(GenerationDefaults {
        do_sample: samples.then_some(true),
        temperature,
        top_p,
        top_k,
        min_p: float("min_p")?,
        repetition_penalty: float("penalty_repeat")?,
    })
}
