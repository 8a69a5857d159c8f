//! Tokens that a request took, as clients of OpenAI read it.

use schemars::JsonSchema;
use serde::Serialize;

use crate::ask;

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Usage {
    /// Tokens of the prompt.
    prompt_tokens: usize,
    /// Tokens of all answers.
    completion_tokens: usize,
    /// The sum.
    total_tokens: usize,
    /// Of the prompt's tokens.
    prompt_tokens_details: PromptDetails,
    /// Of the answers' tokens.
    completion_tokens_details: CompletionDetails,
}

/// Of the prompt's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct PromptDetails {
    /// Tokens that were known from an earlier request.
    cached_tokens: usize,
    /// Tokens that were evaluated, and that later requests may reuse.
    cache_write_tokens: usize,
}

/// Of the answers' tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct CompletionDetails {
    /// Tokens of thoughts.
    reasoning_tokens: usize,
    /// Drafted tokens that were accepted.
    accepted_prediction_tokens: u64,
    /// Drafted tokens that were rejected.
    rejected_prediction_tokens: u64,
}

impl From<ask::Usage> for Usage {
    fn from(usage: ask::Usage) -> Usage {
        let ask::Usage { n_prompt, n_generated, n_thought, n_reused, speculation } = usage;
        Usage {
            prompt_tokens: n_prompt,
            completion_tokens: n_generated,
            total_tokens: n_prompt + n_generated,
            prompt_tokens_details: PromptDetails {
                cached_tokens: n_reused,
                cache_write_tokens: n_prompt - n_reused,
            },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: n_thought,
                accepted_prediction_tokens: speculation.accepted,
                rejected_prediction_tokens: speculation.drafted - speculation.accepted,
            },
        }
    }
}
