//! Tokens and their probabilities as clients read them.

use moeflux_engine::{TokenId, TokenLogprob};
use moeflux_text::Tokenizer;
use serde_json::{Value, json};

/// JSON has no infinity: no token is less likely than this.
const LEAST: f32 = -9999.0;

/// An entry of OpenAI's `logprobs.content`.
pub(crate) fn entry(tokenizer: &Tokenizer, token: &TokenLogprob) -> Value {
    let one = |token: TokenId, logprob: f32| {
        let bytes = tokenizer.token_bytes(token);
        json!({
            "token": String::from_utf8_lossy(bytes),
            "logprob": logprob.max(LEAST),
            "bytes": bytes,
        })
    };
    let mut value = one(token.token, token.logprob);
    let top: Vec<Value> = token.top.iter().map(|(token, logprob)| one(*token, *logprob)).collect();
    value["top_logprobs"] = Value::from(top);
    value
}

/// The parallel lists of OpenAI's older `logprobs`; `offset` is where the text
/// of these tokens begins in the answer, in characters.
pub(crate) fn lists(tokenizer: &Tokenizer, all: &[TokenLogprob], offset: &mut usize) -> Value {
    let text = |token| String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned();
    let mut lists = [const { Vec::new() }; 4];
    for entry in all {
        let top: serde_json::Map<String, Value> =
            entry.top.iter().map(|(token, p)| (text(*token), json!(p.max(LEAST)))).collect();
        let spelled = text(entry.token);
        let length = spelled.chars().count();
        for (list, value) in lists.iter_mut().zip([
            json!(spelled),
            json!(entry.logprob.max(LEAST)),
            Value::Object(top),
            json!(*offset),
        ]) {
            list.push(value);
        }
        *offset += length;
    }
    let [tokens, token_logprobs, top_logprobs, text_offset] = lists;
    json!({
        "tokens": tokens,
        "token_logprobs": token_logprobs,
        "top_logprobs": top_logprobs,
        "text_offset": text_offset,
    })
}
