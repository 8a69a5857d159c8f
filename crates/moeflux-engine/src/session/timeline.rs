//! The tokens of a session, and how many of its positions the caches hold.

use std::ops::Range;

use moeflux_core::TokenId;

/// The tokens of a session by position, and how many of the first positions the device's caches
/// hold.
///
/// Invariant: `n_cached` is at most [`position`](Timeline::position). It is less after a step
/// that failed half-way and after rejected drafts of a model with recurrent layers: the tokens
/// in between are pending, and the next step evaluates them first.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    /// Positions at the beginning whose tokens are not known.
    n_unknown: usize,
    /// The tokens of the positions after those.
    tokens: Vec<TokenId>,
    n_cached: usize,
}

impl Timeline {
    /// A timeline whose caches hold all of it.
    pub(super) fn cached(n_unknown: usize, tokens: Vec<TokenId>) -> Timeline {
        let n_cached = n_unknown + tokens.len();
        Timeline { n_unknown, tokens, n_cached }
    }

    pub(crate) fn n_unknown(&self) -> usize {
        self.n_unknown
    }

    pub(crate) fn n_cached(&self) -> usize {
        self.n_cached
    }

    /// The known tokens, those of the first `n_unknown` positions left out.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The position of the next token.
    pub(crate) fn position(&self) -> usize {
        self.n_unknown + self.tokens.len()
    }

    /// The tokens of some positions, which are known.
    pub(crate) fn tokens_at(&self, positions: Range<usize>) -> &[TokenId] {
        &self.tokens[positions.start - self.n_unknown..positions.end - self.n_unknown]
    }

    /// The known ones of the last `n` tokens before a position.
    pub(crate) fn tokens_before(&self, position: usize, n: usize) -> &[TokenId] {
        let end = position - self.n_unknown;
        &self.tokens[end.saturating_sub(n)..end]
    }

    /// The tokens that the caches do not hold.
    pub(super) fn pending(&self) -> &[TokenId] {
        self.tokens_at(self.n_cached..self.position())
    }

    /// Records that a step has put `tokens` into the caches: the pending ones first, then those
    /// that continue the timeline.
    pub(super) fn extend_cached(&mut self, tokens: &[TokenId]) {
        let n_pending = tokens.len().min(self.position() - self.n_cached);
        self.tokens.extend_from_slice(&tokens[n_pending..]);
        self.n_cached += tokens.len();
    }

    /// Records that the caches hold no more than the first `n_cached` positions.
    pub(crate) fn truncate_cached(&mut self, n_cached: usize) {
        self.n_cached = n_cached;
    }

    /// Forgets the tokens from `position` on. The caller truncates the caches.
    pub(crate) fn truncate(&mut self, position: usize) {
        self.n_unknown = self.n_unknown.min(position);
        self.tokens.truncate(position - self.n_unknown);
    }
}
