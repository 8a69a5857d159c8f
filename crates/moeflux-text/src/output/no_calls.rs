//! Answers to requests that offer no tools: which tokens would begin a call in them.

use std::sync::Arc;

use moeflux_core::TokenId;

use super::probe;
use super::syntax::{Calls, marks_in};
use crate::chat::ChatTemplate;
use crate::message::Message;
use crate::table::TokenTable;
use crate::tokenizer::Tokenizer;

/// Tokens of a prompt at most that are looked at for where its answer begins.
const MAX_TAIL: usize = 256;

/// What a line of a fence begins with.
const FENCES: [&[u8]; 2] = [b"```", b"~~~"];

/// What stands before the name of a tool in a header of the harmony format.
const RECIPIENT: &str = "to=";

/// Control tokens of the harmony format between which a header stands.
const HEADER_BEGINS: [&str; 3] = ["<|start|>", "<|channel|>", "<|end|>"];
const HEADER_ENDS: &str = "<|message|>";

/// Holds one answer to text: rules out the tokens that begin calls of tools.
///
/// Where a control token begins calls, that token is ruled out everywhere. The same letters as
/// ordinary tokens are text, and remain possible. Where ordinary text begins calls, it is ruled
/// out at the beginning of a line, as only there it would be a call; in fenced code and inside of
/// lines a model may write about it. In the harmony format a header must not name a tool.
#[derive(Clone, Debug)]
pub struct NoCalls {
    rules: Arc<Rules>,
    place: Place,
}

/// Which tokens begin calls, for all answers of a model.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// Control tokens that stand in calls alone, ascending.
    tokens: Vec<TokenId>,
    text: Option<TextRule>,
    /// What a system message contains that shows the model how to call.
    shows_calls: String,
}

/// A text that must not come about.
#[derive(Debug)]
struct TextRule {
    marker: Vec<u8>,
    scope: Scope,
    /// Tokens with all of it inside, ascending.
    whole: Vec<TokenId>,
    /// By the number of its bytes that the text ends with: tokens that complete it, ascending.
    completing: Vec<Vec<TokenId>>,
    table: Arc<TokenTable>,
}

impl PartialEq for TextRule {
    fn eq(&self, other: &TextRule) -> bool {
        self.marker == other.marker && self.scope == other.scope && self.whole == other.whole
    }
}

impl Eq for TextRule {}

/// Where the text must not come about.
#[derive(Debug, PartialEq, Eq)]
enum Scope {
    /// In headers.
    Headers { begins: Vec<TokenId>, ends: Option<TokenId> },
    /// At the beginning of a line that is not in a fence.
    Lines,
}

/// Where in its text an answer is.
#[derive(Clone, Debug, Default, PartialEq)]
struct Place {
    /// Whether a header, or a fence, is open.
    is_open: bool,
    /// The end of a header; of a line its beginning. At most as long as the marker.
    near: Vec<u8>,
}

impl Rules {
    /// Of a model whose template writes calls in this way. `None` where calls begin with what
    /// other text begins with, too.
    pub(super) fn of(
        calls: &Calls,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
    ) -> Option<Rules> {
        let id = |text: &str| tokenizer.id_of(text).filter(|id| tokenizer.is_control(*id));
        if *calls == Calls::Channels {
            let begins = HEADER_BEGINS.into_iter().filter_map(id).collect();
            let scope = Scope::Headers { begins, ends: id(HEADER_ENDS) };
            return Some(Rules {
                tokens: id(calls.close()).into_iter().collect(),
                text: Some(TextRule::new(RECIPIENT, scope, tokenizer)),
                shows_calls: String::from("to=functions"),
            });
        }
        let section = calls.section().map(|[open, _]| open);
        let marks = section.into_iter().chain([calls.open()]).flat_map(marks_in);
        // What a conversation without tools has, too, begins no call.
        let plain = probe::without_tools(template);
        let marks: Vec<&str> = marks.filter(|mark| !plain.contains(*mark)).collect();
        let mut tokens: Vec<TokenId> = marks.iter().copied().filter_map(id).collect();
        tokens.retain(|token| !tokenizer.eos_ids().contains(token));
        tokens.sort_unstable();
        tokens.dedup();
        let begins = calls.begins().trim_start();
        let first = *marks.first()?;
        let text = if !tokens.is_empty() {
            None
        } else if begins.starts_with(first) {
            Some(TextRule::new(first, Scope::Lines, tokenizer))
        } else {
            return None;
        };
        Some(Rules { tokens, text, shows_calls: first.to_owned() })
    }

    /// Whether messages to which the model owes obedience show it how to call: a client that
    /// describes tools in its own words, and reads calls out of the text.
    fn are_shown_by(&self, messages: &[Message]) -> bool {
        let instructs = |message: &&Message| matches!(&*message.role, "system" | "developer");
        let shows = |message: &Message| match &message.content {
            Some(serde_json::Value::String(text)) => text.contains(&self.shows_calls),
            Some(parts) => parts.to_string().contains(&self.shows_calls),
            None => false,
        };
        messages.iter().filter(instructs).any(shows)
    }
}

impl TextRule {
    fn new(marker: &str, scope: Scope, tokenizer: &Tokenizer) -> TextRule {
        let marker = marker.as_bytes().to_vec();
        let table = tokenizer.table();
        let mut rule = TextRule {
            completing: vec![Vec::new(); marker.len()],
            whole: Vec::new(),
            marker,
            scope,
            table: Arc::clone(&table),
        };
        let n_tokens = u32::try_from(table.vocab_size()).unwrap_or(u32::MAX);
        for id in (0..n_tokens).map(TokenId).filter(|id| !tokenizer.is_control(*id)) {
            rule.add(id, table.bytes(id));
        }
        rule
    }

    /// Notes what a token completes.
    fn add(&mut self, id: TokenId, bytes: &[u8]) {
        let marker = &self.marker;
        let Some(first) = bytes.first() else { return };
        let in_line = |line: &[u8]| line.trim_ascii_start().starts_with(marker);
        let is_whole = match self.scope {
            Scope::Headers { .. } => bytes.windows(marker.len()).any(|part| part == marker),
            Scope::Lines => bytes.split(|byte| *byte == b'\n').skip(1).any(in_line),
        };
        if is_whole {
            self.whole.push(id);
            return;
        }
        if self.scope == Scope::Lines && in_line(bytes) {
            self.completing[0].push(id);
        }
        for n in 1..marker.len() {
            if marker[n] == *first && bytes.starts_with(&marker[n..]) {
                self.completing[n].push(id);
            }
        }
    }

    /// How many bytes of the marker the text ends with.
    fn n_matched(&self, place: &Place) -> usize {
        match self.scope {
            Scope::Headers { .. } => {
                let is_end = |n: &usize| place.near.ends_with(&self.marker[..*n]);
                (1..self.marker.len()).rev().find(is_end).unwrap_or(0)
            }
            // A line that is no beginning of the marker has left it for good.
            Scope::Lines if self.marker.starts_with(&place.near) => place.near.len(),
            Scope::Lines => self.marker.len(),
        }
    }

    fn applies(&self, place: &Place) -> bool {
        match self.scope {
            Scope::Headers { .. } => place.is_open,
            Scope::Lines => !place.is_open,
        }
    }

    fn accept(&self, place: &mut Place, token: TokenId) {
        match &self.scope {
            Scope::Headers { begins, .. } if begins.contains(&token) => {
                *place = Place { is_open: true, near: Vec::new() };
            }
            Scope::Headers { ends, .. } if *ends == Some(token) => *place = Place::default(),
            _ if self.table.is_special(token) && matches!(self.scope, Scope::Headers { .. }) => {}
            Scope::Headers { .. } if !place.is_open => {}
            Scope::Headers { .. } => {
                place.near.extend_from_slice(self.table.bytes(token));
                let n_over = place.near.len().saturating_sub(self.marker.len());
                place.near.drain(..n_over);
            }
            // A turn begins.
            Scope::Lines if self.table.is_special(token) => *place = Place::default(),
            Scope::Lines => self.table.bytes(token).iter().for_each(|byte| self.line(place, *byte)),
        }
    }

    /// Goes on in a line with a byte.
    fn line(&self, place: &mut Place, byte: u8) {
        // Long enough to tell both a fence and the marker from other text.
        let most = self.marker.len().max(FENCES[0].len());
        match byte {
            b'\n' => {
                let is_fence = FENCES.iter().any(|fence| place.near.starts_with(fence));
                place.is_open ^= is_fence;
                place.near.clear();
            }
            byte if place.near.is_empty() && byte.is_ascii_whitespace() => {}
            byte if place.near.len() < most => place.near.push(byte),
            _ => {}
        }
    }
}

impl NoCalls {
    /// For an answer to messages that offer no tools, after a prompt with these tokens. `None`
    /// where a system message shows how to call: that offers tools, too.
    pub(super) fn new(
        rules: &Arc<Rules>,
        messages: &[Message],
        prompt: &[TokenId],
    ) -> Option<NoCalls> {
        if rules.are_shown_by(messages) {
            return None;
        }
        let mut no_calls = NoCalls { rules: Arc::clone(rules), place: Place::default() };
        let tail = &prompt[prompt.len().saturating_sub(MAX_TAIL)..];
        tail.iter().for_each(|token| no_calls.accept(*token));
        Some(no_calls)
    }

    /// Rules out these tokens wherever the answer is.
    pub fn of_tokens(tokens: impl IntoIterator<Item = TokenId>) -> NoCalls {
        let mut tokens: Vec<TokenId> = tokens.into_iter().collect();
        tokens.sort_unstable();
        let rules = Rules { tokens, text: None, shows_calls: String::new() };
        NoCalls { rules: Arc::new(rules), place: Place::default() }
    }

    /// Goes on with a token of the answer.
    pub fn accept(&mut self, token: TokenId) {
        if let Some(text) = &self.rules.text {
            text.accept(&mut self.place, token);
        }
    }

    /// The tokens that would begin a call here.
    pub fn ruled_out(&self) -> impl Iterator<Item = TokenId> {
        self.lists().into_iter().flatten().copied()
    }

    /// Whether a token would begin a call here.
    pub fn rules_out(&self, token: TokenId) -> bool {
        self.lists().into_iter().any(|list| list.binary_search(&token).is_ok())
    }

    /// The most tokens that are ruled out at any place of a draft that goes on here: before it, in
    /// it and behind it.
    pub fn most_ruled_out(&self, draft: &[TokenId]) -> usize {
        let n = |place: &NoCalls| place.lists().into_iter().map(<[_]>::len).sum();
        if self.rules.text.is_none() || draft.is_empty() {
            return n(self);
        }
        let mut ahead = self.clone();
        let behind = draft.iter().map(|token| {
            ahead.accept(*token);
            n(&ahead)
        });
        behind.fold(n(self), usize::max)
    }

    fn lists(&self) -> [&[TokenId]; 3] {
        let Rules { tokens, text, .. } = &*self.rules;
        let Some(text) = text.as_ref().filter(|text| text.applies(&self.place)) else {
            return [tokens, &[], &[]];
        };
        let completing = text.completing.get(text.n_matched(&self.place));
        [tokens, &text.whole, completing.map_or(&[], Vec::as_slice)]
    }
}
