//! Jobs of the scheduler, and the events that it sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use moeflux_core::TokenId;
use moeflux_text::{Constraint, NoCalls, Turn};

use crate::error::EngineError;
use crate::generate::Finish;
use crate::sampler::SamplerOptions;
use crate::speculation::options::SpeculationStats;

/// Receives the events of a job on the engine's thread. It must not block.
pub type Listener = Box<dyn FnMut(Event) + Send>;

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

/// A request for one answer.
pub struct Job {
    /// The prompt.
    pub prompt: Turn,
    /// Text that the answer is expected to repeat in large parts, such as a file that it edits.
    /// Tokens are drafted from it too. Changes no token.
    pub expected: Arc<[TokenId]>,
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
    /// Special tokens that are part of the text; all others are left out.
    pub shown: Arc<[TokenId]>,
    /// How many of the likeliest tokens are reported with the probability of each token; where
    /// absent, no probabilities are reported.
    pub top_logprobs: Option<usize>,
    /// The caller sets it to end the answer.
    pub cancelled: Arc<AtomicBool>,
    /// Receives the events of this job.
    pub listener: Listener,
}

impl Job {
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// An event of a job.
#[derive(Debug)]
pub enum Event {
    /// A chunk of the prompt was evaluated.
    Prompt {
        /// Tokens done, reused ones included.
        n_done: usize,
        /// Tokens of the prompt.
        n_total: usize,
        /// Tokens that needed no evaluation.
        n_reused: usize,
    },
    /// More text of the answer.
    Text(TokenText),
    /// The answer has ended.
    Done(Answer),
    /// A step failed, or the prompt is invalid.
    Failed(Arc<EngineError>),
}

/// Text that no stop text can remove any more.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenText {
    /// The text.
    pub text: String,
    /// The tokens of the text, where [`Job::top_logprobs`] asks for them.
    pub logprobs: Vec<TokenLogprob>,
}

/// A token and its probability by the model's own logits, before any bias.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The likeliest tokens in its place, the likeliest first.
    pub top: Vec<(TokenId, f32)>,
}

/// Statistics of an answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Why it ended.
    pub finish: Finish,
    /// The stop text that ended it.
    pub stop: Option<String>,
    /// Tokens of the prompt, reused ones included.
    pub n_prompt: usize,
    /// Tokens of the prompt that needed no evaluation.
    pub n_reused: usize,
    /// Tokens generated, an end-of-text token included.
    pub n_generated: usize,
    /// Tokens drafted and accepted.
    pub speculation: SpeculationStats,
    /// Time from the job's arrival until it had a session.
    pub queued: Duration,
    /// Time from the job's arrival to its first token.
    pub first_token: Option<Duration>,
    /// Time from the first token to the end.
    pub decode: Duration,
}

impl Answer {
    /// For a job that was cancelled before it had a session.
    pub(super) fn cancelled_in_queue(job: &Job, arrived: Instant) -> Answer {
        Answer {
            finish: Finish::Cancelled,
            stop: None,
            n_prompt: job.prompt.tokens.len(),
            n_reused: 0,
            n_generated: 0,
            speculation: SpeculationStats::default(),
            queued: arrived.elapsed(),
            first_token: None,
            decode: Duration::ZERO,
        }
    }
}
