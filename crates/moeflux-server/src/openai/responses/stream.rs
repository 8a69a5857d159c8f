//! `/v1/responses`: the answer as events.

use moeflux_engine::TokenLogprob;
use moeflux_text::Delta;
use serde::Serialize;

use super::item::{Item, Kind, OutputItem, Part, Status, Summary};
use super::response::{Response, Task, last_status};
use super::tools::Kind as ToolKind;
use crate::ask::Update;
use crate::events::{Encoder, Events};
use crate::logprobs::{self, Entry};

/// An event of a stream.
#[derive(Serialize)]
struct Event<T> {
    #[serde(flatten)]
    body: T,
    r#type: &'static str,
    sequence_number: u64,
}

/// An event about the item that is open.
#[derive(Serialize)]
struct About<T> {
    #[serde(flatten)]
    body: T,
    item_id: String,
    output_index: usize,
    /// Where it is about the item's part.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
    /// Where it is about the item's summary.
    #[serde(skip_serializing_if = "Option::is_none")]
    summary_index: Option<usize>,
}

/// Which part of an item an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Item,
    Content,
    Summary,
}

/// The state of the response.
#[derive(Serialize)]
struct State<'a> {
    response: &'a Response,
}

/// An item that was begun or ended.
#[derive(Serialize)]
struct Placed {
    output_index: usize,
    item: OutputItem,
}

/// A part that was begun or ended.
#[derive(Serialize)]
struct OfPart<P> {
    part: P,
}

/// More of an item.
#[derive(Serialize)]
struct More {
    delta: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Entry>>,
}

/// All of an item.
#[derive(Serialize)]
#[serde(untagged)]
enum All {
    Thought { text: String },
    Text { text: String, logprobs: Vec<Entry> },
    Function { arguments: String, name: String },
    Custom { input: String },
}

/// An answer as it comes.
pub(super) struct ResponseStream {
    task: Task,
    done: Vec<OutputItem>,
    current: Option<Item>,
    logprobs: Vec<Entry>,
    n_events: u64,
}

impl ResponseStream {
    pub(super) fn new(task: Task) -> ResponseStream {
        let (done, logprobs) = (Vec::new(), Vec::new());
        ResponseStream { task, done, current: None, logprobs, n_events: 0 }
    }

    fn send(&mut self, r#type: &'static str, body: impl Serialize, out: &mut Events) {
        let sequence_number = self.n_events;
        self.n_events += 1;
        out.named(r#type, &Event { body, r#type, sequence_number });
    }

    /// Sends what the response was at its beginning.
    fn send_begun(&mut self, r#type: &'static str, out: &mut Events) {
        let response = self.task.begun.clone();
        self.send(r#type, State { response: &response }, out);
    }

    /// Sends an event about the item that is open.
    fn about(&mut self, r#type: &'static str, body: impl Serialize, of: Of, out: &mut Events) {
        let Some(item) = &self.current else { return };
        let about = About {
            body,
            item_id: item.id.clone(),
            output_index: self.done.len(),
            content_index: (of == Of::Content).then_some(0),
            summary_index: (of == Of::Summary).then_some(0),
        };
        self.send(r#type, about, out);
    }

    /// The part of items of a kind that has their text.
    fn part_of(&self, kind: &Kind) -> Of {
        match kind {
            Kind::Reasoning if self.task.style.summarises => Of::Summary,
            Kind::Reasoning | Kind::Message => Of::Content,
            Kind::Call(_) => Of::Item,
        }
    }

    /// Sees to it that an item of this kind is open.
    fn open(&mut self, kind: Kind, out: &mut Events) {
        let is_call = matches!(kind, Kind::Call(_));
        if !is_call && self.current.as_ref().is_some_and(|item| item.kind == kind) {
            return;
        }
        self.close(Status::Completed, out);
        let (of, item) = (self.part_of(&kind), self.task.item(self.done.len(), kind));
        let output = item.output(Status::InProgress, &[], self.task.style);
        let (part, summary): (Part, Summary) = (item.part(&[]), item.summary());
        self.current = Some(item);
        let placed = Placed { output_index: self.done.len(), item: output };
        self.send("response.output_item.added", placed, out);
        match of {
            Of::Item => {}
            Of::Content => {
                self.about("response.content_part.added", OfPart { part }, of, out);
            }
            Of::Summary => {
                let part = OfPart { part: summary };
                self.about("response.reasoning_summary_part.added", part, of, out);
            }
        }
    }

    fn close(&mut self, status: Status, out: &mut Events) {
        let Some(item) = self.current.clone() else { return };
        let logprobs = match item.kind {
            Kind::Message => std::mem::take(&mut self.logprobs),
            _ => Vec::new(),
        };
        let of = self.part_of(&item.kind);
        let text = item.text.clone();
        let ended = match (&item.kind, item.tool_kind()) {
            (Kind::Reasoning, _) if of == Of::Summary => {
                Some(("response.reasoning_summary_text.done", All::Thought { text }))
            }
            (Kind::Reasoning, _) => Some(("response.reasoning_text.done", All::Thought { text })),
            (Kind::Message, _) => {
                let all = All::Text { text, logprobs: logprobs.clone() };
                Some(("response.output_text.done", all))
            }
            (Kind::Call(tool), Some(ToolKind::Function)) => {
                let all = All::Function { arguments: text, name: tool.name.clone() };
                Some(("response.function_call_arguments.done", all))
            }
            (Kind::Call(_), Some(ToolKind::Custom)) => {
                let all = All::Custom { input: item.given() };
                Some(("response.custom_tool_call_input.done", all))
            }
            _ => None,
        };
        if let Some((event, all)) = ended {
            self.about(event, all, of, out);
        }
        match of {
            Of::Item => {}
            Of::Content => {
                let part = item.part(&logprobs);
                self.about("response.content_part.done", OfPart { part }, of, out);
            }
            Of::Summary => {
                let part = OfPart { part: item.summary() };
                self.about("response.reasoning_summary_part.done", part, of, out);
            }
        }
        let output = item.output(status, &logprobs, self.task.style);
        let placed = Placed { output_index: self.done.len(), item: output.clone() };
        self.current = None;
        self.done.push(output);
        self.send("response.output_item.done", placed, out);
    }

    fn deltas(&mut self, deltas: Vec<Delta>, logprobs: &[TokenLogprob], out: &mut Events) {
        let mut entries = logprobs::entries(self.task.app.text.tokenizer(), logprobs);
        for delta in deltas {
            let text = match delta {
                Delta::Reasoning(text) => {
                    self.open(Kind::Reasoning, out);
                    text
                }
                Delta::Content(text) => {
                    self.open(Kind::Message, out);
                    text
                }
                Delta::Call { name } => {
                    self.open(Kind::Call(self.task.table.client_tool(&name)), out);
                    continue;
                }
                Delta::Arguments(text) => text,
            };
            let Some(item) = &mut self.current else { continue };
            let Some(more) = item.add(&text) else { continue };
            let (kind, tool_kind) = (item.kind.clone(), item.tool_kind());
            let of = self.part_of(&kind);
            let event = match (&kind, tool_kind) {
                (Kind::Reasoning, _) if of == Of::Summary => {
                    "response.reasoning_summary_text.delta"
                }
                (Kind::Reasoning, _) => "response.reasoning_text.delta",
                (Kind::Message, _) => "response.output_text.delta",
                (_, Some(ToolKind::Custom)) => "response.custom_tool_call_input.delta",
                _ => "response.function_call_arguments.delta",
            };
            let logprobs = (kind == Kind::Message).then(|| std::mem::take(&mut entries));
            self.logprobs.extend(logprobs.iter().flatten().cloned());
            self.about(event, More { delta: more, logprobs }, of, out);
        }
    }
}

impl Encoder for ResponseStream {
    fn begin(&mut self, out: &mut Events) {
        for kind in ["response.created", "response.in_progress"] {
            self.send_begun(kind, out);
        }
    }

    fn update(&mut self, _index: usize, update: Update, out: &mut Events) {
        match update {
            Update::Prompt { .. } | Update::Scored(_) => {}
            Update::Deltas(deltas, logprobs) => self.deltas(deltas, &logprobs, out),
            Update::Done(deltas, answer) => {
                self.deltas(deltas, &[], out);
                if self.done.is_empty() && self.current.is_none() {
                    self.open(Kind::Message, out);
                }
                self.close(last_status(&answer), out);
                let output = std::mem::take(&mut self.done);
                let response = self.task.ended(output, &answer);
                self.send(response.end_event(), State { response: &response }, out);
            }
            Update::Failed(error) => {
                let response = self.task.begun.failed(&error);
                self.send("response.failed", State { response: &response }, out);
                out.fail();
            }
        }
    }

    fn alive(&mut self, out: &mut Events) {
        self.send_begun("response.in_progress", out);
    }

    fn end(&mut self, _out: &mut Events) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moeflux_text::{OutputFormat, OutputParser};
    use serde_json::json;

    use super::super::item::AnswerStyle;
    use super::super::response::Echo;
    use super::super::tools::ToolTable;
    use super::*;
    use crate::events::slow;
    use crate::settings::Settings;

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_says_that_the_response_is_in_progress() {
        let app = slow::app();
        let parser = OutputParser::new(&OutputFormat::plain(), None, false);
        let (answers, sender) = slow::answers(&app, parser, false);
        let echo = Echo::of(&json!({"input": "Hi"}));
        let begun = Response::new(&app, echo, &Settings::of(&app));
        let (table, style) = (ToolTable::default(), AnswerStyle::default());
        let task = Task { app: Arc::clone(&app), begun, table, record: None, style };
        let encoder = ResponseStream::new(task);
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
