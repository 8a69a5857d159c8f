//! Token by token to text that is always whole UTF-8.

use std::sync::Arc;

use moeflux_core::TokenId;

use super::table::{Joiner, Special, TokenTable};

/// Decodes a stream of tokens. The pieces, put together, are what decoding all tokens at once
/// gives: a character split over tokens is held until it is complete, and bytes that can no
/// longer become a character turn into U+FFFD.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    table: Arc<TokenTable>,
    special: Special,
    joiner: Joiner,
    held: Vec<u8>,
}

impl StreamDecoder {
    pub(super) fn new(table: Arc<TokenTable>, special: Special) -> Self {
        let joiner = table.joiner();
        Self { table, special, joiner, held: Vec::new() }
    }

    /// Takes the next token and returns the text that is now certain, often empty.
    /// An id outside of the vocabulary adds nothing.
    pub fn push(&mut self, id: TokenId) -> String {
        self.push_as(id, self.special)
    }

    /// As [`push`](StreamDecoder::push), showing or hiding this token if it is special.
    pub fn push_as(&mut self, id: TokenId, special: Special) -> String {
        self.joiner.push(&self.table, id, special, &mut self.held);
        let mut text = String::new();
        let mut taken = 0;
        for chunk in self.held.utf8_chunks() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let is_last = taken + chunk.valid().len() + invalid.len() == self.held.len();
            taken += chunk.valid().len();
            if invalid.is_empty() || (is_last && may_continue(invalid)) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            taken += invalid.len();
        }
        self.held.drain(..taken);
        text
    }

    /// Bytes of a character that is not complete yet.
    pub fn n_held(&self) -> usize {
        self.held.len()
    }

    /// Ends the stream: an unfinished character comes out as U+FFFD, and the next token begins a
    /// new text.
    pub fn finish(&mut self) -> String {
        self.joiner = self.table.joiner();
        let held = std::mem::take(&mut self.held);
        String::from_utf8_lossy(&held).into_owned()
    }
}

/// Whether `bytes`, at the end of what has arrived, are the beginning of a character.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}
