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
    /// The positions by which rotations turned the last rows before these, in order. Keys of
    /// [pools](crate::PoolKeys) go by those of their first rows. Rows further back have gone by their
    /// positions in the caches, plus what `rotary` adds to these.
    pub rotary_before: Vec<RowPosition>,
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
        let (rotary, rotary_before) = (RotaryPositions::Shifted(0), Vec::new());
        Span { sequence, rows, position, rotary, rotary_before, ahead_to: 0 }
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
        let mut rotary_before = self.rotary_before.clone();
        // Rows that all go by their own positions need no list.
        if matches!(self.rotary, RotaryPositions::Each(_)) || !rotary_before.is_empty() {
            rotary_before.extend(self.rotary_positions().take(n));
        }
        Span { rows, position, rotary, rotary_before, ..*self }
    }

    /// By what rotations turn the row at a position in the caches: one of these rows, or one before
    /// them.
    ///
    /// # Panics
    /// Where a row has no position.
    pub fn rotary_at(&self, position: usize) -> RowPosition {
        let back = self.position.saturating_sub(position);
        if let Some(nth) = self.rotary_before.len().checked_sub(back).filter(|_| back > 0) {
            return self.rotary_before[nth];
        }
        let by = match &self.rotary {
            RotaryPositions::Each(positions) if back == 0 => {
                return positions[position - self.position];
            }
            RotaryPositions::Each(_) => 0,
            RotaryPositions::Shifted(by) => *by,
        };
        let position = position.checked_add_signed(by);
        let position = position.and_then(|position| u32::try_from(position).ok());
        RowPosition::text(position.expect("a position of 32 bits"))
    }

    /// By what rotations turn each row, in order.
    ///
    /// # Panics
    /// Where a row has no position.
    pub fn rotary_positions(&self) -> impl Iterator<Item = RowPosition> + '_ {
        (0..self.rows.len()).map(|nth| self.rotary_at(self.position + nth))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn image(part: u32) -> RowPosition {
        RowPosition { temporal: 1, height: part, width: part + 1 }
    }

    #[test]
    fn rows_before_a_span_have_their_positions() {
        let span = Span {
            rotary: RotaryPositions::Each([image(4), image(5), RowPosition::text(9)].into()),
            rotary_before: vec![image(3)],
            ..Span::new(Sequence(0), 2..5, 10)
        };
        let at = |span: &Span| [8, 9, 10, 12].map(|position| span.rotary_at(position));
        let want = [RowPosition::text(8), image(3), image(4), RowPosition::text(9)];
        assert_eq!(at(&span), want);
        assert_eq!(at(&span.skip(2)), want);
        let after = Span {
            rotary: RotaryPositions::Shifted(-2),
            rotary_before: vec![image(3)],
            ..Span::new(Sequence(0), 0..1, 13)
        };
        assert_eq!([12, 13].map(|at| after.rotary_at(at)), [image(3), RowPosition::text(11)]);
        assert_eq!(after.rotary_at(11), RowPosition::text(9));
    }

    #[test]
    fn plain_spans_name_no_positions() {
        let span = Span::new(Sequence(0), 0..3, 5).skip(1);
        assert_eq!(span.rotary_before, []);
        assert_eq!([4, 6].map(|at| span.rotary_at(at)), [4, 6].map(RowPosition::text));
    }
}
