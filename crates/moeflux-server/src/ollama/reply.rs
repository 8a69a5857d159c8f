//! Answers: a line of JSON for each piece, or one object.

use std::sync::Arc;

use axum::http::StatusCode;
use chrono::{SecondsFormat, Utc};
use moeflux_core::nanoseconds;
use moeflux_engine::{Answer, Finish, TokenId, TokenLogprob};
use moeflux_text::{Delta, Markup};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::ask::{Answers, Update, Whole, collect};
use crate::error::{ApiError, ApiResult};
use crate::events::{Encoder, EventStream, Events};
use crate::reply::{self, Dialect, Reply, error_value};
use crate::{events, logprobs};

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
pub(super) enum Shape {
    /// A message.
    Chat,
    /// Text. The prompt's tokens come back with the answer's as `context`, where there is one.
    Text { prompt: Option<Vec<TokenId>> },
}

/// What a request without a prompt asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loading {
    Load,
    Unload,
}

impl Loading {
    /// By `keep_alive`: a number of seconds, or a duration such as `5m`; 0 unloads.
    pub(super) fn of(keep_alive: Option<&Value>) -> Loading {
        let is_zero = match keep_alive {
            Some(Value::Number(number)) => number.as_f64() == Some(0.0),
            Some(Value::String(text)) => {
                let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                number.parse::<f64>().is_ok_and(|number| number == 0.0)
            }
            _ => false,
        };
        if is_zero { Loading::Unload } else { Loading::Load }
    }
}

/// The reply to a request that only loads or unloads the model. It stays loaded.
pub(super) fn loaded(model: &str, shape: Shape, loading: Loading) -> Reply {
    let reason = match loading {
        Loading::Load => "load",
        Loading::Unload => "unload",
    };
    let mut value = Piece::default().object(model, &shape);
    value["done"] = Value::Bool(true);
    value["done_reason"] = Value::from(reason);
    reply::json(StatusCode::OK, &value)
}

/// Sends an answer, as it is made or at once.
pub(super) async fn answer(
    app: Arc<App>,
    answers: Answers,
    target: Target,
    is_stream: bool,
) -> ApiResult<Reply> {
    if is_stream {
        let encoder = Lines::new(app, target);
        return Ok(events::lines(EventStream::new(answers, Box::new(encoder))));
    }
    let whole = collect(answers).await?.into_iter().next().unwrap_or_default();
    let Whole { reasoning, content, calls, logprobs, answer } = whole;
    let mut piece = Piece { text: content, thinking: reasoning, ..Piece::default() };
    for (name, arguments) in calls {
        let call = call_value(&app, piece.calls.len(), &name, &arguments);
        piece.calls.extend(call);
    }
    if target.with_logprobs {
        piece.logprobs = entries(&app, &logprobs);
    }
    let context = context(&app, &target.shape, &piece.text, !piece.thinking.is_empty());
    let mut value = piece.object(&target.model, &target.shape);
    if let Some(answer) = answer {
        end(&mut value, &answer, context);
    }
    Ok(reply::json(StatusCode::OK, &value))
}

/// A part of an answer.
#[derive(Clone, Debug, Default)]
struct Piece {
    text: String,
    thinking: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
}

impl Piece {
    /// The object that holds it.
    fn object(self, model: &str, shape: &Shape) -> Value {
        let mut value = Map::new();
        value.insert("model".into(), Value::from(model));
        value.insert("created_at".into(), Value::from(now()));
        match shape {
            Shape::Chat => {
                let mut message = json!({"role": "assistant", "content": self.text});
                if !self.thinking.is_empty() {
                    message["thinking"] = Value::from(self.thinking);
                }
                if !self.calls.is_empty() {
                    message["tool_calls"] = Value::from(self.calls);
                }
                value.insert("message".into(), message);
            }
            Shape::Text { .. } => {
                value.insert("response".into(), Value::from(self.text));
                if !self.thinking.is_empty() {
                    value.insert("thinking".into(), Value::from(self.thinking));
                }
            }
        }
        if !self.logprobs.is_empty() {
            value.insert("logprobs".into(), Value::from(self.logprobs));
        }
        value.insert("done".into(), Value::Bool(false));
        Value::Object(value)
    }
}

/// Adds what the last object of an answer has. Durations are in nanoseconds.
fn end(value: &mut Value, answer: &Answer, context: Option<Vec<u32>>) {
    value["done"] = Value::Bool(true);
    value["done_reason"] = Value::from(match answer.finish {
        Finish::MaxTokens | Finish::ContextFull => "length",
        Finish::EndOfText | Finish::Stop | Finish::Cancelled => "stop",
    });
    if let Some(context) = context {
        value["context"] = Value::from(context);
    }
    let first_token = answer.first_token.unwrap_or(answer.queued);
    value["total_duration"] = Value::from(nanoseconds(first_token + answer.decode));
    // The model is loaded: what came before the prompt was the wait for a session.
    value["load_duration"] = Value::from(nanoseconds(answer.queued));
    value["prompt_eval_count"] = Value::from(answer.n_prompt);
    value["prompt_eval_duration"] =
        Value::from(nanoseconds(first_token.saturating_sub(answer.queued)));
    value["eval_count"] = Value::from(answer.n_generated);
    value["eval_duration"] = Value::from(nanoseconds(answer.decode));
}

/// The tokens of a prompt and of its answer, from which a later prompt goes on. Thoughts do not go
/// into a history, so there is none of an answer that was thought about.
fn context(app: &App, shape: &Shape, text: &str, thinks: bool) -> Option<Vec<u32>> {
    let Shape::Text { prompt: Some(prompt) } = shape else { return None };
    let answer = app.text.tokenizer().encode(text, Markup::Literal).ok().filter(|_| !thinks)?;
    let end = app.text.tokenizer().eos_ids().first();
    Some(prompt.iter().chain(&answer).chain(end).map(|token| token.0).collect())
}

/// A call with its arguments as an object; none of a call that was cut off.
fn call_value(app: &App, index: usize, name: &str, arguments: &str) -> Option<Value> {
    let arguments: Map<String, Value> = match arguments.trim() {
        "" => Map::new(),
        text => serde_json::from_str(text).ok()?,
    };
    let id = app.ids.draw("call_");
    Some(json!({"id": id, "function": {"index": index, "name": name, "arguments": arguments}}))
}

fn entries(app: &App, logprobs: &[TokenLogprob]) -> Vec<Value> {
    logprobs.iter().map(|logprob| logprobs::entry(app.text.tokenizer(), logprob)).collect()
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
        out.line(&piece.object(&self.target.model, &self.target.shape));
    }

    fn deltas(&mut self, deltas: Vec<Delta>, logprobs: &[TokenLogprob], out: &mut Events) {
        let mut logprobs = match self.target.with_logprobs {
            true => entries(&self.app, logprobs),
            false => Vec::new(),
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
        if let Some(call) = call_value(&self.app, self.n_calls, &name, &arguments) {
            self.n_calls += 1;
            self.write(Piece { calls: vec![call], ..Piece::default() }, out);
        }
    }
}

impl Encoder for Lines {
    fn begin(&mut self, _out: &mut Events) {}

    fn update(&mut self, _index: usize, update: Update, out: &mut Events) {
        match update {
            Update::Prompt { .. } => {}
            Update::Deltas(deltas, logprobs) => self.deltas(deltas, &logprobs, out),
            Update::Done(deltas, answer) => {
                self.deltas(deltas, &[], out);
                self.finish_call(out);
                let Target { model, shape, .. } = &self.target;
                let mut value = Piece::default().object(model, shape);
                end(&mut value, &answer, context(&self.app, shape, &self.text, self.thinks));
                out.line(&value);
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
        out.line(&error_value(error, Dialect::Ollama));
        out.fail();
    }
}

#[cfg(test)]
mod tests {
    use moeflux_text::{OutputFormat, OutputParser};

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

    #[test]
    fn zero_in_any_unit_unloads() {
        for value in [json!(0), json!(0.0), json!("0"), json!("0s"), json!("0m")] {
            assert_eq!(Loading::of(Some(&value)), Loading::Unload, "{value}");
        }
        for value in [json!(-1), json!("5m"), json!("-1s"), json!(""), json!(null), json!(10)] {
            assert_eq!(Loading::of(Some(&value)), Loading::Load, "{value}");
        }
        assert_eq!(Loading::of(None), Loading::Load);
    }
}
