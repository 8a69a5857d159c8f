//! An answer while it is made.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use moeflux_engine::{Answer as Figures, Event, Finish, SpeculationStats, TokenLogprob};
use moeflux_text::{AnswerReader, Delta, Message};
use serde_json::{Value, json};

use crate::error::Error;
use crate::shared::Shared;

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
    /// Those of them that are thoughts.
    pub thought_tokens: usize,
    /// Time from the request to the first token.
    pub first_token: Option<Duration>,
    /// Time from the first token to the end.
    pub decode: Duration,
    /// Tokens drafted and accepted.
    pub speculation: SpeculationStats,
    /// The stop text that ended it.
    pub stop: Option<String>,
}

impl Summary {
    fn of(figures: Figures) -> Summary {
        Summary {
            finish: figures.finish,
            prompt_tokens: figures.n_prompt,
            reused_tokens: figures.n_reused,
            generated_tokens: figures.n_generated,
            thought_tokens: figures.n_thought,
            first_token: figures.first_token,
            decode: figures.decode,
            speculation: figures.speculation,
            stop: figures.stop,
        }
    }

    /// Tokens of the prompt that were evaluated.
    pub fn evaluated_tokens(&self) -> usize {
        self.prompt_tokens - self.reused_tokens
    }

    /// Prompt tokens a second.
    pub fn prompt_rate(&self) -> f64 {
        rate(self.evaluated_tokens(), self.first_token.unwrap_or_default())
    }

    /// Generated tokens a second, the first not counted.
    pub fn decode_rate(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode)
    }
}

fn rate(n: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() }
}

/// More of an answer, or of its prompt.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// More of the prompt was evaluated.
    Prompt {
        /// Tokens done, reused ones included.
        n_done: usize,
        /// Tokens of the prompt.
        n_total: usize,
    },
    /// More of the answer.
    Text {
        /// What the model thinks, says and calls.
        deltas: Vec<Delta>,
        /// The tokens of it, where [`Settings::top_logprobs`](crate::Settings) asks for them.
        tokens: Vec<TokenLogprob>,
    },
}

/// An answer while it is made: an iterator over its pieces. It ends after the last piece, or with
/// the first error. Dropping it cancels what is not made yet.
pub struct Answer<'chat> {
    /// Keeps the model's thread alive.
    _model: Arc<Shared>,
    events: Receiver<Event>,
    reader: AnswerReader,
    cancelled: Arc<AtomicBool>,
    chat: Option<&'chat mut Vec<Message>>,
    pending: VecDeque<Result<Piece, Error>>,
    /// A call whose arguments are not complete.
    open_call: Option<ToolCall>,
    /// Calls of the conversation so far, for their ids.
    n_calls: usize,
    /// What the caller has received so far.
    said: Said,
    logprobs: Vec<TokenLogprob>,
    summary: Option<Summary>,
    has_ended: bool,
}

/// What the caller has received of an answer, as a message holds it.
#[derive(Clone, Default)]
struct Said {
    text: String,
    thoughts: String,
    calls: Vec<ToolCall>,
}

impl<'chat> Answer<'chat> {
    pub(crate) fn new(
        model: Arc<Shared>,
        events: Receiver<Event>,
        reader: AnswerReader,
        cancelled: Arc<AtomicBool>,
    ) -> Answer<'chat> {
        Answer {
            _model: model,
            events,
            reader,
            cancelled,
            chat: None,
            pending: VecDeque::new(),
            open_call: None,
            n_calls: 0,
            said: Said::default(),
            logprobs: Vec::new(),
            summary: None,
            has_ended: false,
        }
    }

    /// This answer, which is appended to the messages of a chat where there is one.
    pub(crate) fn of_chat(mut self, chat: Option<&'chat mut Vec<Message>>) -> Answer<'chat> {
        self.n_calls = chat.as_deref().map_or(0, |messages| count_calls(messages));
        self.chat = chat;
        self
    }

    /// Waits for more of the answer, its prompt included; `None` at the end. For programs that show
    /// progress: what is received so is part of the [message](Answer::message), but no [`Piece`] any
    /// more.
    ///
    /// # Errors
    /// Where a step fails; nothing comes after that.
    pub fn next_update(&mut self) -> Option<Result<Update, Error>> {
        let update = self.receive()?;
        if let Ok(Update::Text { deltas, .. }) = &update {
            for piece in self.pieces(deltas) {
                self.said.add(&piece);
            }
        }
        Some(update)
    }

    /// Waits until [`next`](Iterator::next) has something to return, `most` at most: for programs that wait for
    /// other things as well. Whether it has; [`AnswerOptions::news`](crate::AnswerOptions::news) says when to look
    /// again.
    pub fn wait(&mut self, most: Duration) -> bool {
        let start = Instant::now();
        while self.pending.is_empty() && !self.has_ended {
            match self.events.recv_timeout(most.saturating_sub(start.elapsed())) {
                Err(RecvTimeoutError::Timeout) => return false,
                Ok(event) => {
                    let update = self.read(Some(event));
                    self.keep(update);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let update = self.read(None);
                    self.keep(update);
                }
            }
        }
        true
    }

    fn receive(&mut self) -> Option<Result<Update, Error>> {
        if self.has_ended {
            return None;
        }
        let event = self.events.recv().ok();
        Some(self.read(event))
    }

    /// What an event is to the caller; there is none where the model's thread has ended.
    fn read(&mut self, event: Option<Event>) -> Result<Update, Error> {
        let update = match event {
            Some(Event::Prompt { n_done, n_total, .. }) => Ok(Update::Prompt { n_done, n_total }),
            // Answers of this type ask for no probabilities of prompts.
            Some(Event::Scored(_)) => Ok(Update::Text { deltas: Vec::new(), tokens: Vec::new() }),
            Some(Event::Text(text)) => {
                self.logprobs.extend_from_slice(&text.logprobs);
                Ok(Update::Text { deltas: self.reader.push(&text.text), tokens: text.logprobs })
            }
            Some(Event::Done(figures)) => {
                self.has_ended = true;
                self.summary = Some(Summary::of(figures));
                Ok(Update::Text { deltas: self.reader.finish(), tokens: Vec::new() })
            }
            Some(Event::Failed(err)) => Err(err.into()),
            None => Err(Error::stopped()),
        };
        self.has_ended |= update.is_err();
        update
    }

    /// Keeps the pieces that are whole with an update.
    fn keep(&mut self, update: Result<Update, Error>) {
        match update {
            Ok(Update::Prompt { .. }) => {}
            Ok(Update::Text { deltas, .. }) => {
                let pieces = self.pieces(&deltas);
                self.pending.extend(pieces.into_iter().map(Ok));
            }
            Err(err) => self.pending.push_back(Err(err)),
        }
    }

    /// Ends the answer soon; what has come until then is still received.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// What ends the answer soon where another thread sets it, also while this one waits for a piece.
    pub fn cancelled(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Waits for the next piece, as the iterator does; `progress` learns how many tokens of the prompt
    /// are done, and how many it has.
    ///
    /// # Errors
    /// Where a step fails; nothing comes after that.
    pub fn next_piece(
        &mut self,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Option<Result<Piece, Error>> {
        loop {
            match self.pending.pop_front() {
                Some(Ok(piece)) => {
                    self.said.add(&piece);
                    return Some(Ok(piece));
                }
                Some(Err(err)) => return Some(Err(err)),
                None => {
                    let update = self.receive()?;
                    if let Ok(Update::Prompt { n_done, n_total }) = &update {
                        progress(*n_done, *n_total);
                    }
                    self.keep(update);
                }
            }
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

    /// The message that was received so far, to be added to a conversation.
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

    /// The pieces that are whole with these deltas.
    fn pieces(&mut self, deltas: &[Delta]) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(deltas.len());
        for delta in deltas {
            match delta {
                Delta::Content(text) => pieces.push(Piece::Text(text.clone())),
                Delta::Reasoning(text) => pieces.push(Piece::Thought(text.clone())),
                Delta::Call { name } => {
                    let id = format!("call_{}", self.n_calls);
                    self.n_calls += 1;
                    let call = ToolCall { id, name: name.clone(), arguments: String::new() };
                    pieces.extend(self.open_call.replace(call).map(Piece::Call));
                }
                Delta::Arguments(text) => {
                    if let Some(call) = &mut self.open_call {
                        call.arguments.push_str(text);
                    }
                }
            }
        }
        if self.has_ended {
            pieces.extend(self.open_call.take().map(Piece::Call));
        }
        pieces
    }
}

impl Iterator for Answer<'_> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Result<Piece, Error>> {
        self.next_piece(&mut |_, _| {})
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
        if !self.has_ended {
            self.cancel();
        }
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
