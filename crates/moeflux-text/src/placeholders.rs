//! Which token of a vocabulary stands for a picture, and how rows of pictures take its place.

use moeflux_core::{PictureRows, TokenId};

/// Tokens that templates write once for a picture, by their texts in vocabularies.
const PLACEHOLDERS: [Names; 3] = [
    Names { placeholder: "<|image_pad|>", around: None },
    Names { placeholder: "<|media_pad|>", around: None },
    // Some vocabularies with this token have two more, which their templates leave to the processor.
    Names { placeholder: "<|image|>", around: Some(["<|image>", "<image|>"]) },
];

struct Names {
    placeholder: &'static str,
    /// What stands around a picture's rows, where a vocabulary has both.
    around: Option<[&'static str; 2]>,
}

/// The text that stands for a picture among those of control tokens.
pub(super) fn placeholder_text(mut is_control: impl FnMut(&str) -> bool) -> Option<&'static str> {
    PLACEHOLDERS.iter().map(|names| names.placeholder).find(|text| is_control(text))
}

/// Whether a text is that of a token that stands for a picture in some vocabulary.
pub(super) fn is_placeholder(text: &str) -> bool {
    PLACEHOLDERS.iter().any(|names| names.placeholder == text)
}

/// Where a picture stands in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PicturePlace {
    /// The first of its rows among the prompt's tokens.
    pub start: usize,
    /// Its rows.
    pub rows: PictureRows,
    /// The token of the vocabulary that each row counts as, where one is needed.
    pub placeholder: TokenId,
}

impl PicturePlace {
    /// Behind its last row.
    pub fn end(&self) -> usize {
        self.start + self.rows.n_rows
    }
}

/// The token that stands for a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placeholder {
    id: TokenId,
    around: Option<[TokenId; 2]>,
}

impl Placeholder {
    /// That of a vocabulary whose control tokens `control` finds by their texts.
    pub(super) fn find(control: impl Fn(&str) -> Option<TokenId>) -> Option<Placeholder> {
        PLACEHOLDERS.iter().find_map(|names| {
            let id = control(names.placeholder)?;
            let around =
                names.around.and_then(|[first, last]| Some([control(first)?, control(last)?]));
            Some(Placeholder { id, around })
        })
    }

    /// How often it stands in a prompt.
    pub(super) fn count(self, tokens: &[TokenId]) -> usize {
        tokens.iter().filter(|token| **token == self.id).count()
    }

    /// Tokens that a prompt has more with the rows of these pictures than with one placeholder for each.
    pub(super) fn n_more(self, pictures: &[PictureRows]) -> usize {
        let n_around = self.around.map_or(0, |around| around.len());
        let more = |rows: &PictureRows| rows.n_rows.saturating_add(n_around).saturating_sub(1);
        pictures.iter().map(more).fold(0, usize::saturating_add)
    }

    /// Puts the rows of pictures in place of as many placeholders as each has rows. `None` where other ones
    /// are there.
    pub(super) fn filled(
        self,
        tokens: &[TokenId],
        pictures: &[PictureRows],
    ) -> Option<(Vec<TokenId>, Vec<PicturePlace>)> {
        let (mut all, mut places, mut at) =
            (tokens.to_vec(), Vec::with_capacity(pictures.len()), 0);
        for &rows in pictures {
            let start = at + all[at..].iter().position(|token| *token == self.id)?;
            let its = all.get_mut(start..start.checked_add(rows.n_rows)?)?;
            if rows.n_rows == 0 || its.iter().any(|token| *token != self.id) {
                return None;
            }
            its.iter_mut().zip(rows.tokens()).for_each(|(token, row)| *token = row);
            at = start + rows.n_rows;
            places.push(PicturePlace { start, rows, placeholder: self.id });
        }
        (!all.contains(&self.id)).then_some((all, places))
    }

    /// Puts the rows of pictures in place of placeholders, of which there are as many.
    pub(super) fn replaced(
        self,
        tokens: &[TokenId],
        pictures: &[PictureRows],
    ) -> (Vec<TokenId>, Vec<PicturePlace>) {
        let mut all = Vec::with_capacity(tokens.len() + self.n_more(pictures));
        let mut places = Vec::with_capacity(pictures.len());
        let mut left = pictures.iter();
        for &token in tokens {
            let Some(&rows) = (token == self.id).then(|| left.next()).flatten() else {
                all.push(token);
                continue;
            };
            let [first, last] = self.around.map_or([None; 2], |around| around.map(Some));
            all.extend(first);
            places.push(PicturePlace { start: all.len(), rows, placeholder: self.id });
            all.extend(rows.tokens());
            all.extend(last);
        }
        (all, places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(first: u8, n_rows: usize) -> PictureRows {
        PictureRows { id: [first; 32], n_rows }
    }

    fn ids(tokens: &[u32]) -> Vec<TokenId> {
        tokens.iter().copied().map(TokenId).collect()
    }

    #[test]
    fn rows_take_the_place_of_placeholders_in_order() {
        let placeholder = Placeholder::find(|text| (text == "<|media_pad|>").then_some(TokenId(7)));
        let placeholder = placeholder.unwrap();
        let pictures = [rows(1, 3), rows(2, 1)];
        let tokens = ids(&[4, 7, 5, 7]);
        assert_eq!((placeholder.count(&tokens), placeholder.n_more(&pictures)), (2, 2));
        let (all, places) = placeholder.replaced(&tokens, &pictures);
        let [one, other] =
            [&pictures[0], &pictures[1]].map(|rows| rows.tokens().collect::<Vec<_>>());
        assert_eq!(all, [&ids(&[4])[..], &one, &ids(&[5]), &other].concat());
        let at = |start, rows| PicturePlace { start, rows, placeholder: TokenId(7) };
        assert_eq!(places, [at(1, pictures[0]), at(5, pictures[1])]);
        assert_eq!(places.iter().map(PicturePlace::end).collect::<Vec<_>>(), [4, 6]);
    }

    #[test]
    fn rows_fill_placeholders_of_prompts_that_are_tokens() {
        let placeholder = Placeholder::find(|text| (text == "<|media_pad|>").then_some(TokenId(7)));
        let placeholder = placeholder.unwrap();
        let pictures = [rows(1, 2), rows(2, 1)];
        for filled in [[4, 7, 7, 5, 7, 9], [7, 7, 7, 1, 2, 3]] {
            let (all, places) = placeholder.filled(&ids(&filled), &pictures).unwrap();
            assert_eq!(all.iter().filter(|token| token.is_picture()).count(), 3);
            assert_eq!(all[places[1].start], pictures[1].token(0));
        }
        for other in [&[4, 7, 5, 7][..], &[7, 7, 4], &[7, 7, 4, 7, 7], &[7, 7, 4, 7, 5, 7], &[]] {
            assert_eq!(placeholder.filled(&ids(other), &pictures), None);
        }
    }

    #[test]
    fn what_stands_around_rows_needs_both_tokens() {
        let of = |known: &'static [&str]| {
            let id = |text: &str| known.iter().position(|own| *own == text);
            Placeholder::find(|text| id(text).map(|id| TokenId(id as u32)))
        };
        let both = of(&["<|image|>", "<|image>", "<image|>"]).unwrap();
        let (all, places) = both.replaced(&ids(&[9, 0, 9]), &[rows(1, 2)]);
        assert_eq!((all.len(), places[0].start, both.n_more(&[rows(1, 2)])), (6, 2, 3));
        assert_eq!((all[1], all[4]), (TokenId(1), TokenId(2)));
        let one = of(&["<|image|>", "<|image>"]).unwrap();
        assert_eq!(one.replaced(&ids(&[0]), &[rows(1, 2)]).1[0].start, 0);
        assert_eq!(of(&["<|image>", "<image|>"]), None);
    }
}
