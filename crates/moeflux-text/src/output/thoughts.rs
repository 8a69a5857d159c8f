//! Where in an answer a model thinks: how many tokens that takes, and how thoughts are ended that
//! would take too many.

use std::collections::VecDeque;
use std::sync::Arc;

use moeflux_core::TokenId;

use super::probe;
use super::thinking::Thinking;
use crate::chat::ChatTemplate;
use crate::encode::Markup;
use crate::tokenizer::Tokenizer;

/// Of the tokens of an answer one in this many is kept for what follows the thoughts.
const KEPT_SHARE: usize = 4;
/// Tokens that are kept at most.
const MAX_KEPT: usize = 512;
/// Tokens that thoughts may go on for where they would end inside of a character.
const MAX_UNFINISHED: usize = 3;
/// The channel of thoughts in the harmony format.
const ANALYSIS: &[u8] = b"analysis";

/// How many tokens one answer may think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// Tokens of thoughts.
    budget: usize,
    /// Tokens of the answer, thoughts included, after which thoughts end.
    room: usize,
    /// Tokens of the answer.
    most: usize,
}

/// The tokens around thoughts, for all answers of a model.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ThoughtMarks {
    kind: Kind,
    /// Ways to end thoughts; the first one that the answer's grammar takes is used.
    closings: Vec<Vec<TokenId>>,
    /// Tokens that begin thoughts, each alone.
    begins: Vec<TokenId>,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// A token, with further text behind it, and a token.
    Tags { open: TokenId, rest: Vec<u8>, close: TokenId },
    /// Headers between control tokens.
    Channels { start: TokenId, channel: TokenId, message: TokenId, end: TokenId },
}

/// Follows one answer through its thoughts.
#[derive(Clone, Debug)]
pub struct Thoughts {
    marks: Arc<ThoughtMarks>,
    place: Place,
    /// Whether a call may follow thoughts.
    may_call: bool,
    limits: Limits,
    n_thought: usize,
    n_made: usize,
    /// Tokens since thoughts should have ended.
    n_unfinished: usize,
    /// Thoughts that were ended.
    n_closed: usize,
    /// Tokens that must come next.
    forced: VecDeque<TokenId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// In what is said or called.
    Said,
    /// Behind the token that begins thoughts and this many bytes of the text that belongs to it.
    Mark(usize),
    Thought,
    Header {
        text: Vec<u8>,
        /// Whether the next token begins the name of a channel.
        is_channel: bool,
    },
}

impl ThoughtMarks {
    /// Those of a model whose template writes thoughts in this way. `None` where it writes none, or
    /// the vocabulary does not spell what ends them.
    pub(super) fn of(
        thinking: Thinking,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
    ) -> Option<ThoughtMarks> {
        let tags = match thinking {
            Thinking::Never => return None,
            Thinking::Channels => return ThoughtMarks::of_channels(tokenizer),
            thinking => thinking.tags()?,
        };
        let [open_token, close_token] = thinking.tokens()?;
        let (open, close) = (tokenizer.id_of(open_token)?, tokenizer.id_of(close_token)?);
        let written = probe::closing(template, tags);
        let written = written.unwrap_or_else(|| format!("\n{close_token}\n\n"));
        let texts = [&*written, written.trim_start(), close_token];
        let mut closings: Vec<Vec<TokenId>> = Vec::new();
        for tokens in texts.into_iter().filter_map(|text| spelled(text, tokenizer)) {
            let n_closes = tokens.iter().filter(|token| **token == close).count();
            if n_closes == 1 && !closings.contains(&tokens) {
                closings.push(tokens);
            }
        }
        let rest = tags[0].strip_prefix(open_token)?.as_bytes().to_vec();
        let kind = Kind::Tags { open, rest, close };
        (!closings.is_empty()).then(|| ThoughtMarks { kind, closings, begins: vec![open] })
    }

    fn of_channels(tokenizer: &Tokenizer) -> Option<ThoughtMarks> {
        let id = |text: &str| tokenizer.id_of(text).filter(|id| tokenizer.is_control(*id));
        let kind = Kind::Channels {
            start: id("<|start|>")?,
            channel: id("<|channel|>")?,
            message: id("<|message|>")?,
            end: id("<|end|>")?,
        };
        let closings =
            ["<|end|><|start|>assistant", "<|end|><|start|>assistant<|channel|>final<|message|>"];
        let closings = closings.map(|text| spelled(text, tokenizer));
        let n_tokens = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let begins_analysis = |token: &TokenId| {
            let bytes = tokenizer.token_bytes(*token);
            let is_part = !bytes.is_empty() && ANALYSIS.starts_with(bytes);
            is_part || bytes.starts_with(ANALYSIS)
        };
        let ordinary = (0..n_tokens).map(TokenId).filter(|token| !tokenizer.is_control(*token));
        let begins = ordinary.filter(begins_analysis).collect();
        Some(ThoughtMarks { kind, closings: closings.into_iter().collect::<Option<_>>()?, begins })
    }

    /// Ways to end thoughts for the `n`-th time in an answer that `n_left` tokens are left of, the best
    /// first. Where calls may follow, the model chooses once how it goes on. Ways that leave an answer no
    /// token come last.
    fn closings(&self, n: usize, may_call: bool, n_left: usize) -> Vec<&[TokenId]> {
        let mut ways: Vec<&[TokenId]> = self.closings.iter().map(Vec::as_slice).collect();
        let is_channels = matches!(self.kind, Kind::Channels { .. });
        if is_channels && (n > 0 || !may_call) {
            ways.reverse();
        }
        ways.sort_by_key(|way| if way.len() < n_left { 0 } else { way.len() });
        ways
    }

    fn longest_closing(&self) -> usize {
        self.closings.iter().map(Vec::len).max().unwrap_or(0)
    }
}

/// The tokens of markup, if they decode to it.
fn spelled(text: &str, tokenizer: &Tokenizer) -> Option<Vec<TokenId>> {
    let tokens = tokenizer.encode(text, Markup::Parse).ok()?;
    let bytes: Vec<u8> =
        tokens.iter().flat_map(|token| tokenizer.token_bytes(*token)).copied().collect();
    (bytes == text.as_bytes()).then_some(tokens)
}

impl Thoughts {
    /// For an answer behind a prompt that ends with thinking that has begun, or does not, and that
    /// may call tools. Without limits until [`limit`](Thoughts::limit) sets some.
    pub(super) fn new(marks: &Arc<ThoughtMarks>, is_thinking: bool, may_call: bool) -> Thoughts {
        let place = match marks.kind {
            Kind::Channels { .. } => Place::Header { text: Vec::new(), is_channel: false },
            Kind::Tags { .. } if is_thinking => Place::Thought,
            Kind::Tags { .. } => Place::Said,
        };
        Thoughts {
            marks: Arc::clone(marks),
            place,
            may_call,
            limits: Limits { budget: usize::MAX, room: usize::MAX, most: usize::MAX },
            n_thought: 0,
            n_made: 0,
            n_unfinished: 0,
            n_closed: 0,
            forced: VecDeque::new(),
        }
    }

    /// For an answer that has begun with what is said.
    #[must_use]
    pub(crate) fn continuing(self) -> Thoughts {
        Thoughts { place: Place::Said, ..self }
    }

    /// Ends thoughts after `budget` tokens.
    #[must_use]
    pub fn within(mut self, budget: Option<usize>) -> Thoughts {
        self.limits.budget = budget.unwrap_or(usize::MAX);
        self
    }

    /// Keeps some of the `max_tokens` of an answer for what follows its thoughts: a quarter, and 512
    /// at most, in addition to what it takes to end them.
    pub fn limit(&mut self, max_tokens: usize) {
        let kept = (max_tokens / KEPT_SHARE).clamp(1, MAX_KEPT);
        let to_end = self.marks.longest_closing() + MAX_UNFINISHED;
        self.limits.room = max_tokens.saturating_sub(kept + to_end);
        self.limits.most = max_tokens;
    }

    /// Tokens of thoughts so far. What marks thoughts is not counted.
    pub fn n_tokens(&self) -> usize {
        self.n_thought
    }

    /// Whether no more is to be thought.
    fn is_spent(&self) -> bool {
        self.n_thought >= self.limits.budget || self.n_made >= self.limits.room
    }

    /// Decides whether thoughts end here. `is_whole` says whether the text so far ends with a whole
    /// character, `takes` whether the answer's grammar allows some tokens next.
    pub fn end_if_spent(&mut self, is_whole: bool, mut takes: impl FnMut(&[TokenId]) -> bool) {
        if self.place != Place::Thought || !self.forced.is_empty() || !self.is_spent() {
            return;
        }
        if !is_whole && self.n_unfinished < MAX_UNFINISHED {
            self.n_unfinished += 1;
            return;
        }
        let n_left = self.limits.most.saturating_sub(self.n_made);
        let ways = self.marks.closings(self.n_closed, self.may_call, n_left);
        // Where a grammar takes none, thoughts end a token later.
        if let Some(way) = ways.into_iter().find(|way| takes(way)) {
            self.forced.extend(way);
            self.n_closed += 1;
        }
    }

    /// The tokens that come next, whatever the model says.
    pub fn forced(&self) -> impl Iterator<Item = TokenId> {
        self.forced.iter().copied()
    }

    /// Tokens that would begin thoughts here where no more is to be thought.
    pub fn ruled_out(&self) -> &[TokenId] {
        let begins = match &self.place {
            Place::Said => matches!(self.marks.kind, Kind::Tags { .. }),
            Place::Header { is_channel, .. } => *is_channel,
            Place::Mark(_) | Place::Thought => false,
        };
        if begins && self.forced.is_empty() && self.is_spent() { &self.marks.begins } else { &[] }
    }

    /// The most tokens that are ruled out anywhere.
    pub fn most_ruled_out(&self) -> usize {
        self.marks.begins.len()
    }

    /// Goes on with a token of the answer.
    pub fn accept(&mut self, token: TokenId, tokenizer: &Tokenizer) {
        self.n_made += 1;
        let is_forced = self.forced.pop_front_if(|next| *next == token).is_some();
        let place = std::mem::replace(&mut self.place, Place::Said);
        let next = self.marks.kind.next(place.clone(), token, tokenizer);
        if next == Place::Thought && place == Place::Thought && !is_forced {
            self.n_thought += 1;
        }
        self.place = next;
    }
}

impl Kind {
    /// Where a token leads from a place.
    fn next(&self, place: Place, token: TokenId, tokenizer: &Tokenizer) -> Place {
        let bytes = tokenizer.token_bytes(token);
        match self {
            Kind::Tags { close, .. } if token == *close => Place::Said,
            Kind::Tags { open, rest, .. } => match place {
                Place::Thought => Place::Thought,
                Place::Mark(n) if rest[n..].starts_with(bytes) && n + bytes.len() < rest.len() => {
                    Place::Mark(n + bytes.len())
                }
                Place::Mark(n) if bytes.starts_with(&rest[n..]) => Place::Thought,
                _ if token == *open && rest.is_empty() => Place::Thought,
                _ if token == *open => Place::Mark(0),
                _ => Place::Said,
            },
            Kind::Channels { start, .. } if token == *start => {
                Place::Header { text: Vec::new(), is_channel: false }
            }
            Kind::Channels { channel, .. } if token == *channel => match place {
                Place::Header { text, .. } => Place::Header { text, is_channel: true },
                _ => Place::Header { text: Vec::new(), is_channel: true },
            },
            Kind::Channels { end, .. } if token == *end => Place::Said,
            Kind::Channels { message, .. } => match place {
                Place::Header { text, .. } if token == *message => behind_header(&text),
                Place::Header { mut text, .. } => {
                    text.extend_from_slice(bytes);
                    Place::Header { text, is_channel: false }
                }
                other => other,
            },
        }
    }
}

/// What follows a header: as the parser of answers reads it.
fn behind_header(text: &[u8]) -> Place {
    let text = String::from_utf8_lossy(text);
    let is_said = text.contains("final") || text.contains("to=") || text.trim().is_empty();
    if is_said { Place::Said } else { Place::Thought }
}
