//! `/v1/responses`: the answer.

use std::sync::Arc;

use moeflux_engine::text::{Delta, Markup};
use moeflux_engine::{Answer, Finish, TokenLogprob};
use serde_json::{Value, json};

use crate::app::App;
use crate::ask::{Update, Whole};
use crate::conversation::Settings;
use crate::events::{Encoder, Events};
use crate::ids::now;
use crate::logprobs;
use crate::reply::{Dialect, error_value};

/// What an answer says of its request.
#[derive(Clone, Debug)]
pub(super) struct ResponseHead {
    value: Value,
}

impl ResponseHead {
    pub(super) fn new(app: &App, request: &Value, settings: &Settings) -> ResponseHead {
        let echo = |field: &str, default: Value| match &request[field] {
            Value::Null => default,
            value => value.clone(),
        };
        let value = json!({
            "id": app.ids.draw("resp_"),
            "object": "response",
            "created_at": now(),
            "status": "in_progress",
            "background": false,
            "error": null,
            "incomplete_details": null,
            "instructions": request["instructions"],
            "max_output_tokens": request["max_output_tokens"],
            "metadata": echo("metadata", json!({})),
            "model": app.model_name(),
            "output": [],
            "parallel_tool_calls": echo("parallel_tool_calls", json!(true)),
            "previous_response_id": null,
            "reasoning": echo("reasoning", json!({"effort": null, "summary": null})),
            "service_tier": "default",
            "store": false,
            "temperature": settings.sampler.temperature,
            "text": echo("text", json!({"format": {"type": "text"}})),
            "tool_choice": echo("tool_choice", json!("auto")),
            "tools": echo("tools", json!([])),
            "top_logprobs": settings.top_logprobs.unwrap_or(0),
            "top_p": settings.sampler.top_p,
            "truncation": "disabled",
            "usage": null,
            "user": request["user"],
        });
        ResponseHead { value }
    }

    /// The whole response at its end.
    fn ended(&self, output: Vec<Value>, answer: &Answer, n_reasoning: usize) -> Value {
        let is_cut = matches!(answer.finish, Finish::MaxTokens | Finish::ContextFull);
        let mut value = self.value.clone();
        value["status"] = Value::from(if is_cut { "incomplete" } else { "completed" });
        if is_cut {
            value["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        value["output"] = Value::from(output);
        value["usage"] = json!({
            "input_tokens": answer.n_prompt,
            "input_tokens_details": {"cached_tokens": answer.n_reused},
            "output_tokens": answer.n_generated,
            "output_tokens_details": {"reasoning_tokens": n_reasoning},
            "total_tokens": answer.n_prompt + answer.n_generated,
        });
        value
    }
}

/// Tokens of what was thought.
fn n_tokens(app: &App, text: &str) -> usize {
    app.tokenizer.encode(text, Markup::Literal).map_or(0, |it| it.len())
}

/// An answer at once.
pub(super) fn whole(app: &App, head: &ResponseHead, whole: Whole) -> Value {
    let Whole { reasoning, content, calls, logprobs, answer } = whole;
    let mut items = Items::new(app);
    if !reasoning.is_empty() {
        items.open(Kind::Reasoning);
        items.add(&reasoning);
    }
    if !content.is_empty() || calls.is_empty() {
        items.open(Kind::Message);
        items.add(&content);
        items.logprobs = entries(app, &logprobs);
    }
    for (name, arguments) in calls {
        items.open(Kind::Call { name });
        items.add(&arguments);
    }
    items.close();
    let Some(answer) = answer else { return head.value.clone() };
    head.ended(items.done, &answer, n_tokens(app, &reasoning))
}

fn entries(app: &App, all: &[TokenLogprob]) -> Vec<Value> {
    all.iter().map(|it| logprobs::entry(&app.tokenizer, it)).collect()
}

/// What an item is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call { name: String },
}

/// The items of an answer, the last of which may be open.
struct Items<'a> {
    app: &'a App,
    done: Vec<Value>,
    current: Option<Item>,
    logprobs: Vec<Value>,
}

#[derive(Clone, Debug)]
struct Item {
    kind: Kind,
    id: String,
    call_id: String,
    text: String,
}

impl Item {
    fn new(app: &App, kind: Kind) -> Item {
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call { .. } => "fc_",
        };
        let call_id = app.ids.draw("call_");
        Item { kind, id: app.ids.draw(prefix), call_id, text: String::new() }
    }

    fn value(&self, status: &str, logprobs: &[Value]) -> Value {
        let is_empty = status == "in_progress";
        match &self.kind {
            Kind::Reasoning => {
                let part = json!({"type": "reasoning_text", "text": self.text});
                let content = if is_empty { Vec::new() } else { vec![part] };
                json!({
                    "id": self.id, "type": "reasoning", "status": status, "summary": [],
                    "content": content,
                })
            }
            Kind::Message => {
                let content = if is_empty { Vec::new() } else { vec![self.part(logprobs)] };
                json!({
                    "id": self.id, "type": "message", "status": status, "role": "assistant",
                    "content": content,
                })
            }
            Kind::Call { name } => json!({
                "id": self.id, "type": "function_call", "status": status,
                "call_id": self.call_id, "name": name, "arguments": self.text,
            }),
        }
    }

    fn part(&self, logprobs: &[Value]) -> Value {
        match self.kind {
            Kind::Reasoning => json!({"type": "reasoning_text", "text": self.text}),
            _ => json!({
                "type": "output_text", "text": self.text, "annotations": [],
                "logprobs": logprobs,
            }),
        }
    }
}

impl<'a> Items<'a> {
    fn new(app: &'a App) -> Items<'a> {
        Items { app, done: Vec::new(), current: None, logprobs: Vec::new() }
    }

    fn open(&mut self, kind: Kind) {
        self.close();
        self.current = Some(Item::new(self.app, kind));
    }

    fn add(&mut self, text: &str) {
        if let Some(item) = &mut self.current {
            item.text.push_str(text);
        }
    }

    fn close(&mut self) {
        if let Some(item) = self.current.take() {
            let logprobs = match item.kind {
                Kind::Message => std::mem::take(&mut self.logprobs),
                _ => Vec::new(),
            };
            self.done.push(item.value("completed", &logprobs));
        }
    }
}

/// An answer as it comes.
pub(super) struct ResponseStream {
    app: Arc<App>,
    head: ResponseHead,
    done: Vec<Value>,
    current: Option<Item>,
    logprobs: Vec<Value>,
    reasoning: String,
    n_events: u64,
}

impl ResponseStream {
    pub(super) fn new(app: Arc<App>, head: ResponseHead) -> ResponseStream {
        ResponseStream {
            app,
            head,
            done: Vec::new(),
            current: None,
            logprobs: Vec::new(),
            reasoning: String::new(),
            n_events: 0,
        }
    }

    fn send(&mut self, kind: &str, mut value: Value, out: &mut Events) {
        value["type"] = Value::from(kind);
        value["sequence_number"] = Value::from(self.n_events);
        self.n_events += 1;
        out.named(kind, &value);
    }

    /// About the item that is open.
    fn about(&mut self, kind: &str, mut value: Value, has_part: bool, out: &mut Events) {
        let Some(item) = &self.current else { return };
        value["item_id"] = Value::from(item.id.clone());
        value["output_index"] = Value::from(self.done.len());
        if has_part {
            value["content_index"] = Value::from(0);
        }
        self.send(kind, value, out);
    }

    /// Sees to it that an item of this kind is open.
    fn open(&mut self, kind: Kind, out: &mut Events) {
        let is_call = matches!(kind, Kind::Call { .. });
        if !is_call && self.current.as_ref().is_some_and(|it| it.kind == kind) {
            return;
        }
        self.close(out);
        let item = Item::new(&self.app, kind);
        let value = item.value("in_progress", &[]);
        let part = item.part(&[]);
        self.current = Some(item);
        let index = self.done.len();
        self.send("response.output_item.added", json!({"output_index": index, "item": value}), out);
        if !is_call {
            self.about("response.content_part.added", json!({"part": part}), true, out);
        }
    }

    fn close(&mut self, out: &mut Events) {
        let Some(item) = self.current.clone() else { return };
        let logprobs = match item.kind {
            Kind::Message => std::mem::take(&mut self.logprobs),
            _ => Vec::new(),
        };
        match &item.kind {
            Kind::Call { name } => {
                let value = json!({"arguments": item.text, "name": name});
                self.about("response.function_call_arguments.done", value, false, out);
            }
            Kind::Reasoning => {
                let value = json!({"text": item.text});
                self.about("response.reasoning_text.done", value, true, out);
            }
            Kind::Message => {
                let value = json!({"text": item.text, "logprobs": logprobs});
                self.about("response.output_text.done", value, true, out);
            }
        }
        if !matches!(item.kind, Kind::Call { .. }) {
            let value = json!({"part": item.part(&logprobs)});
            self.about("response.content_part.done", value, true, out);
        }
        let value = item.value("completed", &logprobs);
        let index = self.done.len();
        self.current = None;
        self.done.push(value.clone());
        self.send("response.output_item.done", json!({"output_index": index, "item": value}), out);
    }

    fn deltas(&mut self, deltas: Vec<Delta>, logprobs: &[TokenLogprob], out: &mut Events) {
        let mut entries = entries(&self.app, logprobs);
        for delta in deltas {
            let (event, text) = match delta {
                Delta::Reasoning(text) => {
                    self.open(Kind::Reasoning, out);
                    self.reasoning.push_str(&text);
                    ("response.reasoning_text.delta", text)
                }
                Delta::Content(text) => {
                    self.open(Kind::Message, out);
                    ("response.output_text.delta", text)
                }
                Delta::Call { name } => {
                    self.open(Kind::Call { name }, out);
                    continue;
                }
                Delta::Arguments(text) => ("response.function_call_arguments.delta", text),
            };
            if let Some(item) = &mut self.current {
                item.text.push_str(&text);
            }
            let mut value = json!({"delta": text});
            let has_part = event != "response.function_call_arguments.delta";
            if event == "response.output_text.delta" {
                let entries = std::mem::take(&mut entries);
                value["logprobs"] = Value::from(entries.clone());
                self.logprobs.extend(entries);
            }
            self.about(event, value, has_part, out);
        }
    }
}

impl Encoder for ResponseStream {
    fn begin(&mut self, out: &mut Events) {
        for kind in ["response.created", "response.in_progress"] {
            let value = json!({"response": self.head.value});
            self.send(kind, value, out);
        }
    }

    fn update(&mut self, _index: usize, update: Update, out: &mut Events) {
        match update {
            Update::Prompt { .. } => {}
            Update::Deltas(deltas, logprobs) => self.deltas(deltas, &logprobs, out),
            Update::Done(deltas, answer) => {
                self.deltas(deltas, &[], out);
                if self.done.is_empty() && self.current.is_none() {
                    self.open(Kind::Message, out);
                }
                self.close(out);
                let n_reasoning = n_tokens(&self.app, &self.reasoning);
                let response =
                    self.head.ended(std::mem::take(&mut self.done), &answer, n_reasoning);
                let kind = match response["status"] == "completed" {
                    true => "response.completed",
                    false => "response.incomplete",
                };
                self.send(kind, json!({"response": response}), out);
            }
            Update::Failed(error) => {
                let mut response = self.head.value.clone();
                response["status"] = Value::from("failed");
                let error = &error_value(&error, Dialect::OpenAi)["error"];
                response["error"] = json!({"code": "server_error", "message": error["message"]});
                self.send("response.failed", json!({"response": response}), out);
                out.fail();
            }
        }
    }

    fn alive(&mut self, out: &mut Events) {
        let value = json!({"response": self.head.value});
        self.send("response.in_progress", value, out);
    }

    fn end(&mut self, _out: &mut Events) {}
}
