//! One answer in progress: from logits to tokens and their text.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use moeflux_core::TokenId;
use moeflux_text::{Constraint, Special, Thoughts, Tokenizer};

use super::choose::{Ruled, choose, n_top, without};
use super::options::{Bias, DecodingOptions};
use super::values::{Finish, TokenLogprob, TokenText};
use super::writer::Writer;
use crate::drafting::drafter::{Draft, DraftContext, Drafter};
use crate::drafting::verify::{Verified, verify};
use crate::error::EngineError;
use crate::sampler::error::SamplerError;
use crate::sampler::{self, Sampler};
use crate::session::Session;
use crate::speculation::options::{Speculation, SpeculationStats};
use crate::step::{Logits, RowLogits};

/// The logits that a step gave for one answer.
pub(crate) struct Evaluated<'a> {
    /// Drafts that the step evaluated after the answer's token.
    pub(crate) draft: &'a [TokenId],
    /// After the token and after each draft.
    pub(crate) logits: &'a mut [RowLogits],
}

/// Decodes one answer: chooses its tokens, drafts those that may follow, and writes their text. It
/// evaluates nothing: its owner does.
pub(crate) struct Decoding {
    tokenizer: Arc<Tokenizer>,
    options: DecodingOptions,
    /// Positions of the session.
    ctx: usize,
    sampler: Sampler,
    drafter: Option<Drafter>,
    /// How often each token occurs in the answer.
    counts: HashMap<TokenId, u32>,
    writer: Writer,
    n_generated: usize,
    first_token: Option<Instant>,
}

impl Decoding {
    /// An answer to `prompt` in a session of `ctx` positions.
    ///
    /// # Errors
    /// Where the sampler's options are invalid.
    pub(crate) fn new(
        mut options: DecodingOptions,
        prompt: &[TokenId],
        speculation: Speculation,
        tokenizer: Arc<Tokenizer>,
        ctx: usize,
    ) -> Result<Decoding, SamplerError> {
        let room = ctx.saturating_sub(prompt.len());
        let most = options.max_tokens.map_or(room, |max| max.min(room));
        if let Some(thoughts) = &mut options.thoughts {
            thoughts.limit(most);
        }
        let mut decoding = Decoding {
            sampler: Sampler::new(options.sampler.clone())?,
            drafter: Drafter::new(speculation, &options.expected, prompt),
            counts: HashMap::new(),
            writer: Writer::new(&tokenizer, options.stop.clone()),
            n_generated: 0,
            first_token: None,
            tokenizer,
            options,
            ctx,
        };
        decoding.end_thoughts();
        Ok(decoding)
    }

    /// Tokens chosen so far, an end-of-text token included.
    pub(crate) fn n_generated(&self) -> usize {
        self.n_generated
    }

    /// Tokens of thoughts chosen so far.
    pub(crate) fn n_thought(&self) -> usize {
        self.options.thoughts.as_ref().map_or(0, Thoughts::n_tokens)
    }

    /// Whether no token is wanted.
    pub(crate) fn is_empty(&self) -> bool {
        self.options.max_tokens == Some(0)
    }

    /// When the first token was chosen.
    pub(crate) fn first_token(&self) -> Option<Instant> {
        self.first_token
    }

    /// Tokens drafted and accepted.
    pub(crate) fn speculation_stats(&self) -> SpeculationStats {
        self.drafter.as_ref().map_or_else(SpeculationStats::default, Drafter::stats)
    }

    /// How many of the highest logits suffice to choose a token, and one after each token of a
    /// draft; `None` where all are needed.
    pub(crate) fn n_top(&self, draft: &[TokenId]) -> Option<usize> {
        let DecodingOptions { bias, constraint, top_logprobs, .. } = &self.options;
        let is_plain = bias.is_none() && constraint.is_none() && top_logprobs.is_none();
        n_top(self.sampler.n_top().filter(|_| is_plain), ruled(&self.options), draft)
    }

    /// Drafts tokens after the one that is evaluated next.
    pub(crate) fn draft(&mut self, context: &DraftContext<'_>) -> Draft {
        let Some(drafter) = &mut self.drafter else { return Draft::Tokens(Vec::new()) };
        let DecodingOptions { constraint, thoughts, .. } = &mut self.options;
        let mut forced: Vec<TokenId> = thoughts.iter().flat_map(Thoughts::forced).collect();
        if forced.is_empty() {
            forced = constraint.as_mut().map_or_else(Vec::new, Constraint::forced);
        }
        drafter.draft(context, &forced)
    }

    /// Sets how many tokens MTP has drafted of those that the last draft asked for.
    pub(crate) fn set_mtp_len(&mut self, n: usize) {
        if let Some(drafter) = &mut self.drafter {
            drafter.set_mtp_len(n);
        }
    }

    /// Forgets the last draft, which was not evaluated.
    pub(crate) fn discard_draft(&mut self) {
        if let Some(drafter) = &mut self.drafter {
            drafter.discard();
        }
    }

    /// Takes the logits after a token and after each draft of a step, and chooses tokens as long as
    /// they are the drafts. Passes the text that becomes certain with each to `emit`. Returns the token
    /// that is evaluated next, or why the answer ends.
    ///
    /// # Errors
    /// Where no token can be chosen, or the session cannot be rolled back.
    pub(crate) fn take_step(
        &mut self,
        step: Evaluated<'_>,
        session: &mut Session,
        emit: &mut dyn FnMut(TokenText),
    ) -> Result<ControlFlow<Finish, TokenId>, EngineError> {
        let Evaluated { draft, logits } = step;
        let Verified { chosen, n_accepted } =
            verify(session, draft, logits, &mut |logits, before| {
                let chosen = self.choose(logits, before)?;
                self.emit(emit);
                Ok(chosen)
            })?;
        if let Some(drafter) = &mut self.drafter {
            if draft.is_empty() {
                drafter.discard();
            }
            drafter.accept(session, &draft[..n_accepted]);
            if let ControlFlow::Continue(token) = chosen {
                drafter.push(token);
            }
        }
        Ok(chosen)
    }

    /// Ends the answer: passes text that was held back to `emit`. Returns why the answer ended, which
    /// may be a stop text at its very end.
    pub(crate) fn finish(&mut self, finish: Finish, emit: &mut dyn FnMut(TokenText)) -> Finish {
        let finish = match finish {
            Finish::Stop | Finish::Cancelled => finish,
            _ if self.writer.finish() => Finish::Stop,
            _ => finish,
        };
        self.emit(emit);
        finish
    }

    fn emit(&mut self, emit: &mut dyn FnMut(TokenText)) {
        let ready = self.writer.take();
        if !ready.is_empty() {
            emit(ready);
        }
    }

    /// The stop text that ended the answer.
    pub(crate) fn stopped_by(&self) -> Option<&str> {
        self.writer.stopped_by()
    }

    /// Chooses the token after those `before`. Breaks where the answer ends with the token.
    fn choose(
        &mut self,
        logits: &mut RowLogits,
        before: &[TokenId],
    ) -> Result<ControlFlow<Finish, TokenId>, EngineError> {
        let forced = self.options.thoughts.iter().flat_map(Thoughts::forced).next();
        let token = match forced {
            Some(token) => {
                *self.counts.entry(token).or_default() += 1;
                token
            }
            None => self.token(logits, before)?,
        };
        self.n_generated += 1;
        self.first_token.get_or_insert_with(Instant::now);
        if self.tokenizer.eos_ids().contains(&token) {
            if self.options.reports_end {
                let logprob = self.logprob(logits, token)?;
                self.writer.push_end(logprob);
            }
            return Ok(ControlFlow::Break(Finish::EndOfText));
        }
        let logprob = self.logprob(logits, token)?;
        let DecodingOptions { no_calls, constraint, thoughts, shown, max_tokens, .. } =
            &mut self.options;
        if let Some(no_calls) = no_calls {
            no_calls.accept(token);
        }
        if let Some(thoughts) = thoughts {
            thoughts.accept(token, &self.tokenizer);
        }
        let is_complete = match constraint {
            Some(constraint) => constraint.accept(token)?,
            None => false,
        };
        let special = if shown.contains(&token) { Special::Show } else { Special::Hide };
        let max_tokens = *max_tokens;
        let is_stopped = self.writer.push(token, special, logprob);
        self.end_thoughts();
        Ok(if is_stopped {
            ControlFlow::Break(Finish::Stop)
        } else if is_complete {
            ControlFlow::Break(Finish::EndOfText)
        } else if max_tokens.is_some_and(|max| self.n_generated >= max) {
            ControlFlow::Break(Finish::MaxTokens)
        } else if before.len() >= self.ctx {
            ControlFlow::Break(Finish::ContextFull)
        } else {
            ControlFlow::Continue(token)
        })
    }

    /// Lets thoughts end here that have had their tokens.
    fn end_thoughts(&mut self) {
        let DecodingOptions { thoughts, constraint, .. } = &mut self.options;
        let Some(thoughts) = thoughts else { return };
        thoughts.end_if_spent(self.writer.is_whole(), |tokens| {
            constraint.as_mut().is_none_or(|constraint| constraint.takes(tokens))
        });
    }

    fn token(
        &mut self,
        logits: &mut RowLogits,
        before: &[TokenId],
    ) -> Result<TokenId, EngineError> {
        let DecodingOptions { bias, constraint, .. } = &self.options;
        match logits {
            RowLogits::All(all) if !bias.is_none() || constraint.is_some() => {
                self.biased_token(all, before)
            }
            logits => Ok(choose(&mut self.sampler, ruled(&self.options), logits, before)?),
        }
    }

    fn biased_token(
        &mut self,
        logits: &Logits,
        before: &[TokenId],
    ) -> Result<TokenId, EngineError> {
        let DecodingOptions { bias, constraint, .. } = &mut self.options;
        let Bias { tokens, frequency_penalty, presence_penalty } = bias;
        let mut logits = logits.clone();
        for (token, count) in &self.counts {
            logits.0[token.0 as usize] -= *frequency_penalty * *count as f32 + *presence_penalty;
        }
        for (token, bias) in tokens.iter() {
            if let Some(logit) = logits.0.get_mut(token.0 as usize) {
                *logit += *bias;
            }
        }
        if let Some(constraint) = constraint {
            constraint.restrict(&mut logits.0)?;
        }
        let sample = |logits: &[f32]| self.sampler.sample(logits, before);
        let token = without(&mut logits, ruled(&self.options), sample)?;
        *self.counts.entry(token).or_default() += 1;
        Ok(token)
    }

    /// What is reported of a token that was chosen.
    fn logprob(
        &self,
        logits: &mut RowLogits,
        token: TokenId,
    ) -> Result<Option<TokenLogprob>, EngineError> {
        let (Some(n), RowLogits::All(logits)) = (self.options.top_logprobs, logits) else {
            return Ok(None);
        };
        let mut one = TokenLogprob::of(&logits.0, token, n)?;
        if let Some(no_calls) = &self.options.no_calls {
            let ruled = Ruled::by_calls(Some(no_calls));
            let logprob = without(logits, ruled, |logits| sampler::logprob(logits, token))?;
            one.logprob_without_calls = logprob;
        }
        Ok(Some(one))
    }
}

/// What rules out tokens of an answer.
fn ruled(options: &DecodingOptions) -> Ruled<'_> {
    let DecodingOptions { no_calls, thoughts, .. } = options;
    Ruled { no_calls: no_calls.as_ref(), thoughts: thoughts.as_ref() }
}
