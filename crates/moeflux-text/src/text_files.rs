//! The text side of a GGUF file as the files that other checkpoints have for it.
//!
//! A packed container has its tokenizer in files of its own.

use std::collections::BTreeSet;

use moeflux_core::Dialects;
use moeflux_core::checkpoint::companions::TOKENIZER_JSON;
use moeflux_core::gguf::Metadata;
use serde_json::{Map, Value, json};

use super::config::{CHATS_BEGIN, GenerationDefaults, TextConfig};
use super::error::TextError;
use super::source::MetadataText;
use super::vocabulary::gguf;

/// Bytes of memory that a tokenizer takes for each byte of its tokens and merges. Measured while
/// vocabularies of 128 to 201 thousand tokens were opened: 67 to 83.
const BYTE_LEVEL_FACTOR: u64 = 80;

/// Bytes in memory for each byte of pieces of sentencepiece, whose merges are found by their
/// scores: 359 for 32 thousand tokens.
const SENTENCEPIECE_FACTOR: u64 = 360;

/// Bytes in memory for each byte of a whole `tokenizer.json`.
const JSON_FACTOR: u64 = 14;

/// A file of the text side of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFile {
    /// Its name in the model's directory.
    pub name: &'static str,
    /// What it holds.
    pub content: String,
}

/// The files that say what the metadata of a GGUF file, and files next to it, say of texts: a
/// `tokenizer.json`, and settings. [`Tokenizer::from_dir`](crate::Tokenizer::from_dir) makes of
/// them what [`Tokenizer::from_metadata`](crate::Tokenizer::from_metadata) makes of the metadata.
///
/// # Errors
/// As that has.
pub fn text_files(metadata: &Metadata, dialects: &Dialects) -> Result<Vec<TextFile>, TextError> {
    let MetadataText { vocabulary, config, .. } = MetadataText::read(metadata, dialects)?;
    let file = |name, content: &Value| TextFile { name, content: format!("{content:#}\n") };
    Ok(vec![
        TextFile { name: TOKENIZER_JSON, content: vocabulary.json.to_string() },
        file("tokenizer_config.json", &tokenizer_config(&config)),
        file("generation_config.json", &generation_config(&config)),
    ])
}

fn tokenizer_config(config: &TextConfig) -> Value {
    let mut fields = Map::new();
    let named = config.named.iter().map(|(name, text)| (name.clone(), json!(text)));
    fields.extend(named);
    if let Some(add_bos) = config.add_bos {
        fields.insert("add_bos_token".into(), json!(add_bos));
    }
    if config.chats_begin {
        fields.insert(CHATS_BEGIN.into(), json!(true));
    }
    let template = |(name, source): (&String, &String)| json!({"name": name, "template": source});
    if !config.templates.is_empty() {
        let templates: Vec<Value> = config.templates.iter().map(template).collect();
        fields.insert("chat_template".into(), Value::from(templates));
    }
    Value::Object(fields)
}

fn generation_config(config: &TextConfig) -> Value {
    let GenerationDefaults { do_sample, temperature, top_p, top_k, min_p, repetition_penalty } =
        config.sampling;
    let mut seen = BTreeSet::new();
    let ends: Vec<u32> = config.eos_ids.iter().copied().filter(|id| seen.insert(*id)).collect();
    let all = [
        ("eos_token_id", (!ends.is_empty()).then(|| json!(ends))),
        ("bos_token_id", config.bos_id.map(|id| json!(id))),
        ("do_sample", do_sample.map(|samples| json!(samples))),
        ("temperature", temperature.map(|number| json!(number))),
        ("top_p", top_p.map(|number| json!(number))),
        ("top_k", top_k.map(|number| json!(number))),
        ("min_p", min_p.map(|number| json!(number))),
        ("repetition_penalty", repetition_penalty.map(|number| json!(number))),
    ];
    let said = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(said.collect())
}

/// Bytes of memory that the tokenizer in the metadata of a GGUF file takes, about.
pub fn tokenizer_bytes(metadata: &Metadata) -> u64 {
    let texts = |key: &str| {
        let all = metadata.texts(key).ok().flatten().unwrap_or_default();
        all.iter().map(|text| text.len() as u64).sum::<u64>()
    };
    if let Ok(Some(json)) = metadata.text(gguf::key::HUGGINGFACE_JSON) {
        return JSON_FACTOR * json.len() as u64;
    }
    let merges = texts(gguf::key::MERGES);
    match merges {
        0 => SENTENCEPIECE_FACTOR * texts(gguf::key::TOKENS),
        merges => BYTE_LEVEL_FACTOR * (texts(gguf::key::TOKENS) + merges),
    }
}
