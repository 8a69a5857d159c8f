//! Pictures among the rows of a session.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Weak};

use moeflux_backend::RowPosition;
use moeflux_core::{PictureRows, TokenId};
use moeflux_model::{EmbeddedRow, ModelShape};

use super::input::EMBEDDED;
use crate::error::RowError;
use crate::vision::SeenPicture;

/// A picture of a prompt.
#[derive(Clone, Debug)]
pub struct PromptPicture {
    /// The position of its first row.
    pub start: usize,
    /// The token that stands for each of its rows where one of the vocabulary is needed.
    pub placeholder: TokenId,
    /// Its rows.
    pub seen: Arc<SeenPicture>,
}

/// A picture in a session, whose rows may be evaluated or are to come.
#[derive(Clone, Debug)]
pub(crate) struct PlacedPicture {
    pub(crate) start: usize,
    pub(crate) rows: PictureRows,
    pub(crate) placeholder: TokenId,
    /// Rows by height and width, where positions have three parts.
    pub(crate) shape: Option<[usize; 2]>,
    /// Whether all rows are evaluated in one step, as they see each other.
    pub(crate) is_whole: bool,
    /// What is evaluated, as long as a job or the cache of pictures has it.
    pub(crate) seen: Weak<SeenPicture>,
}

/// A row that is an embedding.
#[derive(Debug)]
pub(crate) struct PictureRow {
    /// The row, counted from the first of those that were asked for.
    pub(crate) row: usize,
    seen: Arc<SeenPicture>,
    /// The row of the picture.
    nth: usize,
}

impl PictureRow {
    /// The same row where `n` others stand before those that were asked for.
    pub(crate) fn behind(self, n: usize) -> PictureRow {
        PictureRow { row: self.row + n, ..self }
    }

    /// Its embedding.
    pub(crate) fn values(&self) -> &[f32] {
        self.seen.row(self.nth)
    }

    /// What the first layers add to it.
    pub(crate) fn deepstack(&self) -> Vec<&[f32]> {
        self.seen.deepstack(self.nth).collect()
    }
}

/// The rows of a step that are pictures', with what the first layers add to each of them.
pub(crate) fn embedded_rows<'a>(
    rows: &'a [PictureRow],
    deepstack: &'a [Vec<&'a [f32]>],
) -> impl Iterator<Item = EmbeddedRow<'a>> {
    rows.iter().zip(deepstack).map(|(picture, deepstack)| EmbeddedRow {
        row: picture.row,
        values: picture.values(),
        deepstack,
    })
}

impl PlacedPicture {
    /// A picture of a prompt, as a model takes it.
    pub(crate) fn of(picture: &PromptPicture, shape: &ModelShape) -> PlacedPicture {
        let seen = &picture.seen;
        PlacedPicture {
            start: picture.start,
            rows: seen.rows(),
            placeholder: picture.placeholder,
            shape: shape.has_position_parts.then(|| seen.shape()),
            is_whole: shape.sees_pictures_whole,
            seen: Arc::downgrade(seen),
        }
    }

    /// Its positions in the session.
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.start + self.rows.n_rows
    }

    /// The rotary position of a row, where that of a token in place of the first one would be `base`:
    /// `None` where it is the row's own. The formula is that of transformers' `get_rope_index`.
    pub(crate) fn position(&self, row: usize, base: u32) -> Option<RowPosition> {
        let [_, width] = self.shape?;
        let part = |n: usize| base.saturating_add(u32::try_from(n).unwrap_or(u32::MAX));
        Some(RowPosition { temporal: base, height: part(row / width), width: part(row % width) })
    }
}

/// The pictures of a session, ascending: those of its last prompt, from the first position on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pictures(Vec<PlacedPicture>);

impl Pictures {
    /// Of pictures that ascend.
    pub(crate) fn new(pictures: Vec<PlacedPicture>) -> Pictures {
        Pictures(pictures)
    }

    /// Those of a prompt.
    pub(crate) fn of(pictures: &[PromptPicture], shape: &ModelShape) -> Pictures {
        Pictures(pictures.iter().map(|picture| PlacedPicture::of(picture, shape)).collect())
    }

    /// Those that begin before a position.
    pub(crate) fn until(&self, end: usize) -> Pictures {
        Pictures(self.0.iter().filter(|picture| picture.start < end).cloned().collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PlacedPicture> {
        self.0.iter()
    }

    /// The picture that has a position.
    pub(crate) fn at(&self, position: usize) -> Option<&PlacedPicture> {
        let after = self.0.partition_point(|picture| picture.start <= position);
        let last = self.0[..after].last()?;
        last.range().contains(&position).then_some(last)
    }

    /// Whether a token is what a picture has at a position.
    pub(crate) fn has(&self, token: TokenId, position: usize) -> bool {
        self.at(position)
            .is_some_and(|picture| picture.rows.token(position - picture.start) == token)
    }

    /// Whether any picture has some of these positions.
    pub(crate) fn overlap(&self, positions: &Range<usize>) -> bool {
        let mut all = self.0.iter().map(PlacedPicture::range);
        all.any(|picture| picture.start < positions.end && positions.start < picture.end)
    }

    /// How many of `n` rows from `start` on a step takes, so that it parts no picture that it must see
    /// whole: more than `n` where one begins at `start`.
    pub(crate) fn whole(&self, start: usize, n: usize) -> usize {
        let end = start + n;
        match self.at(end).filter(|picture| picture.is_whole && picture.start < end) {
            Some(picture) if picture.start > start => picture.start - start,
            Some(picture) => picture.range().end - start,
            None => n,
        }
    }

    /// Tokens of the vocabulary for those from position `start` on.
    pub(crate) fn in_vocabulary<'a>(
        &self,
        start: usize,
        tokens: &'a [TokenId],
    ) -> Cow<'a, [TokenId]> {
        if !self.overlap(&(start..start + tokens.len())) && !tokens.contains(&EMBEDDED) {
            return Cow::Borrowed(tokens);
        }
        let stands_for = |(position, token): (usize, &TokenId)| match self.at(position) {
            Some(picture) => picture.placeholder,
            // Rows that are embeddings and no picture's need any token.
            None if *token == EMBEDDED => TokenId(0),
            None => *token,
        };
        (start..).zip(tokens).map(stands_for).collect()
    }

    /// The rows of some positions that are pictures'.
    ///
    /// # Errors
    /// Where the rows of one are in memory no more.
    pub(crate) fn rows(&self, positions: Range<usize>) -> Result<Vec<PictureRow>, RowError> {
        let mut rows = Vec::new();
        for picture in self.0.iter() {
            let range = picture.range();
            let common = range.start.max(positions.start)..range.end.min(positions.end);
            if common.is_empty() {
                continue;
            }
            let forgotten = RowError::PictureForgotten { position: picture.start };
            let seen = picture.seen.upgrade().ok_or(forgotten)?;
            rows.extend(common.map(|at| PictureRow {
                row: at - positions.start,
                seen: Arc::clone(&seen),
                nth: at - picture.start,
            }));
        }
        Ok(rows)
    }
}
