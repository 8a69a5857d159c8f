//! From tokens to text that is certain.

use std::collections::VecDeque;

use moeflux_core::TokenId;
use moeflux_text::{Special, StopMatcher, StreamDecoder, Tokenizer};

use super::values::{TokenLogprob, TokenText};

/// Decodes tokens to text, and holds back text that may be part of a stop text.
pub(super) struct Writer {
    decoder: StreamDecoder,
    stops: StopMatcher,
    /// Text that is certain and not passed on yet.
    ready: TokenText,
    /// Tokens whose text is not certain yet, with the byte at which each ends.
    held: VecDeque<(usize, TokenLogprob)>,
    /// Bytes decoded so far.
    n_decoded: usize,
    /// How many of them are certain.
    n_certain: usize,
}

impl Writer {
    pub(super) fn new(tokenizer: &Tokenizer, stop: Vec<String>) -> Writer {
        Writer {
            decoder: tokenizer.stream(Special::Hide),
            stops: StopMatcher::new(stop),
            ready: TokenText::default(),
            held: VecDeque::new(),
            n_decoded: 0,
            n_certain: 0,
        }
    }

    /// Appends a token. Returns whether its text completes a stop text.
    pub(super) fn push(
        &mut self,
        token: TokenId,
        special: Special,
        logprob: Option<TokenLogprob>,
    ) -> bool {
        let piece = self.decoder.push_as(token, special);
        self.append(&piece, logprob)
    }

    /// Appends the token that ends the text, which has none itself.
    pub(super) fn push_end(&mut self, logprob: Option<TokenLogprob>) {
        let end = self.n_decoded + self.decoder.n_held();
        self.held.extend(logprob.map(|logprob| (end, logprob)));
    }

    /// Whether the text so far ends with a whole character.
    pub(super) fn is_whole(&self) -> bool {
        self.decoder.n_held() == 0
    }

    /// Takes the text that is certain.
    pub(super) fn take(&mut self) -> TokenText {
        std::mem::take(&mut self.ready)
    }

    /// The stop text that ended the text.
    pub(super) fn stopped_by(&self) -> Option<&str> {
        self.stops.matched()
    }

    /// Ends the text. Returns whether the held-back text contains a stop text.
    pub(super) fn finish(&mut self) -> bool {
        let piece = self.decoder.finish();
        if self.append(&piece, None) {
            return true;
        }
        let rest = self.stops.finish();
        self.emit(&rest.emit);
        if !rest.stopped {
            self.ready.logprobs.extend(self.held.drain(..).map(|(_, entry)| entry));
        }
        rest.stopped
    }

    fn append(&mut self, piece: &str, logprob: Option<TokenLogprob>) -> bool {
        self.n_decoded += piece.len();
        let end = self.n_decoded + self.decoder.n_held();
        self.held.extend(logprob.map(|logprob| (end, logprob)));
        let pushed = self.stops.push(piece);
        self.emit(&pushed.emit);
        pushed.stopped
    }

    fn emit(&mut self, text: &str) {
        self.n_certain += text.len();
        self.ready.text.push_str(text);
        while let Some((_, logprob)) = self.held.pop_front_if(|(end, _)| *end <= self.n_certain) {
            self.ready.logprobs.push(logprob);
        }
    }
}
