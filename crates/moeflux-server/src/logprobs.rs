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
    /// The logarithms of their probabilities; null for the first token of a prompt.
    token_logprobs: Vec<Option<f64>>,
    /// The likeliest tokens at their places, and the logarithms of their probabilities; null for the first
    /// token of a prompt.
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// The characters of the text before them.
    text_offset: Vec<usize>,
    /// Characters of the text up to here.
    #[serde(skip)]
    n_chars: usize,
}

impl Lists {
    /// Lists of tokens whose text begins behind some characters.
    pub(crate) fn behind(n_chars: usize) -> Lists {
        Lists { n_chars, ..Lists::default() }
    }

    /// Lists that begin with the first token of a prompt, before which nothing tells how likely it is.
    pub(crate) fn begun(tokenizer: &Tokenizer, first: Option<TokenId>) -> Lists {
        let mut lists = Lists::default();
        if let Some(first) = first {
            lists.add(tokenizer, first);
            lists.token_logprobs.push(None);
            lists.top_logprobs.push(None);
        }
        lists
    }

    /// Characters of the text of the tokens, and those before them.
    pub(crate) fn n_chars(&self) -> usize {
        self.n_chars
    }

    /// Adds tokens.
    pub(crate) fn extend(&mut self, tokenizer: &Tokenizer, all: &[TokenLogprob]) {
        for entry in all {
            self.add(tokenizer, entry.token);
            self.token_logprobs.push(Some(at_least(entry.logprob)));
            let top = entry.top.iter();
            let top = top.map(|(token, p)| (text(tokenizer, *token), at_least(*p).into()));
            self.top_logprobs.push(Some(top.collect()));
        }
    }

    fn add(&mut self, tokenizer: &Tokenizer, token: TokenId) {
        let spelled = text(tokenizer, token);
        self.text_offset.push(self.n_chars);
        self.n_chars += spelled.chars().count();
        self.tokens.push(spelled);
    }
}

fn text(tokenizer: &Tokenizer, token: TokenId) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned()
}

fn at_least(logprob: f32) -> f64 {
    logprob.max(LEAST).into()
}
