//! What an answer consists of, and why it ends.

use moeflux_core::TokenId;

use crate::sampler::error::SamplerError;
use crate::sampler::{logprob, logprobs};

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model generated an end-of-text token.
    EndOfText,
    /// The answer contained a stop text.
    Stop,
    /// The answer has `max_tokens` tokens.
    MaxTokens,
    /// The context has no room for another token.
    ContextFull,
    /// The caller cancelled it.
    Cancelled,
}

/// Text that no stop text can remove any more.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenText {
    /// The text.
    pub text: String,
    /// The tokens of the text, where [`DecodingOptions::top_logprobs`](super::DecodingOptions) asks
    /// for them.
    pub logprobs: Vec<TokenLogprob>,
}

impl TokenText {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.logprobs.is_empty()
    }
}

/// A token and its probability by the model's own logits, before any bias.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The same among the tokens that begin no call, where calls are ruled out.
    pub logprob_without_calls: f32,
    /// The likeliest tokens in its place, the likeliest first.
    pub top: Vec<(TokenId, f32)>,
}

impl TokenLogprob {
    /// A token by the logits in its place, with the `n_top` likeliest there.
    pub(crate) fn of(
        logits: &[f32],
        token: TokenId,
        n_top: usize,
    ) -> Result<TokenLogprob, SamplerError> {
        let (own, top) = (logprob(logits, token)?, logprobs(logits, n_top)?);
        Ok(TokenLogprob { token, logprob: own, logprob_without_calls: own, top })
    }
}
