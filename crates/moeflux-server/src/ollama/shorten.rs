//! What does not fit: of conversations Ollama leaves out the oldest messages, but for those of the system
//! and the last one, and of prompts their beginning, unless a request says `truncate: false`.

use hyper::header::{HeaderName, HeaderValue};
use moeflux_text::{Conversation, Message, Prepared};

use crate::conversation::ConversationRequest;
use crate::error::{ApiError, ApiResult, Overflow};
use crate::model::Model;
use crate::prepare::prepare;
use crate::reply::Reply;
use crate::settings::Settings;

/// Says how many messages were left out.
const MESSAGES: HeaderName = HeaderName::from_static("x-moeflux-left-out-messages");

/// Says how many characters of a prompt were left out.
const CHARACTERS: HeaderName = HeaderName::from_static("x-moeflux-left-out-characters");

/// Says how many tokens of an earlier answer's context were left out.
const TOKENS: HeaderName = HeaderName::from_static("x-moeflux-left-out-tokens");

/// Tokens that are left for an answer of no given length.
const ROOM: usize = 256;

/// What a request says of conversations that do not fit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shortening {
    /// Whether messages may be left out.
    pub(super) truncates: bool,
    /// Whether an answer may be longer than what its prompt leaves room for: messages are left out for
    /// it before it begins.
    pub(super) shifts: bool,
}

/// A prompt, and how many messages were left out of it.
pub(super) struct Shortened {
    pub(super) prepared: Prepared,
    pub(super) left_out: LeftOut,
}

/// How much was left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub(super) n_messages: usize,
    /// Of the prompt, at its beginning.
    pub(super) n_characters: usize,
    /// Of the context of an earlier answer.
    pub(super) n_tokens: usize,
}

impl LeftOut {
    /// Says it in a reply.
    pub(super) fn mark(self, mut reply: Reply) -> Reply {
        let LeftOut { n_messages, n_characters, n_tokens } = self;
        for (name, n) in [(MESSAGES, n_messages), (CHARACTERS, n_characters), (TOKENS, n_tokens)] {
            if n > 0 {
                reply.headers_mut().insert(name, HeaderValue::from(n));
            }
        }
        reply
    }
}

impl Shortening {
    /// Reads a conversation, without its oldest messages where all do not fit.
    ///
    /// # Errors
    /// Where the rest does not fit either, or nothing may be left out; where the template refuses the
    /// messages.
    pub(super) fn prepare(
        self,
        model: &Model,
        request: &ConversationRequest,
    ) -> ApiResult<Shortened> {
        let whole = prepare(model, request);
        let is_whole = |prepared: &Prepared| self.fits(model, &request.settings, prepared);
        let refusal = match whole {
            Ok(prepared) if !self.truncates || is_whole(&prepared) => {
                return Ok(Shortened { prepared, left_out: LeftOut::default() });
            }
            Ok(prepared) => Ok(prepared),
            Err(error @ ApiError { overflow: Some(_), .. }) if self.truncates => Err(error),
            Err(error) => return Err(error),
        };
        match self.shortest(model, request)? {
            Some(shortened) => {
                let n = shortened.left_out.n_messages;
                model.log_once(&format!(
                    "a conversation does not fit: its {n} oldest messages are left out"
                ));
                Ok(shortened)
            }
            // What fits without room is better than nothing.
            None => refusal.map(|prepared| Shortened { prepared, left_out: LeftOut::default() }),
        }
    }

    /// Reads a prompt by `read`, without its beginning where all of it does not fit.
    ///
    /// # Errors
    /// Where what is around the prompt does not fit either, or nothing may be left out; the others of
    /// `read`.
    pub(super) fn prepare_text(
        self,
        model: &Model,
        settings: &Settings,
        text: &str,
        read: impl Fn(&str) -> ApiResult<Prepared>,
    ) -> ApiResult<Shortened> {
        let whole = read(text);
        let refusal = match whole {
            Ok(prepared) if !self.truncates || self.fits(model, settings, &prepared) => {
                return Ok(Shortened { prepared, left_out: LeftOut::default() });
            }
            Err(error) if error.overflow.is_none() || !self.truncates => return Err(error),
            other => other,
        };
        let mut found = None;
        let (mut low, mut high) = (1, text.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            let start = text.ceil_char_boundary(middle);
            if start >= high {
                high = middle;
                continue;
            }
            match read(&text[start..]) {
                Ok(prepared) if self.fits(model, settings, &prepared) => {
                    found = Some((start, prepared));
                    high = middle;
                }
                Ok(_) | Err(ApiError { overflow: Some(Overflow { .. }), .. }) => low = start + 1,
                Err(error) => return Err(error),
            }
        }
        let Some((start, prepared)) = found else {
            return refusal.map(|prepared| Shortened { prepared, left_out: LeftOut::default() });
        };
        let n_characters = text[..start].chars().count();
        model.log_once(&format!(
            "a prompt does not fit: its first {n_characters} characters are left out"
        ));
        Ok(Shortened { prepared, left_out: LeftOut { n_characters, ..LeftOut::default() } })
    }

    /// How many of the last tokens of a context fit in front of a prompt of `n_prompt` tokens.
    pub(super) fn n_before(self, model: &Model, settings: &Settings, n_prompt: usize) -> usize {
        if !self.truncates {
            return usize::MAX;
        }
        model.text.ctx().saturating_sub(n_prompt + self.room(model, settings))
    }

    /// Whether a prompt leaves the room that an answer may need.
    fn fits(self, model: &Model, settings: &Settings, prepared: &Prepared) -> bool {
        let n_prompt = prepared.turn.tokens.len();
        n_prompt.saturating_add(self.room(model, settings)) <= model.text.ctx()
    }

    /// Tokens that are left for the answer.
    fn room(self, model: &Model, settings: &Settings) -> usize {
        let wanted = settings.max_tokens.unwrap_or(ROOM);
        if self.shifts { wanted.min(model.text.ctx() / 4).max(1) } else { 1 }
    }

    /// The conversation without the fewest messages that make it fit; `None` where none do.
    fn shortest(
        self,
        model: &Model,
        request: &ConversationRequest,
    ) -> ApiResult<Option<Shortened>> {
        let beginnings = beginnings(&request.conversation.messages);
        let mut found = None;
        let (mut low, mut high) = (0, beginnings.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            let conversation = without(&request.conversation, beginnings[middle]);
            let n_all = request.conversation.messages.len();
            let n_messages = n_all - conversation.messages.len();
            let left_out = LeftOut { n_messages, ..LeftOut::default() };
            let shorter = ConversationRequest { conversation, ..request.clone() };
            match prepare(model, &shorter) {
                Ok(prepared) if self.fits(model, &request.settings, &prepared) => {
                    found = Some(Shortened { prepared, left_out });
                    high = middle;
                }
                Ok(_) | Err(ApiError { overflow: Some(Overflow { .. }), .. }) => low = middle + 1,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// Places at which a conversation may begin behind those of the system: questions, and the last message.
fn beginnings(messages: &[Message]) -> Vec<usize> {
    let n = messages.len();
    let is_beginning = |i: &usize| messages[*i].role == "user" || *i + 1 == n;
    let first = messages.iter().position(|message| message.role != "system").unwrap_or(n);
    (first + 1..n).filter(is_beginning).collect()
}

/// A conversation of the messages from a place on and of those of the system before it, with their
/// pictures.
fn without(conversation: &Conversation, start: usize) -> Conversation {
    let (mut messages, mut pictures) = (Vec::new(), Vec::new());
    let mut left = conversation.pictures.as_slice();
    for (i, message) in conversation.messages.iter().enumerate() {
        let (own, others) = left.split_at(message.n_pictures().min(left.len()));
        left = others;
        if i >= start || message.role == "system" {
            messages.push(message.clone());
            pictures.extend_from_slice(own);
        }
    }
    Conversation { messages, pictures, ..conversation.clone() }
}

#[cfg(test)]
mod tests {
    use moeflux_core::PictureRows;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_conversation_begins_with_a_question_or_its_last_message() {
        let all = |roles: &[&str]| -> Vec<Message> {
            roles.iter().map(|role| Message::new(*role, "")).collect()
        };
        let roles = ["system", "user", "assistant", "tool", "user", "system", "user"];
        let messages = all(&roles);
        assert_eq!(beginnings(&messages), [4, 6]);
        let kept = without(&Conversation::new(messages), 6).messages;
        let kept: Vec<String> = kept.into_iter().map(|message| message.role).collect();
        assert_eq!(kept, ["system", "system", "user"]);
        assert_eq!(beginnings(&all(&["user", "assistant"])), [1]);
        assert_eq!(beginnings(&all(&["user"])), [0_usize; 0]);
        assert_eq!(beginnings(&[]), [0_usize; 0]);
    }

    #[test]
    fn messages_that_are_left_out_take_their_pictures_along() {
        let shows = |role: &str, n: usize| Message {
            content: Some(vec![json!({"type": "image"}); n].into()),
            ..Message::new(role, "")
        };
        let picture = |first: u8| PictureRows { id: [first; 32], n_rows: 1 };
        let messages = vec![shows("system", 1), shows("user", 2), shows("user", 1)];
        let pictures = (0..4).map(picture).collect();
        let all = Conversation { pictures, ..Conversation::new(messages) };
        assert_eq!(without(&all, 2).pictures, [0, 3].map(picture));
        assert_eq!(without(&all, 1).pictures, all.pictures);
    }
}
