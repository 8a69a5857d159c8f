//! The tokens of a session, and how many of its positions the caches hold.

use std::ops::Range;

use moeflux_backend::{RotaryPositions, RowPosition};
use moeflux_core::TokenId;

use super::input::{EMBEDDED, InputRow};

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
    /// For each row from the first on that is an embedding, or whose rotary position is not its
    /// own: the position after the greatest one up to that row.
    ///
    /// Models whose sessions have such rows never have pending tokens.
    placed: Vec<u32>,
}

/// A row and the position by which rotations turn it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedRow {
    /// [`EMBEDDED`] where the row is an embedding.
    pub(crate) token: TokenId,
    pub(crate) position: RowPosition,
}

impl PlacedRow {
    /// Whether it is a token at its own position, `at`.
    pub(crate) fn is_plain(self, at: usize) -> bool {
        let own = u32::try_from(at).map(RowPosition::text);
        self.token != EMBEDDED && own == Ok(self.position)
    }
}

impl Timeline {
    /// A timeline whose caches hold all of it.
    pub(crate) fn cached(n_unknown: usize, tokens: Vec<TokenId>) -> Timeline {
        let n_cached = n_unknown + tokens.len();
        Timeline { n_unknown, tokens, n_cached, placed: Vec::new() }
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

    /// How many rows at the beginning are tokens at their own positions.
    pub(crate) fn n_plain(&self) -> usize {
        self.position() - self.placed.len()
    }

    /// The rotary positions of tokens that continue the timeline.
    pub(crate) fn rotary(&self) -> RotaryPositions {
        match self.placed.last() {
            None => RotaryPositions::Shifted(0),
            Some(next) => RotaryPositions::Shifted(*next as isize - self.position() as isize),
        }
    }

    /// Where rows stand that continue the timeline.
    pub(crate) fn place(&self, rows: &[InputRow<'_>]) -> Vec<PlacedRow> {
        let next = self.placed.last().copied();
        let own = || u32::try_from(self.position()).expect("a position of 32 bits");
        let mut next = next.unwrap_or_else(own);
        let place = |row: &InputRow<'_>| {
            let position = row.position.unwrap_or(RowPosition::text(next));
            next = next.max(position.greatest() + 1);
            PlacedRow { token: row.listed(), position }
        };
        rows.iter().map(place).collect()
    }

    /// Whether tokens can be evaluated in place of rows that continue the timeline.
    pub(crate) fn are_plain(&self, rows: &[PlacedRow]) -> bool {
        self.placed.is_empty() && (self.position()..).zip(rows).all(|(at, row)| row.is_plain(at))
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
    pub(crate) fn pending(&self) -> &[TokenId] {
        self.tokens_at(self.n_cached..self.position())
    }

    /// Records that a step has put `tokens` into the caches: the pending ones first, then those
    /// that continue the timeline.
    pub(crate) fn extend_cached(&mut self, tokens: &[TokenId]) {
        let n_pending = tokens.len().min(self.position() - self.n_cached);
        let new = &tokens[n_pending..];
        if let Some(next) = self.placed.last().copied() {
            self.placed.extend((next + 1..).take(new.len()));
        }
        self.tokens.extend_from_slice(new);
        self.n_cached += tokens.len();
    }

    /// Records that a step has put rows into the caches that continue the timeline.
    pub(crate) fn extend_placed(&mut self, rows: &[PlacedRow]) {
        for row in rows {
            let at = self.position();
            if !self.placed.is_empty() || !row.is_plain(at) {
                let own = || u32::try_from(at).expect("a position of 32 bits");
                let next = self.placed.last().copied().unwrap_or_else(own);
                self.placed.push(next.max(row.position.greatest() + 1));
            }
            self.tokens.push(row.token);
        }
        self.n_cached += rows.len();
    }

    /// Records that the caches hold no more than the first `n_cached` positions.
    pub(crate) fn truncate_cached(&mut self, n_cached: usize) {
        self.n_cached = n_cached;
    }

    /// Forgets the tokens from `position` on. The caller truncates the caches.
    pub(crate) fn truncate(&mut self, position: usize) {
        self.placed.truncate(position.saturating_sub(self.n_plain()));
        self.n_unknown = self.n_unknown.min(position);
        self.tokens.truncate(position - self.n_unknown);
    }
}
