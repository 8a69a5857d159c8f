//! `/v1/responses`: the answer.

use std::sync::Arc;

use moeflux_engine::{Answer, Finish, TokenLogprob};
use moeflux_text::{Delta, Markup};
use serde_json::{Map, Value, json};

use super::item::{Item, Kind, Status};
use super::tools::{Kind as ToolKind, ToolTable};
use crate::app::App;
use crate::ask::{Update, Whole};
use crate::events::{Encoder, Events};
use crate::ids::now;
use crate::logprobs;
use crate::reply::{Dialect, error_value};
use crate::settings::Settings;

/// What an answer says of its request.
#[derive(Clone, Debug)]
pub(super) struct ResponseHead {
    value: Value,
}

impl ResponseHead {
    /// What an answer repeats of its request.
    pub(super) fn echo(request: &Value) -> Map<String, Value> {
        let fields = [
            "instructions",
            "max_output_tokens",
            "metadata",
            "parallel_tool_calls",
            "reasoning",
            "text",
            "tool_choice",
            "tools",
            "user",
        ];
        fields.into_iter().map(|name| (name.to_owned(), request[name].clone())).collect()
    }

    pub(super) fn new(app: &App, request: Map<String, Value>, settings: &Settings) -> ResponseHead {
        let request = Value::Object(request);
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
        let is_cut = is_cut(answer);
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
    app.text.tokenizer().encode(text, Markup::Literal).map_or(0, |tokens| tokens.len())
}

/// An answer at once.
pub(super) fn whole(app: &App, head: &ResponseHead, table: &ToolTable, whole: Whole) -> Value {
    let Whole { reasoning, content, calls, logprobs, answer } = whole;
    let Some(answer) = answer else { return head.value.clone() };
    let mut items = Vec::new();
    if !reasoning.is_empty() {
        items.push((Kind::Reasoning, reasoning.as_str(), Vec::new()));
    }
    if !content.is_empty() || calls.is_empty() {
        items.push((Kind::Message, content.as_str(), entries(app, &logprobs)));
    }
    for (name, arguments) in &calls {
        items.push((Kind::Call(table.client_tool(name)), arguments.as_str(), Vec::new()));
    }
    let n = items.len();
    let output = items.into_iter().enumerate().map(|(i, (kind, text, logprobs))| {
        let mut item = Item::new(app, kind);
        item.add(text);
        let status = if i + 1 == n { last_status(&answer) } else { Status::Completed };
        item.value(status, &logprobs)
    });
    let output = output.collect();
    head.ended(output, &answer, n_tokens(app, &reasoning))
}

/// Whether the answer's last item is complete.
fn last_status(answer: &Answer) -> Status {
    if is_cut(answer) { Status::Incomplete } else { Status::Completed }
}

fn is_cut(answer: &Answer) -> bool {
    matches!(answer.finish, Finish::MaxTokens | Finish::ContextFull)
}

fn entries(app: &App, all: &[TokenLogprob]) -> Vec<Value> {
    all.iter().map(|entry| logprobs::entry(app.text.tokenizer(), entry)).collect()
}

/// An answer as it comes.
pub(super) struct ResponseStream {
    app: Arc<App>,
    head: ResponseHead,
    table: ToolTable,
    done: Vec<Value>,
    current: Option<Item>,
    logprobs: Vec<Value>,
    reasoning: String,
    n_events: u64,
}

impl ResponseStream {
    pub(super) fn new(app: Arc<App>, head: ResponseHead, table: ToolTable) -> ResponseStream {
        ResponseStream {
            app,
            head,
            table,
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
        let is_call = matches!(kind, Kind::Call(_));
        if !is_call && self.current.as_ref().is_some_and(|item| item.kind == kind) {
            return;
        }
        self.close(Status::Completed, out);
        let item = Item::new(&self.app, kind);
        let value = item.value(Status::InProgress, &[]);
        let part = item.part(&[]);
        self.current = Some(item);
        let index = self.done.len();
        self.send("response.output_item.added", json!({"output_index": index, "item": value}), out);
        if !is_call {
            self.about("response.content_part.added", json!({"part": part}), true, out);
        }
    }

    fn close(&mut self, status: Status, out: &mut Events) {
        let Some(item) = self.current.clone() else { return };
        let logprobs = match item.kind {
            Kind::Message => std::mem::take(&mut self.logprobs),
            _ => Vec::new(),
        };
        let has_part = !matches!(item.kind, Kind::Call(_));
        let ended = match (&item.kind, item.tool_kind()) {
            (Kind::Reasoning, _) => {
                Some(("response.reasoning_text.done", json!({"text": item.text})))
            }
            (Kind::Message, _) => {
                let value = json!({"text": item.text, "logprobs": logprobs});
                Some(("response.output_text.done", value))
            }
            (Kind::Call(tool), Some(ToolKind::Function)) => {
                let value = json!({"arguments": item.text, "name": tool.name});
                Some(("response.function_call_arguments.done", value))
            }
            (Kind::Call(_), Some(ToolKind::Custom)) => {
                Some(("response.custom_tool_call_input.done", json!({"input": item.given()})))
            }
            _ => None,
        };
        if let Some((event, value)) = ended {
            self.about(event, value, has_part, out);
        }
        if has_part {
            let value = json!({"part": item.part(&logprobs)});
            self.about("response.content_part.done", value, true, out);
        }
        let value = item.value(status, &logprobs);
        let index = self.done.len();
        self.current = None;
        self.done.push(value.clone());
        self.send("response.output_item.done", json!({"output_index": index, "item": value}), out);
    }

    fn deltas(&mut self, deltas: Vec<Delta>, logprobs: &[TokenLogprob], out: &mut Events) {
        let mut entries = entries(&self.app, logprobs);
        for delta in deltas {
            let text = match delta {
                Delta::Reasoning(text) => {
                    self.open(Kind::Reasoning, out);
                    self.reasoning.push_str(&text);
                    text
                }
                Delta::Content(text) => {
                    self.open(Kind::Message, out);
                    text
                }
                Delta::Call { name } => {
                    self.open(Kind::Call(self.table.client_tool(&name)), out);
                    continue;
                }
                Delta::Arguments(text) => text,
            };
            let Some(item) = &mut self.current else { continue };
            let Some(more) = item.add(&text) else { continue };
            let (event, has_part) = match (&item.kind, item.tool_kind()) {
                (Kind::Reasoning, _) => ("response.reasoning_text.delta", true),
                (Kind::Message, _) => ("response.output_text.delta", true),
                (_, Some(ToolKind::Custom)) => ("response.custom_tool_call_input.delta", false),
                _ => ("response.function_call_arguments.delta", false),
            };
            let mut value = json!({"delta": more});
            if item.kind == Kind::Message {
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
                self.close(last_status(&answer), out);
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

#[cfg(test)]
mod tests {
    use moeflux_text::{OutputFormat, OutputParser};

    use super::*;
    use crate::events::slow;

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_says_that_the_response_is_in_progress() {
        let app = slow::app();
        let parser = OutputParser::new(&OutputFormat::plain(), None, false);
        let (answers, sender) = slow::answers(&app, parser, false);
        let echo = ResponseHead::echo(&json!({"input": "Hi"}));
        let head = ResponseHead::new(&app, echo, &Settings::of(&app));
        let encoder = ResponseStream::new(Arc::clone(&app), head, ToolTable::default());
        let events = slow::stream(answers, sender, Box::new(encoder), &["Hello"]).await;
        let events = slow::values(&events);
        let waits = events.iter().filter(|event| event["type"] == "response.in_progress");
        assert!(waits.clone().count() > 50);
        assert!(waits.clone().all(|event| event["response"]["status"] == "in_progress"));
        for (i, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], i);
        }
        let last = &events[events.len() - 1];
        assert_eq!(last["response"]["output"][0]["content"][0]["text"], "Hello");
    }
}
