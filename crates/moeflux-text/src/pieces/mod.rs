//! Long texts in parts, so that memory does not grow with them and a text that is too long is
//! given up early.

mod boundary;
mod expression;
mod fewest;

use std::collections::HashMap;

use serde_json::Value;

use self::boundary::Boundaries;
use self::fewest::Fewest;
use super::table::TokenTable;

/// Bytes of a part, where the text has a place for its end.
const PIECE_BYTES: usize = 32 << 10;

/// Bytes in which a place is looked for; where there is none, the rest of the text is one part.
const MAX_SEARCH: usize = 512 << 10;

/// Characters on two sides of a place whose verdict is remembered while a text is taken apart.
const MAX_VERDICTS: usize = 4096;

/// What is known of a tokenizer for that.
#[derive(Debug)]
pub(super) struct Pieces {
    boundaries: Option<Boundaries>,
    fewest: Option<Fewest>,
}

impl Pieces {
    /// `json` is the content of a `tokenizer.json`, `tokenizer` what the library made of it.
    pub(super) fn new(
        json: &Value,
        tokenizer: &tokenizers::Tokenizer,
        table: &TokenTable,
    ) -> Pieces {
        Pieces { boundaries: Boundaries::of(tokenizer), fewest: Fewest::of(json, tokenizer, table) }
    }

    /// A number of tokens below which `text` cannot come; may be zero.
    pub(super) fn fewest_tokens(&self, text: &str) -> usize {
        self.fewest.as_ref().map_or(0, |fewest| fewest.tokens_of(text))
    }

    /// Where the parts of `text` end, ascending. The tokens of the parts are those of the text.
    pub(super) fn ends<'a>(&'a self, text: &'a str) -> Ends<'a> {
        Ends { boundaries: self.boundaries.as_ref(), text, start: 0, verdicts: HashMap::new() }
    }
}

/// The ends of the parts of a text.
pub(super) struct Ends<'a> {
    boundaries: Option<&'a Boundaries>,
    text: &'a str,
    start: usize,
    verdicts: HashMap<(char, char), bool>,
}

impl Iterator for Ends<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let n_bytes = self.text.len();
        if self.start == n_bytes {
            return None;
        }
        let mut end = n_bytes;
        if self.boundaries.is_some() && n_bytes - self.start > PIECE_BYTES {
            let aim = self.start + PIECE_BYTES;
            let reach = n_bytes.min(self.start + MAX_SEARCH);
            let before = (self.start + 1..=aim).rev().find(|at| self.is_place(*at));
            let place = before.or_else(|| (aim + 1..reach).find(|at| self.is_place(*at)));
            end = place.unwrap_or(n_bytes);
        }
        self.start = end;
        Some(end)
    }
}

impl Ends<'_> {
    fn is_place(&mut self, at: usize) -> bool {
        let Some((head, tail)) = self.text.split_at_checked(at) else { return false };
        let (before, after) = (head.chars().next_back(), tail.chars().next());
        let (Some(before), Some(after), Some(boundaries)) = (before, after, self.boundaries) else {
            return false;
        };
        if self.verdicts.len() > MAX_VERDICTS {
            self.verdicts.clear();
        }
        let verdict = self.verdicts.entry((before, after));
        *verdict.or_insert_with(|| boundaries.is_between(before, after))
    }
}

#[cfg(test)]
mod tests;
