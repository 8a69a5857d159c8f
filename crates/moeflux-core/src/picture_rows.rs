//! How a prompt's tokens hold a picture.

use crate::ids::TokenId;

/// The first number of rows of pictures, above all vocabularies.
const FIRST: u32 = 1 << 31;

/// A picture as a prompt holds it: rows that vocabularies do not have, by which pictures are distinguished.
///
/// What compares prompts by their tokens, such as the search for the longest known prefix, so compares
/// pictures too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PictureRows {
    /// A hash of all that the model sees, such as SHA-256 of pixels and sizes.
    pub id: [u8; 32],
    /// How many rows of the prompt it takes.
    pub n_rows: usize,
}

impl PictureRows {
    /// The rows. Eight of them in turn hold 248 bits of the hash.
    pub fn tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        (0..self.n_rows).map(|row| self.token(row))
    }

    /// What stands for a row.
    pub fn token(&self, row: usize) -> TokenId {
        // An odd number, the golden ratio's 32 bits, so that rows of one remainder differ.
        const STRIDE: u32 = 0x9E37_79B9;
        let (words, _) = self.id.as_chunks::<4>();
        let nth = u32::try_from(row / words.len()).unwrap_or(u32::MAX);
        let word = u32::from_le_bytes(words[row % words.len()]);
        let mixed = word.wrapping_add(nth.wrapping_mul(STRIDE));
        // The greatest number stands for rows that have no key.
        TokenId((FIRST | mixed).min(u32::MAX - 1))
    }
}

impl TokenId {
    /// Whether this is a row of a [picture](PictureRows), and not a token of a vocabulary.
    pub fn is_picture(self) -> bool {
        (FIRST..u32::MAX).contains(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_tell_pictures_apart_and_are_no_tokens() {
        let picture = |first: u8| {
            let mut id = [0xff; 32];
            id[0] = first;
            PictureRows { id, n_rows: 40 }
        };
        let (one, other): (Vec<_>, Vec<_>) =
            (picture(1).tokens().collect(), picture(2).tokens().collect());
        assert_eq!(one.len(), 40);
        assert_ne!(one, other);
        assert!(one.iter().chain(&other).all(|row| row.is_picture()));
        assert_ne!(one[0], one[8], "rows of one remainder differ");
        assert!(!TokenId(FIRST - 1).is_picture() && !TokenId(u32::MAX).is_picture());
    }
}
