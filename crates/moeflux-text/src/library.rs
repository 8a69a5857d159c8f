//! What the tokenizer library makes of the content of a `tokenizer.json`, without the copies that its
//! own way there takes.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::guard::Source;

/// The library's tokenizer of a description that was checked.
pub(super) fn of_json(json: &Value) -> Result<tokenizers::Tokenizer, Source> {
    match library_model(json) {
        Some(model) => with_model(json, model?),
        None => parse(json),
    }
}

/// The tokenizer of a description whose model has been read already.
fn with_model(json: &Value, model: BPE) -> Result<tokenizers::Tokenizer, Source> {
    let own = ["model", "added_tokens"];
    let others = json.as_object().into_iter().flatten().filter(|(key, _)| !own.contains(&&***key));
    let mut rest: Map<String, Value> =
        others.map(|(key, value)| (key.clone(), value.clone())).collect();
    rest.insert("model".into(), json!({"type": "BPE", "vocab": {}, "merges": []}));
    let mut tokenizer = parse(&Value::Object(rest))?;
    tokenizer.with_model(model);
    let added = json.get("added_tokens").map(Vec::<Added>::deserialize).transpose()?;
    tokenizer.add_tokens(added.unwrap_or_default().into_iter().map(|added| added.token))?;
    Ok(tokenizer)
}

/// The library's own way. The description is written out again: of a key that comes twice the file's own
/// text would give another value, and what the library reads from text it was compiled for once, while
/// every other source of values makes a copy of all its readers in this crate.
fn parse(json: &Value) -> Result<tokenizers::Tokenizer, Source> {
    json.to_string().parse().map_err(|err: Source| {
        // Places in that text say nothing about the file.
        let is_placed = err.downcast_ref::<serde_json::Error>().is_some_and(|err| err.line() > 0);
        match err.to_string().rsplit_once(" at line ") {
            Some((problem, _)) if is_placed => problem.into(),
            _ => err,
        }
    })
}

/// An added token of a `tokenizer.json`.
#[derive(Deserialize)]
struct Added {
    /// Its model has the token under this id.
    #[serde(rename = "id")]
    _id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

/// What a model of merges has but vocabulary and merges.
#[derive(Deserialize)]
struct MergeSettings {
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

/// The model of a description that has merges in pairs. The library's way from JSON to hundreds of
/// thousands of tokens takes several copies of all of them. `None` for any other model.
fn library_model(json: &Value) -> Option<Result<BPE, Source>> {
    let model = json.get("model")?;
    if model.get("type")? != "BPE" {
        return None;
    }
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    let vocab = model.get("vocab")?.as_object()?;
    let vocab = vocab.iter().map(|(text, value)| Some((text.clone(), id(value)?)));
    let vocab = vocab.collect::<Option<Vocab>>()?;
    let pair = |pair: &Value| match pair.as_array()?.as_slice() {
        [left, right] => Some((left.as_str()?.to_owned(), right.as_str()?.to_owned())),
        _ => None,
    };
    let merges = model.get("merges")?.as_array()?.iter().map(pair).collect::<Option<Merges>>()?;
    Some(build_model(model, vocab, merges))
}

fn build_model(model: &Value, vocab: Vocab, merges: Merges) -> Result<BPE, Source> {
    let settings = MergeSettings::deserialize(model)?;
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .fuse_unk(settings.fuse_unk.unwrap_or(false))
        .byte_fallback(settings.byte_fallback.unwrap_or(false))
        .ignore_merges(settings.ignore_merges.unwrap_or(false));
    if let Some(dropout) = settings.dropout {
        builder = builder.dropout(dropout);
    }
    if let Some(text) = settings.unk_token {
        builder = builder.unk_token(text);
    }
    if let Some(prefix) = settings.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = settings.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    builder.build()
}
