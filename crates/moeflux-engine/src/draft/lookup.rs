//! Where the end of a text occurred before.

use std::collections::HashMap;

use moeflux_core::TokenId;

/// Tokens that places must have in common to be found.
const RUN: usize = 3;
/// Places with the same run that are compared, the latest first.
const MOST_PLACES: usize = 32;
/// Tokens in common beyond which nobody counts.
const LONGEST: usize = 64;

/// What a text was continued with where its end occurred before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// How many tokens before the continuation are those at the end.
    pub(super) n_common: usize,
    /// Where it begins.
    pub(super) start: usize,
}

/// A text that grows, and the places where each run of tokens in it ends, chained
/// from the latest to the first.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    text: Vec<TokenId>,
    /// Where each run ended last.
    ends: HashMap<[TokenId; RUN], usize>,
    /// By the end of a run, where it ended the time before.
    before: Vec<Option<usize>>,
}

impl Lookup {
    pub(super) fn push(&mut self, token: TokenId) {
        self.text.push(token);
    }

    pub(super) fn extend(&mut self, tokens: &[TokenId]) {
        self.text.extend_from_slice(tokens);
    }

    /// The place that has most in common with the end, and of several the latest.
    pub(super) fn find(&mut self) -> Option<Found> {
        self.learn();
        let last = self.text.len().checked_sub(1)?;
        let mut place = self.ends.get(&self.run(last)?).copied();
        let mut best: Option<Found> = None;
        for _ in 0..MOST_PLACES {
            let Some(end) = place else { break };
            let n_common = self.in_common(end, last);
            if best.as_ref().is_none_or(|it| it.n_common < n_common) {
                best = Some(Found { n_common, start: end + 1 });
            }
            if n_common == LONGEST {
                break;
            }
            place = self.before[end];
        }
        best
    }

    /// The place in the first `n` tokens where as many as the end has stand at their
    /// beginning, where these are too few to be found.
    pub(super) fn begun(&self, n_said: usize, n: usize) -> Option<Found> {
        let is_short = (1..RUN).contains(&n_said) && n_said < n;
        let said = &self.text[self.text.len() - n_said.min(self.text.len())..];
        let is_begun = is_short && self.text.starts_with(said);
        is_begun.then_some(Found { n_common: n_said, start: n_said })
    }

    /// `n` tokens from a place on; where the text ends before, it goes on with these.
    pub(super) fn continuation(&self, start: usize, n: usize) -> Vec<TokenId> {
        let mut tokens = Vec::with_capacity(n);
        for at in start..start + n {
            let token = self.text.get(at).copied();
            tokens.push(token.unwrap_or_else(|| tokens[at - self.text.len()]));
        }
        tokens
    }

    /// Notes all runs but the one at the end, which would find itself.
    fn learn(&mut self) {
        for end in self.before.len()..self.text.len().saturating_sub(1) {
            let run = self.run(end);
            self.before.push(run.and_then(|it| self.ends.insert(it, end)));
        }
    }

    fn run(&self, end: usize) -> Option<[TokenId; RUN]> {
        let start = (end + 1).checked_sub(RUN)?;
        self.text[start..=end].try_into().ok()
    }

    fn in_common(&self, one: usize, other: usize) -> usize {
        let backwards = |end: usize| self.text[..=end].iter().rev().take(LONGEST);
        backwards(one).zip(backwards(other)).take_while(|(a, b)| a == b).count()
    }
}
