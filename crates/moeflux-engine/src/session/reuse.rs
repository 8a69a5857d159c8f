//! Reading a whole conversation, of which as much as possible is known already.

use moeflux_core::TokenId;

use super::{Keep, Logits, Session, copy_keys_and_values, write_states};
use crate::error::EngineError;
use crate::snapshot::{PrefixStore, Stored};

/// A whole conversation, and where later ones may part from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prompt<'a> {
    /// All of its tokens.
    pub tokens: &'a [TokenId],
    /// Positions that will be gone back to, such as the end of what the next
    /// turn's prompt begins with. Models with recurrent layers keep checkpoints
    /// there; others need none.
    pub marks: &'a [usize],
}

impl<'a> From<&'a [TokenId]> for Prompt<'a> {
    fn from(tokens: &'a [TokenId]) -> Prompt<'a> {
        Prompt { tokens, marks: &[] }
    }
}

/// A prompt that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// What may come next.
    pub logits: Logits,
    /// Tokens that needed no evaluation.
    pub n_reused: usize,
}

impl Session {
    /// Makes `prompt` what the session holds, evaluating only what is not
    /// known: the session's own tokens are kept as far as they agree, or those
    /// of a stored snapshot where these go further. The last token is always
    /// evaluated. `progress` learns after each chunk how many are done, reused
    /// ones included.
    ///
    /// # Errors
    /// As [`Session::eval_prompt`].
    pub fn eval_conversation(
        &mut self,
        prompt: Prompt<'_>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Read, EngineError> {
        self.check_prompt(prompt.tokens)?;
        let n_reused = self.reuse(prompt.tokens)?;
        let mut marks = prompt.marks.to_vec();
        marks.sort_unstable();
        let rest = &prompt.tokens[n_reused..];
        let logits = self.eval_marked(rest, &marks, &mut |n| progress(n_reused + n))?;
        Ok(Read { logits, n_reused })
    }

    /// Whether a session can hold these tokens, from its beginning.
    pub(crate) fn check_prompt(&self, tokens: &[TokenId]) -> Result<(), EngineError> {
        self.check(tokens, 0)
    }

    /// Takes over the longest prefix of `tokens` that another session holds,
    /// where that saves more than `n_known` tokens, and gives its length.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn adopt(
        &mut self,
        other: &mut Session,
        tokens: &[TokenId],
        n_known: usize,
    ) -> Result<usize, EngineError> {
        let end = other.own_prefix(tokens, tokens.len().saturating_sub(1)).min(other.n_cached);
        let engine = self.engine.clone();
        let is_recurrent = engine.shape().is_recurrent();
        let states = if is_recurrent { other.checkpoints.get(end) } else { None };
        if end <= n_known || (is_recurrent && states.is_none()) {
            return Ok(n_known);
        }
        let core = &mut *engine.core();
        other.settle(core)?;
        self.empty(core);
        self.or_empty(core, |core, sequence| {
            copy_keys_and_values(&engine, core, other.sequence, sequence, end)?;
            states.iter().try_for_each(|it| write_states(&engine, core, sequence, it))
        })?;
        if let Some(states) = states {
            self.checkpoints.insert(end, states, Keep::Asked);
        }
        self.tokens.extend_from_slice(&tokens[..end]);
        self.n_cached = end;
        self.trail.iter_mut().for_each(|it| it.resume_at(end));
        Ok(end)
    }

    /// Goes to the end of the longest prefix of `tokens` that needs no
    /// evaluation, and gives its length, which is less than all.
    ///
    /// # Errors
    /// None of damaged snapshots, which are removed and listed in
    /// [`Engine::take_warnings`](crate::Engine::take_warnings); the device's.
    pub fn reuse(&mut self, tokens: &[TokenId]) -> Result<usize, EngineError> {
        let limit = tokens.len().saturating_sub(1);
        let own = self.own_prefix(tokens, limit);
        let engine = self.engine.clone();
        if let Some(store) = engine.prompt_cache() {
            for stored in store.candidates(&engine, tokens, limit) {
                if !is_worth_reading(&stored, own, engine.plan().bytes_per_token) {
                    continue;
                }
                if self.load_stored(store, &stored)? {
                    return Ok(stored.n_reusable);
                }
            }
        }
        if own < self.position() {
            self.go_back(own);
        }
        Ok(own)
    }

    /// How much of `tokens` the session holds and can go back to.
    pub(crate) fn own_prefix(&self, tokens: &[TokenId], limit: usize) -> usize {
        if self.n_unknown > 0 {
            return 0;
        }
        let equal = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let n_common = equal.min(limit);
        if n_common == self.position() { n_common } else { self.nearest(n_common) }
    }

    /// Whether the snapshot could be used; a damaged one is removed.
    fn load_stored(&mut self, store: &PrefixStore, stored: &Stored) -> Result<bool, EngineError> {
        match self.load_until(&stored.path, Some(stored.n_reusable)) {
            Ok(()) => {
                store.touch(stored);
                Ok(true)
            }
            Err(EngineError::Snapshot(err)) => {
                store.discard(stored, &err);
                Ok(false)
            }
            Err(err) => Err(err),
        }
    }
}

/// Reading a file should be less work than evaluating what it holds.
fn is_worth_reading(stored: &Stored, n_known: usize, bytes_per_token: u64) -> bool {
    let n_gained = stored.n_reusable.saturating_sub(n_known) as u64;
    n_gained > 0 && n_gained.saturating_mul(bytes_per_token) >= stored.n_bytes
}
