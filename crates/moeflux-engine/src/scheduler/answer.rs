//! One answer in progress: from logits to text.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use moeflux_core::TokenId;
use moeflux_text::{Constraint, Special, StopMatcher, StreamDecoder, Tokenizer};

use super::job::{Answer, Bias, Event, Job, TokenLogprob, TokenText};
use crate::choose::{choose, n_top, without};
use crate::engine::step::{Logits, RowLogits};
use crate::error::EngineError;
use crate::generate::Finish;
use crate::rows::RequestedRows;
use crate::sampler::{self, Sampler};
use crate::session::Session;
use crate::speculation::decode::{Verified, verify};
use crate::speculation::drafter::{Draft, DraftContext, Drafter};
use crate::speculation::options::{Speculation, SpeculationStats};

/// The logits that a step gave for one answer.
pub(super) struct Evaluated<'a> {
    /// Drafts that the step evaluated after the answer's token.
    pub(super) draft: &'a [TokenId],
    /// After the token and after each draft.
    pub(super) logits: &'a mut [RowLogits],
}

/// A job that has a session.
pub(super) struct Running {
    pub(super) job: Job,
    pub(super) phase: Phase,
    /// Rows of the prompt, until it is evaluated.
    pub(super) requested: Option<RequestedRows>,
    sampler: Sampler,
    drafter: Option<Drafter>,
    /// How often each token occurs in the answer.
    counts: HashMap<TokenId, u32>,
    writer: Writer,
    pub(super) n_reused: usize,
    pub(super) n_generated: usize,
    arrived: Instant,
    pub(super) started: Instant,
    first_token: Option<Instant>,
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
    pub(super) fn new(
        job: Job,
        sampler: Sampler,
        speculation: Speculation,
        tokenizer: &Tokenizer,
        n_reused: usize,
        arrived: Instant,
    ) -> Running {
        let writer = Writer::new(tokenizer, &job);
        let drafter = Drafter::new(speculation, &job.expected, &job.prompt.tokens);
        Running {
            job,
            phase: Phase::Prompt(n_reused),
            requested: None,
            sampler,
            drafter,
            counts: HashMap::new(),
            writer,
            n_reused,
            n_generated: 0,
            arrived,
            started: Instant::now(),
            first_token: None,
        }
    }

    /// How many of the highest logits suffice to choose a token, and one after each token of a
    /// draft; `None` where all are needed.
    pub(super) fn n_top(&self, draft: &[TokenId]) -> Option<usize> {
        let is_plain = !self.is_biased() && self.job.constraint.is_none();
        let n = self.sampler.n_top().filter(|_| is_plain && self.job.top_logprobs.is_none());
        n_top(n, self.job.no_calls.as_ref(), draft)
    }

    /// Drafts tokens after the one that is evaluated next.
    pub(super) fn draft(&mut self, context: &DraftContext<'_>) -> Draft {
        let Some(drafter) = &mut self.drafter else { return Draft::Tokens(Vec::new()) };
        let forced = self.job.constraint.as_mut().map_or_else(Vec::new, Constraint::forced);
        drafter.draft(context, &forced)
    }

    /// Sets how many tokens MTP has drafted of those that the last draft asked for.
    pub(super) fn set_mtp_len(&mut self, n: usize) {
        if let Some(drafter) = &mut self.drafter {
            drafter.set_mtp_len(n);
        }
    }

    /// Forgets the last draft, which was not evaluated.
    pub(super) fn discard_draft(&mut self) {
        if let Some(drafter) = &mut self.drafter {
            drafter.discard();
        }
    }

    /// Takes the logits after its token and after each draft of a step, and chooses tokens as
    /// long as they are the drafts. Returns why the answer ends, if it does.
    pub(super) fn take_step(
        &mut self,
        step: Evaluated<'_>,
        session: &mut Session,
        tokenizer: &Tokenizer,
        ctx: usize,
    ) -> Result<Option<Finish>, EngineError> {
        let Evaluated { draft, logits } = step;
        let Verified { chosen, n_accepted } =
            verify(session, draft, logits, &mut |logits, before| {
                self.choose_token(logits, before, tokenizer, ctx)
            })?;
        if let Some(drafter) = &mut self.drafter {
            if draft.is_empty() {
                drafter.discard();
            }
            drafter.accept(session, &draft[..n_accepted]);
        }
        Ok(match chosen {
            ControlFlow::Break(finish) => Some(finish),
            ControlFlow::Continue(token) => {
                self.phase = Phase::Decode(token);
                self.requested = None;
                if let Some(drafter) = &mut self.drafter {
                    drafter.push(token);
                }
                None
            }
        })
    }

    pub(super) fn speculation_stats(&self) -> SpeculationStats {
        self.drafter.as_ref().map_or_else(SpeculationStats::default, Drafter::stats)
    }

    fn is_biased(&self) -> bool {
        let Bias { tokens, frequency_penalty, presence_penalty } = &self.job.bias;
        !tokens.is_empty() || *frequency_penalty != 0.0 || *presence_penalty != 0.0
    }

    /// Chooses the token after those `before` and passes text that is certain to the listener.
    /// Breaks where the answer ends with the token.
    fn choose_token(
        &mut self,
        logits: &mut RowLogits,
        before: &[TokenId],
        tokenizer: &Tokenizer,
        ctx: usize,
    ) -> Result<ControlFlow<Finish, TokenId>, EngineError> {
        let token = match &mut *logits {
            RowLogits::All(all) if self.is_biased() || self.job.constraint.is_some() => {
                self.choose_biased(all, before)?
            }
            logits => choose(&mut self.sampler, self.job.no_calls.as_ref(), logits, before)?,
        };
        if let Some(no_calls) = &mut self.job.no_calls {
            no_calls.accept(token);
        }
        self.n_generated += 1;
        self.first_token.get_or_insert_with(Instant::now);
        if tokenizer.eos_ids().contains(&token) {
            return Ok(ControlFlow::Break(Finish::EndOfText));
        }
        let logprob = match (self.job.top_logprobs, logits) {
            (Some(n), RowLogits::All(logits)) => Some(TokenLogprob {
                token,
                logprob: sampler::logprob(logits, token)?,
                top: sampler::logprobs(logits, n)?,
            }),
            _ => None,
        };
        let special = match self.job.shown.contains(&token) {
            true => Special::Show,
            false => Special::Hide,
        };
        let is_complete = match &mut self.job.constraint {
            Some(constraint) => constraint.accept(token)?,
            None => false,
        };
        let piece = self.writer.decoder.push_as(token, special);
        let is_stopped = self.writer.push(&piece, logprob);
        self.send_text();
        Ok(match () {
            () if is_stopped => ControlFlow::Break(Finish::Stop),
            () if is_complete => ControlFlow::Break(Finish::EndOfText),
            () if self.job.max_tokens.is_some_and(|max| self.n_generated >= max) => {
                ControlFlow::Break(Finish::MaxTokens)
            }
            () if before.len() >= ctx => ControlFlow::Break(Finish::ContextFull),
            () => ControlFlow::Continue(token),
        })
    }

    fn choose_biased(
        &mut self,
        logits: &Logits,
        before: &[TokenId],
    ) -> Result<TokenId, EngineError> {
        let Bias { tokens, frequency_penalty, presence_penalty } = &self.job.bias;
        let mut logits = logits.clone();
        for (token, count) in &self.counts {
            logits.0[token.0 as usize] -= frequency_penalty * *count as f32 + presence_penalty;
        }
        for (token, bias) in tokens {
            if let Some(logit) = logits.0.get_mut(token.0 as usize) {
                *logit += bias;
            }
        }
        if let Some(constraint) = &mut self.job.constraint {
            constraint.restrict(&mut logits.0)?;
        }
        let sample = |logits: &[f32]| self.sampler.sample(logits, before);
        let token = without(&mut logits, self.job.no_calls.as_ref(), sample)?;
        *self.counts.entry(token).or_default() += 1;
        Ok(token)
    }

    fn send_text(&mut self) {
        let ready = std::mem::take(&mut self.writer.ready);
        if !ready.text.is_empty() || !ready.logprobs.is_empty() {
            (self.job.listener)(Event::Text(ready));
        }
    }

    /// Passes the held-back text and the end of the answer to the listener.
    pub(super) fn finish(mut self, finish: Finish) {
        let finish = match finish {
            Finish::Stop | Finish::Cancelled => finish,
            _ if self.writer.finish() => Finish::Stop,
            _ => finish,
        };
        self.send_text();
        let queued = self.started - self.arrived;
        let answer = Answer {
            finish,
            stop: self.writer.stops.matched().map(str::to_owned),
            n_prompt: self.job.prompt.tokens.len(),
            n_reused: self.n_reused,
            n_generated: self.n_generated,
            speculation: self.speculation_stats(),
            queued,
            first_token: self.first_token.map(|at| at - self.arrived),
            decode: self.first_token.map_or(Duration::ZERO, |at| at.elapsed()),
        };
        (self.job.listener)(Event::Done(answer));
    }
}

/// Decodes tokens to text, and holds back text that may be part of a stop text.
struct Writer {
    decoder: StreamDecoder,
    stops: StopMatcher,
    /// Text that is certain and not passed on yet.
    ready: TokenText,
    /// Tokens whose text is not certain yet, with the byte at which each ends.
    held: VecDeque<(usize, TokenLogprob)>,
    /// Bytes decoded so far.
    n_decoded: usize,
    /// How many of them are certain.
    n_certain: usize,
}

impl Writer {
    fn new(tokenizer: &Tokenizer, job: &Job) -> Writer {
        Writer {
            decoder: tokenizer.stream(Special::Hide),
            stops: StopMatcher::new(job.stop.clone()),
            ready: TokenText::default(),
            held: VecDeque::new(),
            n_decoded: 0,
            n_certain: 0,
        }
    }

    /// Appends decoded text. Returns whether it completes a stop text.
    fn push(&mut self, piece: &str, logprob: Option<TokenLogprob>) -> bool {
        self.n_decoded += piece.len();
        let end = self.n_decoded + self.decoder.n_held();
        self.held.extend(logprob.map(|logprob| (end, logprob)));
        let pushed = self.stops.push(piece);
        self.emit(&pushed.emit);
        pushed.stopped
    }

    fn emit(&mut self, text: &str) {
        self.n_certain += text.len();
        self.ready.text.push_str(text);
        while let Some((_, logprob)) = self.held.pop_front_if(|(end, _)| *end <= self.n_certain) {
            self.ready.logprobs.push(logprob);
        }
    }

    /// Ends the text. Returns whether the held-back text contains a stop text.
    fn finish(&mut self) -> bool {
        let piece = self.decoder.finish();
        if self.push(&piece, None) {
            return true;
        }
        let rest = self.stops.finish();
        self.emit(&rest.emit);
        if !rest.stopped {
            self.ready.logprobs.extend(self.held.drain(..).map(|(_, entry)| entry));
        }
        rest.stopped
    }
}
