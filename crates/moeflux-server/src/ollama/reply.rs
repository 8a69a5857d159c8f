//! Answers: a line of JSON for each piece, or one object.

use std::sync::Arc;

use axum::http::StatusCode;
use chrono::{SecondsFormat, Utc};
use moeflux_core::nanoseconds;
use moeflux_engine::{Answer, Finish, TokenId, TokenLogprob};
use moeflux_text::{Delta, Markup};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::app::App;
use crate::ask::{PendingAnswers, Update, WholeAnswer, collect};
use crate::error::{ApiError, ApiResult};
use crate::events;
use crate::events::{Encoder, EventStream, Events};
use crate::logprobs::{self, Entry};
use crate::reply::{self, Dialect, ErrorReply, Reply};

/// What an answer is written for.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// What the client calls the model.
    pub(super) model: String,
    pub(super) shape: Shape,
    pub(super) with_logprobs: bool,
}

/// The object that an answer is made of.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// A message.
    Chat,
    /// Text. The prompt's tokens come back with the answer's as `context`, where there is one.
    Text { prompt: Option<Vec<TokenId>> },
}

/// What a request without a prompt asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loading {
    Load,
    Unload,
}

/// The reply to a request that only loads or unloads the model.
pub(super) fn loaded(model: &str, shape: Shape, loading: Loading) -> Reply {
    let reason = match loading {
        Loading::Load => "load",
        Loading::Unload => "unload",
    };
    let line = Piece::default().line(model, &shape);
    reply::json(StatusCode::OK, &Line { done: true, done_reason: Some(reason), ..line })
}

/// An object that adds nothing to an answer.
pub(crate) fn sign_of_life(model: &str, shape: &Shape) -> String {
    reply::text(&Piece::default().line(model, shape))
}

/// Sends an answer, as it is made or at once.
pub(super) async fn answer(
    app: Arc<App>,
    answers: PendingAnswers,
    target: Target,
    is_stream: bool,
) -> ApiResult<Reply> {
    if is_stream {
        let encoder = Lines::new(app, target);
        return Ok(events::lines(EventStream::new(answers, Box::new(encoder))));
    }
    let whole = collect(answers).await?.into_iter().next().unwrap_or_default();
    let WholeAnswer { reasoning, content, calls, logprobs, answer, .. } = whole;
    let mut piece = Piece { text: content, thinking: reasoning, ..Piece::default() };
    for (name, arguments) in calls {
        piece.calls.extend(whole_call(&app, piece.calls.len(), name, &arguments));
    }
    if target.with_logprobs {
        piece.logprobs = logprobs::entries(app.text.tokenizer(), &logprobs);
    }
    let context = context(&app, &target.shape, &piece.text, !piece.thinking.is_empty());
    let mut line = piece.line(&target.model, &target.shape);
    if let Some(answer) = answer {
        line = line.ended(&answer, context);
    }
    Ok(reply::json(StatusCode::OK, &line))
}

/// An object of an answer: a line of a stream, or all of it.
#[derive(Debug, Serialize)]
struct Line<'a> {
    model: &'a str,
    created_at: String,
    #[serde(flatten)]
    said: Said,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<Entry>,
    done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<Vec<u32>>,
    #[serde(flatten)]
    figures: Option<Figures>,
}

/// What an object says.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Said {
    Message {
        message: Message,
    },
    Text {
        response: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        thinking: String,
    },
}

#[derive(Debug, Serialize)]
struct Message {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

#[derive(Clone, Debug, Serialize)]
struct Call {
    id: String,
    function: CalledFunction,
}

#[derive(Clone, Debug, Serialize)]
struct CalledFunction {
    index: usize,
    name: String,
    arguments: Map<String, Value>,
}

/// What an answer took. Durations are in nanoseconds.
#[derive(Debug, Serialize)]
struct Figures {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
    prompt_eval_duration: u64,
    eval_count: usize,
    eval_duration: u64,
}

impl Figures {
    fn of(answer: &Answer) -> Figures {
        let first_token = answer.first_token.unwrap_or(answer.queued);
        Figures {
            total_duration: nanoseconds(first_token + answer.decode),
            // The model is loaded: what came before the prompt was the wait for a session.
            load_duration: nanoseconds(answer.queued),
            prompt_eval_count: answer.n_prompt,
            prompt_eval_duration: nanoseconds(first_token.saturating_sub(answer.queued)),
            eval_count: answer.n_generated,
            eval_duration: nanoseconds(answer.decode),
        }
    }
}

/// A part of an answer.
#[derive(Clone, Debug, Default)]
struct Piece {
    text: String,
    thinking: String,
    calls: Vec<Call>,
    logprobs: Vec<Entry>,
}

impl Piece {
    /// The object that holds it.
    fn line<'a>(self, model: &'a str, shape: &Shape) -> Line<'a> {
        let Piece { text, thinking, calls, logprobs } = self;
        let said = match shape {
            Shape::Chat => {
                let (role, content, tool_calls) = ("assistant", text, calls);
                Said::Message { message: Message { role, content, thinking, tool_calls } }
            }
            Shape::Text { .. } => Said::Text { response: text, thinking },
        };
        Line {
            model,
            created_at: now(),
            said,
            logprobs,
            done: false,
            done_reason: None,
            context: None,
            figures: None,
        }
    }
}

impl Line<'_> {
    /// Makes it the last object of an answer.
    fn ended(self, answer: &Answer, context: Option<Vec<u32>>) -> Self {
        let reason = match answer.finish {
            Finish::MaxTokens | Finish::ContextFull => "length",
            Finish::EndOfText | Finish::Stop | Finish::Cancelled => "stop",
        };
        let figures = Some(Figures::of(answer));
        Line { done: true, done_reason: Some(reason), context, figures, ..self }
    }
}

/// The tokens of a prompt and of its answer, from which a later prompt goes on. Thoughts do not go
/// into a history, so there is none of an answer that was thought about.
fn context(app: &App, shape: &Shape, text: &str, thinks: bool) -> Option<Vec<u32>> {
    let Shape::Text { prompt: Some(prompt) } = shape else { return None };
    let answer = app.text.tokenizer().encode(text, Markup::Literal).ok().filter(|_| !thinks)?;
    let end = app.text.tokenizer().eos_id();
    Some(prompt.iter().chain(&answer).chain(&end).map(|token| token.0).collect())
}

/// A call with its arguments as an object; none of a call that was cut off.
fn whole_call(app: &App, index: usize, name: String, arguments: &str) -> Option<Call> {
    let arguments: Map<String, Value> = match arguments.trim() {
        "" => Map::new(),
        text => serde_json::from_str(text).ok()?,
    };
    let id = app.ids.draw("call_");
    Some(Call { id, function: CalledFunction { index, name, arguments } })
}

/// The time as RFC 3339 has it.
fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// An answer as it comes.
struct Lines {
    app: Arc<App>,
    target: Target,
    /// The call that is being made: its name and its arguments so far.
    call: Option<(String, String)>,
    n_calls: usize,
    /// What was said so far.
    text: String,
    /// Whether there were thoughts.
    thinks: bool,
}

impl Lines {
    fn new(app: Arc<App>, target: Target) -> Lines {
        Lines { app, target, call: None, n_calls: 0, text: String::new(), thinks: false }
    }

    fn write(&self, piece: Piece, out: &mut Events) {
        out.line(&piece.line(&self.target.model, &self.target.shape));
    }

    fn deltas(&mut self, deltas: Vec<Delta>, logprobs: &[TokenLogprob], out: &mut Events) {
        let mut logprobs = if self.target.with_logprobs {
            logprobs::entries(self.app.text.tokenizer(), logprobs)
        } else {
            Vec::new()
        };
        for delta in deltas {
            match delta {
                Delta::Arguments(text) => {
                    if let Some((_, arguments)) = &mut self.call {
                        arguments.push_str(&text);
                    }
                }
                Delta::Call { name } => {
                    self.finish_call(out);
                    self.call = Some((name, String::new()));
                }
                Delta::Content(text) => {
                    self.finish_call(out);
                    self.text.push_str(&text);
                    let logprobs = std::mem::take(&mut logprobs);
                    self.write(Piece { text, logprobs, ..Piece::default() }, out);
                }
                Delta::Reasoning(thinking) => {
                    self.finish_call(out);
                    self.thinks = true;
                    let logprobs = std::mem::take(&mut logprobs);
                    self.write(Piece { thinking, logprobs, ..Piece::default() }, out);
                }
            }
        }
        if !logprobs.is_empty() {
            self.write(Piece { logprobs, ..Piece::default() }, out);
        }
    }

    /// Sends the call that is being made: clients expect calls to be whole.
    fn finish_call(&mut self, out: &mut Events) {
        let Some((name, arguments)) = self.call.take() else { return };
        if let Some(call) = whole_call(&self.app, self.n_calls, name, &arguments) {
            self.n_calls += 1;
            self.write(Piece { calls: vec![call], ..Piece::default() }, out);
        }
    }
}

impl Encoder for Lines {
    fn begin(&mut self, _out: &mut Events) {}

    fn update(&mut self, _index: usize, update: Update, out: &mut Events) {
        match update {
            Update::Prompt { .. } | Update::Scored(_) => {}
            Update::Deltas(deltas, logprobs) => self.deltas(deltas, &logprobs, out),
            Update::Done(deltas, answer) => {
                self.deltas(deltas, &[], out);
                self.finish_call(out);
                let Target { model, shape, .. } = &self.target;
                let context = context(&self.app, shape, &self.text, self.thinks);
                out.line(&Piece::default().line(model, shape).ended(&answer, context));
            }
            Update::Failed(error) => Lines::fail(&error, out),
        }
    }

    fn alive(&mut self, out: &mut Events) {
        self.write(Piece::default(), out);
    }

    fn end(&mut self, _out: &mut Events) {}
}

impl Lines {
    fn fail(error: &ApiError, out: &mut Events) {
        out.line(&ErrorReply::new(error, Dialect::Ollama));
        out.fail();
    }
}

#[cfg(test)]
mod tests {
    use moeflux_text::{OutputFormat, OutputParser};

    use serde_json::json;

    use super::*;
    use crate::events::slow;

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_sends_lines_that_add_nothing() {
        let app = slow::app();
        let parser = OutputParser::new(&OutputFormat::plain(), None, false);
        let (answers, sender) = slow::answers(&app, parser, false);
        let target =
            Target { model: String::from("demo"), shape: Shape::Chat, with_logprobs: false };
        let encoder = Box::new(Lines::new(Arc::clone(&app), target));
        let text = slow::text(answers, sender, encoder, &["Hello", " there"]).await;
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let said: Vec<&str> =
            lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
        assert!(said.iter().filter(|text| text.is_empty()).count() > 50);
        assert_eq!(said.concat(), "Hello there");
        let (last, before) = lines.split_last().unwrap();
        assert!(before.iter().all(|line| line["done"] == false));
        assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
        assert_eq!(last["load_duration"], 130_000_000_000_u64);
        assert_eq!(last["prompt_eval_duration"], 420_000_000_000_u64);
        assert_eq!(last["total_duration"], 550_003_000_000_u64);
        assert_eq!(last["prompt_eval_count"], slow::N_PROMPT);
    }
}
