//! Prompts that begin with tokens that are evaluated already.

use moeflux_core::TokenId;

use super::cache_copy::{copy_keys_and_values, write_states};
use super::checks::check_prompt;
use super::eval::eval_with_checkpoints;
use super::evaluator::Evaluator;
use super::handle::Session;
use super::persist::take_over;
use crate::error::EngineError;
use crate::positions::checkpoints::Retention;
use crate::positions::pictures::{Pictures, PromptPicture};
use crate::positions::windows::WindowCuts;
use crate::snapshot::Found;
use crate::step::Logits;

/// A whole conversation, and where later ones may differ from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prompt<'a> {
    /// All tokens of it.
    pub tokens: &'a [TokenId],
    /// Positions to which a session will return, such as the end of the prefix that the prompt
    /// of the next turn shares. Sessions of models with recurrent layers make checkpoints there;
    /// others need none.
    pub checkpoints: &'a [usize],
    /// The pictures whose rows stand among the tokens, ascending.
    pub pictures: &'a [PromptPicture],
}

impl<'a> From<&'a [TokenId]> for Prompt<'a> {
    fn from(tokens: &'a [TokenId]) -> Prompt<'a> {
        Prompt { tokens, ..Prompt::default() }
    }
}

/// The result of evaluating a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// The logits after the last token.
    pub logits: Logits,
    /// Tokens that were not evaluated, because a session or the prefix cache had them.
    pub n_reused: usize,
}

impl Session {
    /// Makes `prompt` the contents of the session and evaluates only what is new. The longest
    /// common prefix with the session or with an entry of the prefix cache is reused. The last
    /// token is always evaluated. After each chunk, `progress` is called with the number of
    /// tokens done, reused ones included.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`].
    pub fn eval_conversation(
        &mut self,
        prompt: Prompt<'_>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Read, EngineError> {
        check_prompt(&self.engine, prompt.tokens, prompt.pictures)?;
        let n_reused = self.match_prefix(prompt.tokens)?;
        self.state.timeline.expect(Pictures::of(prompt.pictures, self.engine.shape()));
        let mut checkpoints = prompt.checkpoints.to_vec();
        checkpoints.sort_unstable();
        let rest = &prompt.tokens[n_reused..];
        let progress = &mut |n| progress(n_reused + n);
        let logits = eval_with_checkpoints(self, rest, &checkpoints, progress)?;
        Ok(Read { logits, n_reused })
    }

    /// How many of the first `tokens`, without the last, another session can copy from this one.
    pub(crate) fn copyable_prefix(&self, tokens: &[TokenId]) -> usize {
        let limit = reusable_end(tokens);
        let end = self.state.common_prefix(tokens, limit).min(self.state.timeline.n_cached());
        if self.engine.shape().is_recurrent() { self.state.checkpoints.nearest(end) } else { end }
    }

    /// Copies the longest prefix of `tokens` that another session holds into this one, if it is
    /// longer than the first `n_known` tokens, which this session holds. Returns the length of
    /// the prefix that this session holds then.
    ///
    /// # Errors
    /// Where the device fails; the session is empty then.
    pub(crate) fn copy_prefix(
        &mut self,
        other: &mut Session,
        tokens: &[TokenId],
        n_known: usize,
    ) -> Result<usize, EngineError> {
        let end = other.copyable_prefix(tokens);
        let Session { engine, state, .. } = self;
        let is_recurrent = engine.shape().is_recurrent();
        let states = if is_recurrent { other.state.checkpoints.get(end) } else { None };
        if end <= n_known || (is_recurrent && states.is_none()) {
            return Ok(n_known);
        }
        let core = &mut *engine.core();
        Evaluator { engine, core, state: &mut other.state }.flush_mtp()?;
        let (from, to) = (other.state.sequence, state.sequence);
        let mut evaluator = Evaluator { engine, core, state };
        evaluator.empty();
        evaluator.fill_or_clear(|core| {
            copy_keys_and_values(engine, core, from, to, end)?;
            match &states {
                Some(states) => write_states(engine, core, to, states),
                None => Ok(()),
            }
        })?;
        if let Some(states) = states {
            state.checkpoints.insert(end, states, Retention::Requested);
        }
        state.timeline.expect(other.state.timeline.pictures().until(end));
        state.timeline.extend_cached(&tokens[..end]);
        state.windows = WindowCuts::filled(engine.shape().window(), &[end]);
        state.speculation.resume_at(end);
        Ok(end)
    }

    /// Ends the session with the longest prefix of `tokens`, without the last, that it holds or
    /// that the engine's prefix cache holds, and returns the length of that prefix.
    ///
    /// Damaged entries of the prefix cache are removed and listed in
    /// [`Engine::take_warnings`](crate::Engine::take_warnings).
    ///
    /// # Errors
    /// Where the device fails.
    pub fn match_prefix(&mut self, tokens: &[TokenId]) -> Result<usize, EngineError> {
        let prefix = self.known_prefix(tokens, 0);
        self.go_on_from(prefix)
    }

    /// What this session and the engine's prefix cache hold of `tokens`, without the last, of which
    /// the caller has `n_elsewhere` in another place.
    pub(crate) fn known_prefix(&self, tokens: &[TokenId], n_elsewhere: usize) -> KnownPrefix {
        let limit = reusable_end(tokens);
        let own = self.state.common_prefix(tokens, limit);
        let best = own.max(n_elsewhere);
        let cache = self.engine.prefix_cache();
        let mut found = cache.map(|cache| cache.candidates(tokens, limit)).unwrap_or_default();
        let bytes_per_token = self.engine.plan().bytes_per_token;
        found.retain(|found| is_worth_reading(found, best, bytes_per_token));
        KnownPrefix { own, found }
    }

    /// Ends the session with a prefix, and returns its length.
    ///
    /// # Errors
    /// Where the device fails.
    pub(crate) fn go_on_from(&mut self, prefix: KnownPrefix) -> Result<usize, EngineError> {
        let KnownPrefix { own, found } = prefix;
        let engine = self.engine.clone();
        for found in found {
            let read = engine.prefix_cache().map(|cache| cache.read(&engine, &found));
            if let Some(loaded) = read.transpose()?.flatten() {
                take_over(self, loaded);
                self.stored = found.conversation();
                return Ok(found.n_reusable);
            }
        }
        if own < self.turn.end {
            // What comes is another conversation, or another turn of this one.
            self.stored = None;
        }
        let Session { engine, state, .. } = self;
        if own < state.position() {
            Evaluator { engine, core: &mut engine.core(), state }.go_back(own);
        }
        Ok(own)
    }
}

/// How many of the first tokens of a prompt need not be evaluated where all are known: not the last, whose
/// logits are wanted, nor a part of the picture that has it.
pub(crate) fn reusable_end(tokens: &[TokenId]) -> usize {
    let n_last = tokens.iter().rev().take_while(|token| token.is_picture()).count().max(1);
    tokens.len().saturating_sub(n_last)
}

/// What is known of a prompt.
#[derive(Debug)]
pub(crate) struct KnownPrefix {
    /// Tokens that the session holds.
    pub(super) own: usize,
    /// What the prefix cache holds that is longer, the longest first.
    pub(super) found: Vec<Found>,
}

/// Whether an entry is small enough for the tokens that it saves: not larger than their caches.
fn is_worth_reading(found: &Found, n_known: usize, bytes_per_token: u64) -> bool {
    let n_gained = found.n_reusable.saturating_sub(n_known) as u64;
    n_gained > 0 && n_gained.saturating_mul(bytes_per_token) >= found.n_bytes
}
