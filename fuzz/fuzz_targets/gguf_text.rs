//! Tokenizer, template and sampling in the metadata of a GGUF file, and a text for them.
#![no_main]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use moeflux_core::gguf::{Array, Metadata, Value};
use moeflux_engine::dialects;
use moeflux_text::{ChatTemplate, Message, OutputFormat, RenderRequest, Tokenizer};

/// Without files next to it, which would take the place of templates.
static DIR: LazyLock<tempfile::TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("a folder for the file"));

const MODELS: [&str; 4] = ["gpt2", "llama", "none", "gemma4"];

const SPLITTERS: [&str; 8] =
    ["qwen2", "qwen35", "llama-bpe", "glm4", "deepseek-v3", "gpt-4o", "kimi-k2", "tekken"];

/// Keys of numbers.
const NUMBERS: [&str; 13] = [
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.remove_extra_whitespaces",
    "general.sampling.temp",
    "general.sampling.top_k",
    "general.sampling.top_p",
    "general.sampling.penalty_repeat",
];

/// A kind of number, its key, and its value.
type Number = (u8, u8, i64);

/// Lists of a vocabulary: tokens, their kinds, merges, scores, normalisation.
type Lists<'a> = (Vec<&'a str>, Vec<i8>, Vec<&'a str>, Vec<f32>, &'a [u8]);

fuzz_target!(|input: (u8, u8, Lists<'_>, Vec<Number>, &str, &str)| {
    let (model, splitter, lists, numbers, template, text) = input;
    let mut values = BTreeMap::new();
    let of = |list: &[&'static str], nth: u8| list[usize::from(nth) % list.len()];
    let mut put = |key: &str, value| {
        values.insert(key.to_owned(), value);
    };
    put("general.architecture", Value::Text("qwen3moe".to_owned()));
    put("tokenizer.ggml.model", Value::Text(of(&MODELS, model).to_owned()));
    put("tokenizer.ggml.pre", Value::Text(of(&SPLITTERS, splitter).to_owned()));
    let (tokens, kinds, merges, scores, normalisation) = lists;
    let texts =
        |all: Vec<&str>| Value::Array(Array::Texts(all.into_iter().map(str::to_owned).collect()));
    let integers = |all: Vec<i64>| Value::Array(Array::Integers(all));
    put("tokenizer.ggml.tokens", texts(tokens));
    put("tokenizer.ggml.merges", texts(merges));
    if !kinds.is_empty() {
        put("tokenizer.ggml.token_type", integers(kinds.into_iter().map(i64::from).collect()));
    }
    if !scores.is_empty() {
        let scores = scores.into_iter().map(f64::from).collect();
        put("tokenizer.ggml.scores", Value::Array(Array::Floats(scores)));
    }
    if !normalisation.is_empty() {
        let bytes = normalisation.iter().map(|byte| i64::from(*byte)).collect();
        put("tokenizer.ggml.precompiled_charsmap", integers(bytes));
    }
    if !template.is_empty() {
        put("tokenizer.chat_template", Value::Text(template.to_owned()));
    }
    for (kind, key, number) in numbers.into_iter().take(NUMBERS.len()) {
        let value = match kind % 4 {
            0 => Value::Integer(number.into()),
            1 => Value::Float(f64::from_bits(number as u64)),
            2 => Value::Bool(number % 2 == 0),
            _ => Value::Text(template.to_owned()),
        };
        put(of(&NUMBERS, key), value);
    }
    let metadata = Metadata::new(&DIR.path().join("m.gguf"), values);
    let Ok(tokenizer) = Tokenizer::from_metadata(&metadata, dialects()) else { return };
    let _ = (tokenizer.generation_defaults(), OutputFormat::of(&tokenizer));
    if let Ok(ids) = tokenizer.encode_prompt(text, usize::MAX) {
        let _ = tokenizer.decode(&ids);
    }
    if let Some(Ok(template)) = ChatTemplate::of(&tokenizer, false) {
        let messages = [Message::new("user", text)];
        let _ = template.render(&RenderRequest { messages: &messages, ..Default::default() });
    }
});
