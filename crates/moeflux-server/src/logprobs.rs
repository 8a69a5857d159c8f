//! Tokens and their probabilities as clients read them.

use moeflux_engine::{TokenId, TokenLogprob};
use moeflux_text::Tokenizer;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// JSON has no infinity: no token is less likely than this.
const LEAST: f32 = -9999.0;

/// A token of an answer and the logarithm of its probability.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "TokenLogprob")]
pub(crate) struct Entry {
    #[serde(flatten)]
    chosen: Likely,
    /// The likeliest tokens at its place.
    top_logprobs: Vec<Likely>,
}

/// A token and the logarithm of its probability.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "LikelyToken")]
struct Likely {
    /// Its text.
    token: String,
    /// The logarithm of its probability.
    logprob: f64,
    /// Its bytes.
    bytes: Vec<u8>,
}

/// Entries of OpenAI's `logprobs.content`.
pub(crate) fn entries(tokenizer: &Tokenizer, all: &[TokenLogprob]) -> Vec<Entry> {
    let likely = |token: TokenId, logprob: f32| {
        let bytes = tokenizer.token_bytes(token).to_vec();
        let token = String::from_utf8_lossy(&bytes).into_owned();
        Likely { token, logprob: at_least(logprob), bytes }
    };
    let entry = |token: &TokenLogprob| Entry {
        chosen: likely(token.token, token.logprob),
        top_logprobs: token.top.iter().map(|(token, p)| likely(*token, *p)).collect(),
    };
    all.iter().map(entry).collect()
}

/// The parallel lists of OpenAI's older `logprobs`: an item for each token.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "TextLogprobs", deny_unknown_fields)]
pub(crate) struct Lists {
    /// The tokens.
    tokens: Vec<String>,
    /// The logarithms of their probabilities.
    token_logprobs: Vec<f64>,
    /// The likeliest tokens at their places, and the logarithms of their probabilities.
    top_logprobs: Vec<Map<String, Value>>,
    /// The characters of the answer before them.
    text_offset: Vec<usize>,
}

impl Lists {
    /// The lists of tokens whose text begins in the answer behind `offset` characters, which grows by
    /// theirs.
    pub(crate) fn of(tokenizer: &Tokenizer, all: &[TokenLogprob], offset: &mut usize) -> Lists {
        let text = |token| String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned();
        let mut lists = Lists::default();
        for entry in all {
            let top = entry.top.iter().map(|(token, p)| (text(*token), at_least(*p).into()));
            let spelled = text(entry.token);
            lists.text_offset.push(*offset);
            *offset += spelled.chars().count();
            lists.tokens.push(spelled);
            lists.token_logprobs.push(at_least(entry.logprob));
            lists.top_logprobs.push(top.collect());
        }
        lists
    }
}

fn at_least(logprob: f32) -> f64 {
    logprob.max(LEAST).into()
}
