//! How the tokens of an answer are chosen, and where it ends.

use std::sync::Arc;

use moeflux_core::TokenId;
use moeflux_text::{Constraint, NoCalls, Thoughts};

use crate::sampler::SamplerOptions;

/// Changes of logits before a token is chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bias {
    /// Values that are added to the logits of tokens.
    pub tokens: Vec<(TokenId, f32)>,
    /// Subtracted from a token's logit for every occurrence in the answer.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of every token that occurs in the answer.
    pub presence_penalty: f32,
}

impl Bias {
    pub(crate) fn is_none(&self) -> bool {
        let Bias { tokens, frequency_penalty, presence_penalty } = self;
        tokens.is_empty() && *frequency_penalty == 0.0 && *presence_penalty == 0.0
    }
}

/// How the tokens of an answer are chosen, and where it ends. The default is greedy, as long as the
/// context allows.
#[derive(Clone, Default)]
pub struct DecodingOptions {
    /// The most tokens of the answer; where absent, what the context has room for.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// Changes of the logits before that.
    pub bias: Bias,
    /// A grammar that the answer must match.
    pub constraint: Option<Constraint>,
    /// Rules out calls of tools, where none were offered.
    pub no_calls: Option<NoCalls>,
    /// Ends thoughts that take too many tokens, and counts those of all.
    pub thoughts: Option<Thoughts>,
    /// Special tokens that are part of the text; all others are left out.
    pub shown: Arc<[TokenId]>,
    /// How many of the likeliest tokens are reported with the probability of each token; where
    /// absent, no probabilities are reported.
    pub top_logprobs: Option<usize>,
    /// Whether the token that ends the text is reported with them, although it has no text.
    pub reports_end: bool,
    /// Text that the answer is expected to repeat in large parts, such as a file that it edits.
    /// Tokens are drafted from it too. Changes no token.
    pub expected: Arc<[TokenId]>,
}
