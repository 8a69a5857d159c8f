//! Jobs of the scheduler, and the events that it sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use moeflux_text::Turn;

use crate::decoding::{DecodingOptions, Finish, TokenLogprob, TokenText};
use crate::error::{EngineError, RowError};
use crate::positions::pictures::PromptPicture;
use crate::speculation::options::SpeculationStats;
use crate::vision::SeenPicture;

/// Receives the events of a job on the engine's thread. It must not block.
pub type Listener = Box<dyn FnMut(Event) + Send>;

/// A request for one answer.
pub struct Job {
    /// The prompt.
    pub prompt: Turn,
    /// What a tower has made of the prompt's pictures, in the order of [`Turn::pictures`].
    pub pictures: Vec<Arc<SeenPicture>>,
    /// How its answer is decoded.
    pub decoding: DecodingOptions,
    /// Whether the prefix cache keeps the answer with the prompt, for a conversation that goes on.
    pub keeps_answer: bool,
    /// How many of the likeliest tokens are reported with the probability of each token of the prompt
    /// ([`Event::Scored`]), which is evaluated anew then; where absent, none are.
    pub prompt_logprobs: Option<usize>,
    /// Whose job it is: owners get sessions in turns, each in the order of its jobs.
    pub owner: Option<Arc<str>>,
    /// The caller sets it to end the answer.
    pub cancelled: Arc<AtomicBool>,
    /// Receives the events of this job.
    pub listener: Listener,
}

impl Job {
    /// The pictures of the prompt, where it says that they are.
    ///
    /// # Errors
    /// Where other ones were seen.
    pub(super) fn placed_pictures(&self) -> Result<Vec<PromptPicture>, EngineError> {
        let places = &self.prompt.pictures;
        let (n_placed, n_seen) = (places.len(), self.pictures.len());
        if n_placed != n_seen {
            return Err(RowError::PictureCount { n_placed, n_seen }.into());
        }
        let pictures = places.iter().zip(&self.pictures).map(|(place, seen)| PromptPicture {
            start: place.start,
            placeholder: place.placeholder,
            seen: Arc::clone(seen),
        });
        Ok(pictures.collect())
    }

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
    /// Tokens of the prompt, behind its first, and their probabilities.
    Scored(Vec<TokenLogprob>),
    /// More text of the answer.
    Text(TokenText),
    /// The answer has ended.
    Done(Answer),
    /// A step failed, or the prompt is invalid.
    Failed(Arc<EngineError>),
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
    /// Those of them that are thoughts.
    pub n_thought: usize,
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
            n_thought: 0,
            speculation: SpeculationStats::default(),
            queued: arrived.elapsed(),
            first_token: None,
            decode: Duration::ZERO,
        }
    }
}
