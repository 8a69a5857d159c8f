//! `--logprobs`: the tokens of an answer with their probabilities.

use moeflux::TokenLogprob;
use moeflux_text::Tokenizer;

/// One line for each token: its text, its probability, and those of the likeliest in its place.
pub(super) fn lines<'a>(
    tokenizer: &'a Tokenizer,
    tokens: &'a [TokenLogprob],
) -> impl Iterator<Item = String> + 'a {
    tokens.iter().map(|token| {
        let one = |token, logprob: f32| {
            let text = String::from_utf8_lossy(tokenizer.token_bytes(token));
            format!("{text:?} {:.2} %", 100.0 * logprob.exp())
        };
        let top: Vec<String> =
            token.top.iter().map(|(token, logprob)| one(*token, *logprob)).collect();
        let own = one(token.token, token.logprob);
        if top.is_empty() { own } else { format!("{own}; likeliest: {}", top.join(", ")) }
    })
}
