//! The tokens of a session, and how many of its positions the caches hold.

use std::borrow::Cow;
use std::ops::Range;

use moeflux_backend::{RotaryPositions, RowPosition};
use moeflux_core::TokenId;

use super::input::InputRow;
use super::pictures::Pictures;

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
    /// The pictures whose rows are among the tokens or will follow them.
    pictures: Pictures,
    /// For each row from the first on whose rotary position is not its own: where it stands.
    placed: Vec<Place>,
    /// The first row that a caller [gave](Place::is_given).
    given_from: Option<usize>,
}

/// Where a row stands that is not at its own position, or follows one that is not.
#[derive(Clone, Copy, Debug)]
struct Place {
    position: RowPosition,
    /// The position after the greatest one up to this row.
    next: u32,
    /// Whether it is an embedding of no picture, or has a position that does not follow from the rows
    /// before it: its token does not say what the caches hold.
    is_given: bool,
}

/// A row and the position by which rotations turn it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedRow {
    pub(crate) token: TokenId,
    pub(crate) position: RowPosition,
    /// Whether it is an embedding that a caller gave.
    pub(crate) is_embedded: bool,
}

impl PlacedRow {
    /// Whether it is a token at its own position, `at`.
    pub(crate) fn is_plain(self, at: usize) -> bool {
        let own = u32::try_from(at).map(RowPosition::text);
        !self.is_embedded && own == Ok(self.position)
    }
}

impl Timeline {
    /// A timeline whose caches hold all of it.
    pub(crate) fn cached(n_unknown: usize, tokens: Vec<TokenId>, pictures: Pictures) -> Timeline {
        let mut timeline =
            Timeline { n_unknown, n_cached: n_unknown, pictures, ..Timeline::default() };
        timeline.extend_cached(&tokens);
        timeline
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

    /// The pictures of the session and of what follows.
    pub(crate) fn pictures(&self) -> &Pictures {
        &self.pictures
    }

    /// Names the pictures of a prompt that this session begins, all of them.
    pub(crate) fn expect(&mut self, pictures: Pictures) {
        self.pictures = pictures;
    }

    /// The position of the next token.
    pub(crate) fn position(&self) -> usize {
        self.n_unknown + self.tokens.len()
    }

    /// How many rows at the beginning are what their tokens say.
    pub(crate) fn n_told(&self) -> usize {
        self.given_from.unwrap_or(self.position())
    }

    /// The rotary position of a token at `position`, which is at most the end.
    fn next(&self, position: usize) -> u32 {
        let n_plain = self.position() - self.placed.len();
        match position.checked_sub(n_plain + 1) {
            Some(before) => self.placed[before].next,
            None => u32::try_from(position).expect("a position of 32 bits"),
        }
    }

    /// The rotary positions of rows of the timeline, of such as follow it, or of both.
    pub(crate) fn rotary(&self, rows: Range<usize>) -> RotaryPositions {
        let from = rows.start.min(self.position());
        let mut next = self.next(from);
        let has_parts = self.pictures.iter().any(|picture| picture.shape.is_some());
        if !has_parts || !self.pictures.overlap(&(from..rows.end)) {
            return RotaryPositions::Shifted(next as isize - from as isize);
        }
        // Where the picture begins whose rows these are.
        let mut base = next;
        let position_of = |at: usize| {
            let picture = self.pictures.at(at);
            match picture {
                Some(picture) if picture.start < from => base = self.next(picture.start),
                Some(picture) if picture.start == at => base = next,
                Some(_) | None => {}
            }
            let position = picture.and_then(|picture| picture.position(at - picture.start, base));
            let position = position.unwrap_or(RowPosition::text(next));
            next = next.max(position.greatest() + 1);
            position
        };
        let positions: Vec<RowPosition> = (from..rows.end).map(position_of).collect();
        RotaryPositions::Each(positions[rows.start - from..].into())
    }

    /// The rotary positions of the last `n` rows that the caches hold; none where these go by their own.
    pub(crate) fn rotary_before(&self, n: usize) -> Vec<RowPosition> {
        let n_plain = self.position() - self.placed.len();
        if self.n_cached <= n_plain {
            return Vec::new();
        }
        let own = |at| RowPosition::text(u32::try_from(at).expect("a position of 32 bits"));
        let of = |at: usize| {
            at.checked_sub(n_plain).map_or_else(|| own(at), |nth| self.placed[nth].position)
        };
        (self.n_cached.saturating_sub(n)..self.n_cached).map(of).collect()
    }

    /// Whether no row from `from` on was given, so that all can be evaluated again.
    pub(crate) fn can_be_pending(&self, from: usize) -> bool {
        let n_plain = self.position() - self.placed.len();
        !self.placed.iter().skip(from.saturating_sub(n_plain)).any(|place| place.is_given)
    }

    /// Where rows stand that continue the timeline.
    pub(crate) fn place(&self, rows: &[InputRow<'_>]) -> Vec<PlacedRow> {
        let mut next = self.next(self.position());
        let place = |row: &InputRow<'_>| {
            let position = row.position.unwrap_or(RowPosition::text(next));
            next = next.max(position.greatest() + 1);
            PlacedRow { token: row.listed(), position, is_embedded: row.is_embedding() }
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

    /// Tokens of the vocabulary for those of some positions, which are known.
    pub(crate) fn vocabulary_at(&self, positions: Range<usize>) -> Cow<'_, [TokenId]> {
        self.pictures.in_vocabulary(positions.start, self.tokens_at(positions))
    }

    /// Tokens of the vocabulary for the known ones of the last `n` before a position.
    pub(crate) fn vocabulary_before(&self, position: usize, n: usize) -> Vec<TokenId> {
        let first = position.saturating_sub(n).max(self.n_unknown);
        self.vocabulary_at(first..position.max(first)).into_owned()
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
        self.tokens.reserve(new.len());
        for token in new {
            let at = self.position();
            let picture = self.pictures.at(at);
            let position = picture
                .and_then(|picture| picture.position(at - picture.start, self.next(picture.start)));
            let position = position.unwrap_or(RowPosition::text(self.next(at)));
            self.push(PlacedRow { token: *token, position, is_embedded: false }, false);
        }
        self.n_cached += tokens.len();
    }

    /// Records that a step has put rows into the caches that continue the timeline.
    pub(crate) fn extend_placed(&mut self, rows: &[PlacedRow]) {
        for row in rows {
            let at = self.position();
            let is_given = row.is_embedded || row.position != RowPosition::text(self.next(at));
            if is_given {
                self.given_from.get_or_insert(at);
            }
            self.push(*row, is_given);
        }
        self.n_cached += rows.len();
    }

    fn push(&mut self, row: PlacedRow, is_given: bool) {
        let (at, position) = (self.position(), row.position);
        if !self.placed.is_empty() || !row.is_plain(at) {
            let next = self.next(at).max(position.greatest() + 1);
            self.placed.push(Place { position, next, is_given });
        }
        self.tokens.push(row.token);
    }

    /// Records that the caches hold no more than the first `n_cached` positions.
    pub(crate) fn truncate_cached(&mut self, n_cached: usize) {
        self.n_cached = n_cached;
    }

    /// Forgets the tokens from `position` on. The caller truncates the caches.
    pub(crate) fn truncate(&mut self, position: usize) {
        let n_plain = self.position() - self.placed.len();
        self.placed.truncate(position.saturating_sub(n_plain));
        self.given_from = self.given_from.filter(|from| *from < position);
        self.n_unknown = self.n_unknown.min(position);
        self.tokens.truncate(position - self.n_unknown);
    }
}
