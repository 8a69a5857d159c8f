//! `/v1/messages`: the answer.

use std::sync::Arc;

use moeflux_engine::{Answer, Finish};
use moeflux_text::Delta;
use serde_json::{Value, json};

use crate::app::App;
use crate::ask::{Update, Whole};
use crate::error::ApiError;
use crate::events::{Encoder, Events};
use crate::reply::{Dialect, error_value};

/// The signature of a thinking block. The API demands one; this server does not check it.
const SIGNATURE: &str = "moeflux";

fn message(app: &App, id: &str, content: Vec<Value>) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": app.model_name(),
        "content": content,
        "stop_reason": null,
        "stop_sequence": null,
    })
}

fn usage(n_prompt: usize, n_reused: usize, n_generated: usize) -> Value {
    json!({
        "input_tokens": n_prompt - n_reused,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_reused,
        "output_tokens": n_generated,
    })
}

fn stop_reason(answer: &Answer, has_calls: bool) -> &'static str {
    match answer.finish {
        Finish::MaxTokens => "max_tokens",
        Finish::ContextFull => "model_context_window_exceeded",
        Finish::Stop => "stop_sequence",
        Finish::EndOfText | Finish::Cancelled if has_calls => "tool_use",
        Finish::EndOfText | Finish::Cancelled => "end_turn",
    }
}

/// An answer at once.
pub(super) fn whole(app: &App, whole: Whole) -> Value {
    let Whole { reasoning, content, calls, answer, .. } = whole;
    let has_calls = !calls.is_empty();
    let mut blocks = Vec::new();
    if !reasoning.is_empty() {
        blocks.push(json!({"type": "thinking", "thinking": reasoning, "signature": SIGNATURE}));
    }
    if !content.is_empty() || !has_calls {
        blocks.push(json!({"type": "text", "text": content}));
    }
    for (name, arguments) in calls {
        // An answer that was cut off has cut its last call.
        let input: Value = serde_json::from_str(&arguments).unwrap_or_else(|_| json!({}));
        let id = app.ids.draw("toolu_");
        blocks.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
    }
    let mut value = message(app, &app.ids.draw("msg_"), blocks);
    if let Some(answer) = answer {
        value["stop_reason"] = Value::from(stop_reason(&answer, has_calls));
        value["usage"] = usage(answer.n_prompt, answer.n_reused, answer.n_generated);
        value["stop_sequence"] = Value::from(answer.stop);
    }
    value
}

/// What the open block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    Call,
}

impl Kind {
    /// More of a block.
    fn delta(self, text: &str) -> Value {
        match self {
            Kind::Thinking => json!({"type": "thinking_delta", "thinking": text}),
            Kind::Text => json!({"type": "text_delta", "text": text}),
            Kind::Call => json!({"type": "input_json_delta", "partial_json": text}),
        }
    }
}

/// An answer as it comes.
pub(super) struct MessageStream {
    app: Arc<App>,
    id: String,
    is_begun: bool,
    open: Option<Kind>,
    n_blocks: usize,
    has_calls: bool,
    /// Tokens of the prompt.
    n_prompt: usize,
    /// Whether the answer is expected to begin with thoughts.
    may_think: bool,
}

impl MessageStream {
    /// The answer to a prompt of `n_prompt` tokens.
    pub(super) fn new(app: Arc<App>, n_prompt: usize, may_think: bool) -> MessageStream {
        let id = app.ids.draw("msg_");
        MessageStream {
            app,
            id,
            is_begun: false,
            open: None,
            n_blocks: 0,
            has_calls: false,
            n_prompt,
            may_think,
        }
    }

    fn start(&mut self, n_prompt: usize, n_reused: usize, out: &mut Events) {
        if !std::mem::replace(&mut self.is_begun, true) {
            let mut message = message(&self.app, &self.id, Vec::new());
            message["usage"] = usage(n_prompt, n_reused, 0);
            out.named("message_start", &json!({"type": "message_start", "message": message}));
            out.named("ping", &json!({"type": "ping"}));
        }
    }

    /// Sees to it that a block of this kind is open.
    fn block(&mut self, kind: Kind, content: Value, out: &mut Events) {
        if self.open == Some(kind) && kind != Kind::Call {
            return;
        }
        self.close(out);
        out.named(
            "content_block_start",
            &json!({
                "type": "content_block_start", "index": self.n_blocks, "content_block": content,
            }),
        );
        self.open = Some(kind);
        self.n_blocks += 1;
    }

    fn close(&mut self, out: &mut Events) {
        let Some(kind) = self.open.take() else { return };
        if kind == Kind::Thinking {
            let delta = json!({"type": "signature_delta", "signature": SIGNATURE});
            self.more(delta, out);
        }
        let index = self.n_blocks - 1;
        out.named("content_block_stop", &json!({"type": "content_block_stop", "index": index}));
    }

    /// More of the last block.
    fn more(&self, delta: Value, out: &mut Events) {
        let index = self.n_blocks.saturating_sub(1);
        let value = json!({"type": "content_block_delta", "index": index, "delta": delta});
        out.named("content_block_delta", &value);
    }

    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut Events) {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => self.thought(&text, out),
                Delta::Content(text) => self.said(&text, out),
                Delta::Call { name } => {
                    self.has_calls = true;
                    let id = self.app.ids.draw("toolu_");
                    let empty = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    self.block(Kind::Call, empty, out);
                }
                Delta::Arguments(text) => self.more(Kind::Call.delta(&text), out),
            }
        }
    }

    fn thought(&mut self, text: &str, out: &mut Events) {
        let empty = json!({"type": "thinking", "thinking": "", "signature": ""});
        self.block(Kind::Thinking, empty, out);
        self.more(Kind::Thinking.delta(text), out);
    }

    fn said(&mut self, text: &str, out: &mut Events) {
        self.block(Kind::Text, json!({"type": "text", "text": ""}), out);
        self.more(Kind::Text.delta(text), out);
    }

    fn fail(error: &ApiError, out: &mut Events) {
        out.named("error", &error_value(error, Dialect::Anthropic));
        out.fail();
    }
}

impl Encoder for MessageStream {
    fn begin(&mut self, _out: &mut Events) {}

    fn update(&mut self, _index: usize, update: Update, out: &mut Events) {
        match update {
            Update::Prompt { n_total, n_reused, .. } => self.start(n_total, n_reused, out),
            Update::Deltas(deltas, _) => self.deltas(deltas, out),
            Update::Done(deltas, answer) => {
                self.deltas(deltas, out);
                if self.n_blocks == 0 {
                    self.block(Kind::Text, json!({"type": "text", "text": ""}), out);
                }
                self.close(out);
                let reason = stop_reason(&answer, self.has_calls);
                let value = json!({
                    "type": "message_delta",
                    "delta": {"stop_reason": reason, "stop_sequence": answer.stop},
                    "usage": usage(answer.n_prompt, answer.n_reused, answer.n_generated),
                });
                out.named("message_delta", &value);
            }
            Update::Failed(error) => MessageStream::fail(&error, out),
        }
    }

    /// More of nothing in the open block. Claude Code gives up after 300 s of pings, but counts
    /// deltas that are empty.
    fn alive(&mut self, out: &mut Events) {
        self.start(self.n_prompt, 0, out);
        match self.open {
            None if self.may_think => self.thought("", out),
            None => self.said("", out),
            Some(kind) => self.more(kind.delta(""), out),
        }
    }

    fn end(&mut self, out: &mut Events) {
        out.named("message_stop", &json!({"type": "message_stop"}));
    }
}

#[cfg(test)]
mod tests {
    use moeflux_text::{OutputFormat, OutputParser};

    use super::*;
    use crate::events::slow;

    /// Events of an answer that begins with thoughts or not.
    async fn events(app: &Arc<App>, thinks: bool, pieces: &'static [&'static str]) -> Vec<Value> {
        let parser = OutputParser::new(&OutputFormat::of(app.text.tokenizer()), None, thinks);
        let (answers, sender) = slow::answers(app, parser, thinks);
        let encoder = MessageStream::new(Arc::clone(app), answers.n_prompt(), answers.may_think());
        slow::values(&slow::stream(answers, sender, Box::new(encoder), pieces).await)
    }

    fn of_kind(events: &[Value], kind: &str) -> usize {
        events.iter().filter(|event| event["type"] == kind).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_is_an_open_block_of_text_that_the_answer_goes_on_with() {
        let app = slow::app();
        let events = events(&app, false, &["Hello", " there"]).await;
        let begin = &events[0]["message"]["usage"];
        assert_eq!(events[0]["type"], "message_start");
        assert_eq!(begin["input_tokens"], slow::N_PROMPT);
        assert_eq!(of_kind(&events, "message_start"), 1);
        assert_eq!(of_kind(&events, "content_block_start"), 1);
        assert_eq!(of_kind(&events, "content_block_stop"), 1);
        let deltas: Vec<&str> =
            events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
        assert!(deltas.len() > 50, "{}", deltas.len());
        assert_eq!(deltas.concat(), "Hello there");
        let usage = &events[events.len() - 2]["usage"];
        assert_eq!(usage["cache_read_input_tokens"], 512);
    }

    #[tokio::test(start_paused = true)]
    async fn a_model_that_thinks_waits_in_an_open_block_of_thoughts() {
        let app = slow::app();
        let events = events(&app, true, &["So.</think>Hello"]).await;
        let opened: Vec<&Value> = events
            .iter()
            .map(|event| &event["content_block"]["type"])
            .filter(|kind| kind.is_string())
            .collect();
        assert_eq!(opened[0], "thinking");
        let thought = |event: &Value| event["delta"]["thinking"].as_str().map(str::to_owned);
        assert!(events.iter().filter_map(thought).count() > 50);
        let end = events.len();
        assert_eq!(events[end - 1]["type"], "message_stop");
        assert_eq!(of_kind(&events, "content_block_start"), of_kind(&events, "content_block_stop"));
    }
}
