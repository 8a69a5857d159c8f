//! What is asked of the scheduler, and what it tells.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use moeflux_core::TokenId;
use moeflux_text::{Constraint, Turn};

use crate::draft::DraftCounts;
use crate::error::EngineError;
use crate::generate::Finish;
use crate::sampler::SamplerOptions;

/// Hears what becomes of a job, on the engine's thread: it must not block.
pub type Listener = Box<dyn FnMut(Event) + Send>;

/// Changes of logits by what the answer holds already and by the caller's wish.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bias {
    /// Added to the logits of tokens.
    pub tokens: Vec<(TokenId, f32)>,
    /// Taken from a token's logit for every time that the answer holds it.
    pub frequency_penalty: f32,
    /// Taken once from the logit of every token that the answer holds.
    pub presence_penalty: f32,
}

/// One answer that somebody wants.
pub struct Job {
    /// What it answers.
    pub prompt: Turn,
    /// What the answer is expected to hold much of, such as a file before it is changed:
    /// what follows is guessed from it too. Changes no token.
    pub expected: Arc<[TokenId]>,
    /// Tokens at most; as many as the context has room for where absent.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// What changes the logits before that.
    pub bias: Bias,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// Special tokens that the text shows; all others are left out.
    pub shown: Arc<[TokenId]>,
    /// How many of the likeliest tokens are told beside each token's own
    /// probability; none are told where absent.
    pub top_logprobs: Option<usize>,
    /// Set by whoever has had enough of the answer.
    pub cancelled: Arc<AtomicBool>,
    /// Who hears of it.
    pub listener: Listener,
}

impl Job {
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// What becomes of a job.
#[derive(Debug)]
pub enum Event {
    /// The prompt is being read.
    Prompt {
        /// Tokens done, reused ones included.
        n_done: usize,
        /// Of so many.
        n_total: usize,
        /// Tokens that needed no evaluation.
        n_reused: usize,
    },
    /// More of the answer is certain.
    Text(TokenText),
    /// The answer has ended.
    Done(Answer),
    /// A step failed, or the prompt cannot be read.
    Failed(Arc<EngineError>),
}

/// Text that became certain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenText {
    /// The text.
    pub text: String,
    /// The tokens that it consists of, where these are wanted.
    pub logprobs: Vec<TokenLogprob>,
}

/// A token and how likely it was, by the bare logits.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The likeliest tokens in its place, the likeliest first.
    pub top: Vec<(TokenId, f32)>,
}

/// An answer's figures.
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
    /// Tokens made, the one that ended it included.
    pub n_generated: usize,
    /// Guesses of what followed, and how many of these were right.
    pub drafts: DraftCounts,
    /// Time from the job's arrival until it had a session.
    pub queued: Duration,
    /// Time from the job's arrival to its first token.
    pub first_token: Option<Duration>,
    /// Time from the first token to the end.
    pub decode: Duration,
}

impl Answer {
    /// That of a job that was cancelled before its turn came.
    pub(super) fn never_begun(job: &Job, arrived: Instant) -> Answer {
        Answer {
            finish: Finish::Cancelled,
            stop: None,
            n_prompt: job.prompt.tokens.len(),
            n_reused: 0,
            n_generated: 0,
            drafts: DraftCounts::default(),
            queued: arrived.elapsed(),
            first_token: None,
            decode: Duration::ZERO,
        }
    }
}
