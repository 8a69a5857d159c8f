//! Which sequence and positions the rows of a batch have.

use std::ops::Range;
use std::sync::Arc;

use super::views::Sequence;

/// Consecutive rows of a batch that continue one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The sequence.
    pub sequence: Sequence,
    /// Its rows in the batch.
    pub rows: Range<usize>,
    /// Position of the first of them in the caches: how many rows the sequence has before it.
    /// Masks and windows go by these.
    pub position: usize,
    /// The positions by which rotations turn the rows.
    pub rotary: RotaryPositions,
    /// Rows also see the positions from their own up to this one, itself not included, where an op
    /// [looks ahead](crate::Attention::looks_ahead): those of an image see each other. 0 for text.
    pub ahead_to: usize,
}

/// By which positions rotations turn the rows of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotaryPositions {
    /// Those in the caches plus this number. Zero for text.
    Shifted(isize),
    /// One for each row.
    Each(Arc<[RowPosition]>),
}

/// A position of three parts, as rows of an image have it. Those of text are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowPosition {
    /// The frame.
    pub temporal: u32,
    /// The row of patches.
    pub height: u32,
    /// The column of patches.
    pub width: u32,
}

/// One part of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionPart {
    /// [`RowPosition::temporal`].
    Temporal,
    /// [`RowPosition::height`].
    Height,
    /// [`RowPosition::width`].
    Width,
}

impl Span {
    /// Rows whose rotations go by their positions in the caches.
    pub fn new(sequence: Sequence, rows: Range<usize>, position: usize) -> Span {
        Span { sequence, rows, position, rotary: RotaryPositions::Shifted(0), ahead_to: 0 }
    }

    /// The position after the last one that some row sees.
    pub fn seen_to(&self, looks_ahead: bool) -> usize {
        let own = self.position + self.rows.len();
        if looks_ahead { own.max(self.ahead_to) } else { own }
    }

    /// The span without its first `n` rows.
    #[must_use]
    pub fn skip(&self, n: usize) -> Span {
        let rotary = match &self.rotary {
            RotaryPositions::Shifted(by) => RotaryPositions::Shifted(*by),
            RotaryPositions::Each(positions) => RotaryPositions::Each(positions[n..].into()),
        };
        let (rows, position) = (self.rows.start + n..self.rows.end, self.position + n);
        Span { rows, position, rotary, ..*self }
    }

    /// By what rotations turn each row, in order.
    ///
    /// # Panics
    /// Where a row has no position.
    pub fn rotary_positions(&self) -> impl Iterator<Item = RowPosition> + '_ {
        (0..self.rows.len()).map(|nth| match &self.rotary {
            RotaryPositions::Shifted(by) => {
                let position = (self.position + nth).checked_add_signed(*by);
                let position = position.and_then(|position| u32::try_from(position).ok());
                RowPosition::text(position.expect("a position of 32 bits"))
            }
            RotaryPositions::Each(positions) => positions[nth],
        })
    }
}

impl RowPosition {
    /// The position of a token: three equal parts.
    pub const fn text(position: u32) -> RowPosition {
        RowPosition { temporal: position, height: position, width: position }
    }

    /// Whether its parts are equal.
    pub fn is_text(self) -> bool {
        self.temporal == self.height && self.temporal == self.width
    }

    /// One of its parts.
    pub fn part(self, part: PositionPart) -> u32 {
        match part {
            PositionPart::Temporal => self.temporal,
            PositionPart::Height => self.height,
            PositionPart::Width => self.width,
        }
    }

    /// The greatest of its parts.
    pub fn greatest(self) -> u32 {
        self.temporal.max(self.height).max(self.width)
    }
}
