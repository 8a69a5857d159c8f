//! One answer while it is made: from logits to text that is certain.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use moeflux_core::TokenId;
use moeflux_text::{Constraint, Special, StopMatcher, StreamDecoder, Tokenizer};

use super::job::{Answer, Bias, Event, Job, TokenLogprob, TokenText};
use crate::draft::{self, DraftCounts, Drafter, Drafts, Guess, Occasion};
use crate::error::EngineError;
use crate::generate::Finish;
use crate::sampler::{self, Sampler};
use crate::session::{Next, Session};

/// A job that has a session.
pub(super) struct Running {
    pub(super) job: Job,
    pub(super) phase: Phase,
    sampler: Sampler,
    drafter: Option<Drafter>,
    /// How often the answer holds each token.
    counts: HashMap<TokenId, u32>,
    writer: Writer,
    pub(super) n_reused: usize,
    pub(super) n_generated: usize,
    arrived: Instant,
    pub(super) started: Instant,
    first_token: Option<Instant>,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// So many tokens of its prompt have been evaluated.
    Prompt(usize),
    /// This token of its answer has not.
    Decode(TokenId),
}

impl Running {
    pub(super) fn new(
        job: Job,
        sampler: Sampler,
        drafts: Drafts,
        tokenizer: &Tokenizer,
        n_reused: usize,
        arrived: Instant,
    ) -> Running {
        let writer = Writer::new(tokenizer, &job);
        let drafter = Drafter::new(drafts, &job.expected, &job.prompt.tokens);
        Running {
            job,
            phase: Phase::Prompt(n_reused),
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

    /// How many of the highest logits are all that it needs to know; `None` where it
    /// needs all.
    pub(super) fn n_leaders(&self) -> Option<usize> {
        let is_plain = !self.is_biased() && self.job.constraint.is_none();
        self.sampler.n_leaders().filter(|_| is_plain && self.job.top_logprobs.is_none())
    }

    /// What may follow the token that is evaluated next.
    pub(super) fn guess(&mut self, at: &Occasion<'_>) -> Guess {
        let Some(drafter) = &mut self.drafter else { return Guess::Known(Vec::new()) };
        let forced = self.job.constraint.as_mut().map_or_else(Vec::new, Constraint::forced);
        drafter.guess(at, &forced)
    }

    /// So many of the tokens were foreseen that its last guess asked for.
    pub(super) fn has_foreseen(&mut self, n: usize) {
        self.drafter.iter_mut().for_each(|it| it.has_foreseen(n));
    }

    /// The last guess was not evaluated.
    pub(super) fn forget_guess(&mut self) {
        self.drafter.iter_mut().for_each(Drafter::forget);
    }

    /// Goes on behind a step that evaluated its token and a guess: as [`advance`], as far
    /// as the guess is right.
    ///
    /// [`advance`]: Running::advance
    pub(super) fn follow(
        &mut self,
        (guess, next): (&[TokenId], &[Next]),
        session: &mut Session,
        tokenizer: &Tokenizer,
        ctx: usize,
    ) -> Result<Option<Finish>, EngineError> {
        let (chosen, n_right) = draft::follow(session, guess, next, &mut |next, before| {
            self.advance(next, before, tokenizer, ctx)
        })?;
        if let Some(drafter) = &mut self.drafter {
            if guess.is_empty() {
                drafter.forget();
            }
            if let Some(n) = drafter.judge(n_right) {
                session.learned().note_foreseen(n, n_right);
            }
            guess[..n_right].iter().for_each(|it| drafter.push(*it));
        }
        Ok(match chosen {
            ControlFlow::Break(finish) => Some(finish),
            ControlFlow::Continue(token) => {
                self.phase = Phase::Decode(token);
                if let Some(drafter) = &mut self.drafter {
                    drafter.push(token);
                }
                None
            }
        })
    }

    pub(super) fn draft_counts(&self) -> DraftCounts {
        self.drafter.as_ref().map_or_else(DraftCounts::default, Drafter::counts)
    }

    fn is_biased(&self) -> bool {
        let Bias { tokens, frequency_penalty, presence_penalty } = &self.job.bias;
        !tokens.is_empty() || *frequency_penalty != 0.0 || *presence_penalty != 0.0
    }

    /// Chooses a token behind those `before` and tells what text it makes certain.
    /// Breaks where the answer ends with it.
    fn advance(
        &mut self,
        next: &Next,
        before: &[TokenId],
        tokenizer: &Tokenizer,
        ctx: usize,
    ) -> Result<ControlFlow<Finish, TokenId>, EngineError> {
        let token = match next {
            Next::Leaders(leaders) => self.sampler.sample_leaders(leaders),
            Next::Logits(logits) => self.choose(logits, before)?,
        };
        self.n_generated += 1;
        self.first_token.get_or_insert_with(Instant::now);
        if tokenizer.eos_ids().contains(&token) {
            return Ok(ControlFlow::Break(Finish::EndOfText));
        }
        let logprob = match (self.job.top_logprobs, next) {
            (Some(n), Next::Logits(logits)) => Some(TokenLogprob {
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
        self.tell();
        Ok(match () {
            () if is_stopped => ControlFlow::Break(Finish::Stop),
            () if is_complete => ControlFlow::Break(Finish::EndOfText),
            () if self.job.max_tokens.is_some_and(|it| self.n_generated >= it) => {
                ControlFlow::Break(Finish::MaxTokens)
            }
            () if before.len() >= ctx => ControlFlow::Break(Finish::ContextFull),
            () => ControlFlow::Continue(token),
        })
    }

    fn choose(&mut self, logits: &[f32], before: &[TokenId]) -> Result<TokenId, EngineError> {
        if !self.is_biased() && self.job.constraint.is_none() {
            return Ok(self.sampler.sample(logits, before)?);
        }
        let Bias { tokens, frequency_penalty, presence_penalty } = &self.job.bias;
        let mut logits = logits.to_vec();
        for (token, count) in &self.counts {
            logits[token.0 as usize] -= frequency_penalty * *count as f32 + presence_penalty;
        }
        for (token, bias) in tokens {
            if let Some(logit) = logits.get_mut(token.0 as usize) {
                *logit += bias;
            }
        }
        if let Some(constraint) = &mut self.job.constraint {
            constraint.restrict(&mut logits)?;
        }
        let token = self.sampler.sample(&logits, before)?;
        *self.counts.entry(token).or_default() += 1;
        Ok(token)
    }

    fn tell(&mut self) {
        let ready = std::mem::take(&mut self.writer.ready);
        if !ready.text.is_empty() || !ready.logprobs.is_empty() {
            (self.job.listener)(Event::Text(ready));
        }
    }

    /// Tells what was held back, and that the answer has ended.
    pub(super) fn finish(mut self, finish: Finish) {
        let finish = match finish {
            Finish::Stop | Finish::Cancelled => finish,
            _ if self.writer.finish() => Finish::Stop,
            _ => finish,
        };
        self.tell();
        let queued = self.started - self.arrived;
        let answer = Answer {
            finish,
            stop: self.writer.stops.matched().map(str::to_owned),
            n_prompt: self.job.prompt.tokens.len(),
            n_reused: self.n_reused,
            n_generated: self.n_generated,
            drafts: self.draft_counts(),
            queued,
            first_token: self.first_token.map(|it| it - self.arrived),
            decode: self.first_token.map_or(Duration::ZERO, |it| it.elapsed()),
        };
        (self.job.listener)(Event::Done(answer));
    }
}

/// Tokens to text, without what stops it.
struct Writer {
    decoder: StreamDecoder,
    stops: StopMatcher,
    /// What has not been told yet.
    ready: TokenText,
    /// Tokens whose text is not certain yet, and where each ends in the text.
    held: VecDeque<(usize, TokenLogprob)>,
    /// Bytes decoded so far, and how many of them are certain.
    n_decoded: usize,
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

    /// Takes decoded text; whether a stop text was met.
    fn push(&mut self, piece: &str, logprob: Option<TokenLogprob>) -> bool {
        self.n_decoded += piece.len();
        let end = self.n_decoded + self.decoder.n_held();
        self.held.extend(logprob.map(|it| (end, it)));
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

    /// Ends the text; whether a stop text is complete in what was held back.
    fn finish(&mut self) -> bool {
        let piece = self.decoder.finish();
        if self.push(&piece, None) {
            return true;
        }
        let rest = self.stops.finish();
        self.emit(&rest.emit);
        if !rest.stopped {
            self.ready.logprobs.extend(self.held.drain(..).map(|(_, it)| it));
        }
        rest.stopped
    }
}
