//! Prompt lookup: finds where the end of a text occurred before.

use std::collections::HashMap;

use moeflux_core::TokenId;

/// The number of tokens that a place must have in common with the end of the text.
const RUN: usize = 3;
/// How many places with the same run are compared, the latest first.
const MOST_PLACES: usize = 32;
/// Tokens in common are counted up to this number.
const LONGEST: usize = 64;

/// A place where the end of the text occurred before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The number of tokens that it has in common with the end of the text.
    pub(super) n_common: usize,
    /// The index of the token after them, where the continuation begins.
    pub(super) start: usize,
}

/// A growing text, indexed by its runs of [`RUN`] tokens. The places where a run ends are
/// chained from the latest to the first.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    text: Vec<TokenId>,
    /// The last token of the latest place of each run.
    ends: HashMap<[TokenId; RUN], usize>,
    /// For the last token of a run, the last token of the place before.
    before: Vec<Option<usize>>,
}

impl Lookup {
    pub(super) fn push(&mut self, token: TokenId) {
        self.text.push(token);
    }

    pub(super) fn extend(&mut self, tokens: &[TokenId]) {
        self.text.extend_from_slice(tokens);
    }

    /// The place that has the most tokens in common with the end; of several the latest.
    pub(super) fn find(&mut self) -> Option<Found> {
        self.index();
        let last = self.text.len().checked_sub(1)?;
        let mut place = self.ends.get(&self.run(last)?).copied();
        let mut best: Option<Found> = None;
        for _ in 0..MOST_PLACES {
            let Some(end) = place else { break };
            let n_common = self.in_common(end, last);
            if best.as_ref().is_none_or(|best| best.n_common < n_common) {
                best = Some(Found { n_common, start: end + 1 });
            }
            if n_common == LONGEST {
                break;
            }
            place = self.before[end];
        }
        best
    }

    /// The place after the first `n_answered` tokens of the text, if the text ends with the same
    /// tokens and they are fewer than [`Lookup::find`] needs. The first `n` tokens are the
    /// expected text, the last `n_answered` the answer.
    pub(super) fn find_at_start(&self, n_answered: usize, n: usize) -> Option<Found> {
        let is_short = (1..RUN).contains(&n_answered) && n_answered < n;
        let answer = &self.text[self.text.len() - n_answered.min(self.text.len())..];
        let is_repeated = is_short && self.text.starts_with(answer);
        is_repeated.then_some(Found { n_common: n_answered, start: n_answered })
    }

    /// How many tokens from a place on can be copied: `most`, or those before a picture.
    pub(super) fn n_copied(&self, start: usize, most: usize) -> usize {
        let from_there = self.text.get(start..).unwrap_or_default();
        let picture = from_there.iter().take(most).position(|token| token.is_picture());
        picture.unwrap_or(most)
    }

    /// Copies `n` tokens from a place on. Where the text ends before, the copy continues with its
    /// own first tokens.
    pub(super) fn continuation(&self, start: usize, n: usize) -> Vec<TokenId> {
        let mut tokens = Vec::with_capacity(n);
        for at in start..start + n {
            let token = self.text.get(at).copied();
            tokens.push(token.unwrap_or_else(|| tokens[at - self.text.len()]));
        }
        tokens
    }

    /// Indexes all runs but the one at the end, which would find itself.
    fn index(&mut self) {
        for end in self.before.len()..self.text.len().saturating_sub(1) {
            let run = self.run(end);
            self.before.push(run.and_then(|run| self.ends.insert(run, end)));
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
