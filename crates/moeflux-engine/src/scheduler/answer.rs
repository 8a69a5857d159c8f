//! A job that has a session.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use moeflux_core::TokenId;
use moeflux_text::Turn;

use super::job::{Answer, Event, Job, Listener};
use super::turns::Owner;
use crate::decoding::{Decoding, Evaluated, Finish, TokenLogprob};
use crate::error::EngineError;
use crate::rows::RequestedRows;
use crate::session::Session;
use crate::step::RowLogits;
use crate::vision::SeenPicture;

/// A job that has a session.
pub(super) struct Running {
    pub(super) prompt: Turn,
    /// Those of the prompt, which the session does not keep.
    _pictures: Vec<Arc<SeenPicture>>,
    pub(super) phase: Phase,
    /// Rows of the prompt, until it is evaluated.
    pub(super) requested: Option<RequestedRows>,
    pub(super) decoding: Decoding,
    /// How many of the likeliest tokens are reported with each token of the prompt.
    pub(super) prompt_logprobs: Option<usize>,
    pub(super) n_reused: usize,
    pub(super) owner: Owner,
    arrived: Instant,
    pub(super) started: Instant,
    cancelled: Arc<AtomicBool>,
    listener: Listener,
}

/// The progress of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// This many tokens of its prompt are evaluated.
    Prompt(usize),
    /// The prompt is evaluated, and this token of the answer is next.
    Decode(TokenId),
}

impl Running {
    /// A job whose options have become `decoding`.
    pub(super) fn new(
        job: Job,
        decoding: Decoding,
        requested: Option<RequestedRows>,
        n_reused: usize,
        arrived: Instant,
    ) -> Running {
        let Job { prompt, pictures, prompt_logprobs, owner, cancelled, listener, .. } = job;
        Running {
            prompt,
            _pictures: pictures,
            phase: Phase::Prompt(n_reused),
            requested,
            decoding,
            prompt_logprobs,
            n_reused,
            owner,
            arrived,
            started: Instant::now(),
            cancelled,
            listener,
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Tokens of the prompt that are evaluated, all of them behind it.
    pub(super) fn n_done(&self) -> usize {
        match self.phase {
            Phase::Prompt(n_done) => n_done,
            Phase::Decode(_) => self.prompt.tokens.len(),
        }
    }

    /// Goes on in the prompt, and tells the listener.
    pub(super) fn advance_prompt(&mut self, n: usize) {
        if let Phase::Prompt(n_done) = self.phase {
            let n_done = n_done + n;
            self.phase = Phase::Prompt(n_done);
            let (n_total, n_reused) = (self.prompt.tokens.len(), self.n_reused);
            (self.listener)(Event::Prompt { n_done, n_total, n_reused });
        }
    }

    /// Passes the probabilities of tokens of the prompt to the listener: of those behind its first `start`
    /// tokens, by the logits after each of them.
    pub(super) fn score(
        &mut self,
        start: usize,
        logits: &mut [RowLogits],
    ) -> Result<(), EngineError> {
        let Some(n_top) = self.prompt_logprobs else { return Ok(()) };
        let next = self.prompt.tokens.get(start + 1..).unwrap_or_default();
        let pictures = &self.prompt.pictures;
        let next = next.iter().map(|token| match pictures.first().filter(|_| token.is_picture()) {
            Some(picture) => picture.placeholder,
            None => *token,
        });
        let scored = next.zip(logits).filter_map(|(token, logits)| match logits {
            RowLogits::All(logits) => Some(TokenLogprob::of(logits, token, n_top)),
            RowLogits::Top(_) => None,
        });
        let scored = scored.collect::<Result<Vec<TokenLogprob>, _>>()?;
        if !scored.is_empty() {
            (self.listener)(Event::Scored(scored));
        }
        Ok(())
    }

    /// Takes the logits of a step and passes the text that is certain then to the listener. Returns
    /// why the answer ends, if it does.
    pub(super) fn take_step(
        &mut self,
        step: Evaluated<'_>,
        session: &mut Session,
    ) -> Result<Option<Finish>, EngineError> {
        let emit = &mut |text| (self.listener)(Event::Text(text));
        Ok(match self.decoding.take_step(step, session, emit)? {
            ControlFlow::Break(finish) => Some(finish),
            ControlFlow::Continue(token) => {
                self.phase = Phase::Decode(token);
                self.requested = None;
                None
            }
        })
    }

    /// Passes the held-back text and the end of the answer to the listener.
    pub(super) fn finish(mut self, finish: Finish) {
        let finish = self.decoding.finish(finish, &mut |text| (self.listener)(Event::Text(text)));
        let first_token = self.decoding.first_token();
        let answer = Answer {
            finish,
            stop: self.decoding.stopped_by().map(str::to_owned),
            n_prompt: self.prompt.tokens.len(),
            n_reused: self.n_reused,
            n_generated: self.decoding.n_generated(),
            n_thought: self.decoding.n_thought(),
            speculation: self.decoding.speculation_stats(),
            queued: self.started - self.arrived,
            first_token: first_token.map(|at| at - self.arrived),
            decode: first_token.map_or(Duration::ZERO, |at| at.elapsed()),
        };
        (self.listener)(Event::Done(answer));
    }

    /// Tells the listener that a step failed.
    pub(super) fn fail(mut self, err: Arc<EngineError>) {
        (self.listener)(Event::Failed(err));
    }
}
