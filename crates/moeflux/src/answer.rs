//! An answer while it is made.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use moeflux_engine::{Answer as Figures, Event, Finish, TokenLogprob};
use moeflux_text::{AnswerReader, Delta, Message};
use serde_json::{Value, json};

use crate::error::Error;
use crate::model::Model;

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCall {
    /// Tells the call from others of the conversation; its result is sent back with it.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, as JSON text.
    pub arguments: String,
}

/// A part of an answer. Displayed, thoughts and calls are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// More of the answer's text.
    Text(String),
    /// More of what the model thinks before it answers.
    Thought(String),
    /// A whole call of a tool.
    Call(ToolCall),
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Piece::Text(text) => f.write_str(text),
            Piece::Thought(_) | Piece::Call(_) => Ok(()),
        }
    }
}

/// The figures of an answer that has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt, reused ones included.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that needed no evaluation.
    pub reused_tokens: usize,
    /// Tokens made.
    pub generated_tokens: usize,
    /// Time from the request to the first token.
    pub first_token: Option<Duration>,
    /// Time from the first token to the end.
    pub decode: Duration,
}

/// An answer while it is made: an iterator over its pieces. It ends after the last piece, or with
/// the first error. Dropping it cancels what is not made yet.
pub struct Answer<'chat> {
    /// Keeps the model's thread alive.
    _model: Model,
    events: Receiver<Event>,
    reader: AnswerReader,
    cancelled: Arc<AtomicBool>,
    chat: Option<&'chat mut Vec<Message>>,
    pending: VecDeque<Piece>,
    /// A call whose arguments are not complete.
    open_call: Option<ToolCall>,
    /// Calls of the conversation so far, for their ids.
    n_calls: usize,
    /// What was yielded so far.
    said: Said,
    logprobs: Vec<TokenLogprob>,
    summary: Option<Summary>,
    has_ended: bool,
}

/// What an answer has yielded, as a message holds it.
#[derive(Clone, Default)]
struct Said {
    text: String,
    thoughts: String,
    calls: Vec<ToolCall>,
}

impl<'chat> Answer<'chat> {
    pub(crate) fn new(
        model: Model,
        events: Receiver<Event>,
        reader: AnswerReader,
        cancelled: Arc<AtomicBool>,
        chat: Option<&'chat mut Vec<Message>>,
    ) -> Answer<'chat> {
        let chat_calls = chat.as_deref().map_or(0, |messages| count_calls(messages));
        Answer {
            _model: model,
            events,
            reader,
            cancelled,
            chat,
            pending: VecDeque::new(),
            open_call: None,
            n_calls: chat_calls,
            said: Said::default(),
            logprobs: Vec::new(),
            summary: None,
            has_ended: false,
        }
    }

    /// Waits for the end and gives the whole text, thoughts and calls left out.
    ///
    /// # Errors
    /// Where a step fails.
    pub fn text(mut self) -> Result<String, Error> {
        for piece in &mut self {
            piece?;
        }
        Ok(self.said.text.clone())
    }

    /// Waits for the end and gives the calls of tools.
    ///
    /// # Errors
    /// Where a step fails.
    pub fn calls(mut self) -> Result<Vec<ToolCall>, Error> {
        for piece in &mut self {
            piece?;
        }
        Ok(self.said.calls.clone())
    }

    /// The message that was yielded so far, to be added to a conversation.
    pub fn message(&self) -> Message {
        self.said.clone().into_message()
    }

    /// Tokens that were received so far, where [`Request::top_logprobs`](crate::Request) asks for
    /// them.
    pub fn logprobs(&self) -> &[TokenLogprob] {
        &self.logprobs
    }

    /// The figures, once the answer has ended.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    fn take(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.pending.push_back(Piece::Text(text)),
                Delta::Reasoning(text) => self.pending.push_back(Piece::Thought(text)),
                Delta::Call { name } => {
                    self.close_call();
                    let id = format!("call_{}", self.n_calls);
                    self.n_calls += 1;
                    self.open_call = Some(ToolCall { id, name, arguments: String::new() });
                }
                Delta::Arguments(text) => {
                    if let Some(call) = &mut self.open_call {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
    }

    fn close_call(&mut self) {
        if let Some(call) = self.open_call.take() {
            self.pending.push_back(Piece::Call(call));
        }
    }

    fn end(&mut self, figures: &Figures) {
        let deltas = self.reader.finish();
        self.take(deltas);
        self.close_call();
        self.has_ended = true;
        self.summary = Some(Summary {
            finish: figures.finish,
            prompt_tokens: figures.n_prompt,
            reused_tokens: figures.n_reused,
            generated_tokens: figures.n_generated,
            first_token: figures.first_token,
            decode: figures.decode,
        });
    }
}

impl Iterator for Answer<'_> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Result<Piece, Error>> {
        loop {
            if let Some(piece) = self.pending.pop_front() {
                self.said.add(&piece);
                return Some(Ok(piece));
            }
            if self.has_ended {
                return None;
            }
            match self.events.recv() {
                Ok(Event::Prompt { .. }) => {}
                Ok(Event::Text(text)) => {
                    self.logprobs.extend(text.logprobs);
                    let deltas = self.reader.push(&text.text);
                    self.take(deltas);
                }
                Ok(Event::Done(figures)) => self.end(&figures),
                Ok(Event::Failed(err)) => {
                    self.has_ended = true;
                    return Some(Err(Error::Engine(err)));
                }
                Err(_) => {
                    self.has_ended = true;
                    return Some(Err(Error::Stopped));
                }
            }
        }
    }
}

impl Said {
    fn add(&mut self, piece: &Piece) {
        match piece {
            Piece::Text(text) => self.text.push_str(text),
            Piece::Thought(text) => self.thoughts.push_str(text),
            Piece::Call(call) => self.calls.push(call.clone()),
        }
    }

    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.thoughts.is_empty() && self.calls.is_empty()
    }

    fn into_message(self) -> Message {
        let mut message = Message::new("assistant", self.text);
        if !self.thoughts.is_empty() {
            message.reasoning_content = Some(Value::from(self.thoughts));
        }
        if !self.calls.is_empty() {
            let calls = self.calls.into_iter().map(|call| {
                json!({
                    "id": call.id,
                    "type": "function",
                    "function": { "name": call.name, "arguments": call.arguments },
                })
            });
            message.tool_calls = Some(Value::from_iter(calls));
            message.parse_arguments();
        }
        message
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        let said = std::mem::take(&mut self.said);
        // An answer that failed or was dropped at once leaves no message.
        if let Some(messages) = self.chat.take()
            && (self.summary.is_some() || !said.is_empty())
        {
            messages.push(said.into_message());
        }
    }
}

impl fmt::Debug for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("text", &self.said.text).finish_non_exhaustive()
    }
}

/// Calls of tools in the messages of a conversation.
fn count_calls(messages: &[Message]) -> usize {
    let calls = messages.iter().filter_map(|message| message.tool_calls.as_ref()?.as_array());
    calls.map(Vec::len).sum()
}
