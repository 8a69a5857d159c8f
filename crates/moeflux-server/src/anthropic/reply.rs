//! `/v1/messages`: the answer.

use std::borrow::Cow;
use std::sync::Arc;

use moeflux_engine::{Answer, Finish};
use moeflux_text::Delta;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::app::App;
use crate::ask::{Update, WholeAnswer};
use crate::error::ApiError;
use crate::events::{Encoder, Events};
use crate::reply::{Dialect, ErrorReply};

/// The signature of a thinking block. The API demands one; this server does not check it.
const SIGNATURE: &str = "moeflux";

/// The next turn of a conversation, of Anthropic's messages.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Message", deny_unknown_fields)]
pub(crate) struct MessageReply<'a> {
    /// Its identifier.
    id: Cow<'a, str>,
    /// `message`.
    r#type: &'static str,
    /// `assistant`.
    role: &'static str,
    /// The model's name.
    model: &'a str,
    /// What the model thought, said and called.
    content: Vec<Block>,
    /// Why it ended; null where it begins.
    stop_reason: Option<MessageEnd>,
    /// The stop text that ended it.
    stop_sequence: Option<String>,
    /// Tokens that it took.
    usage: Usage,
}

/// A part of a message.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "AnswerBlock")]
enum Block {
    /// What the model thought.
    Thinking {
        /// The thoughts.
        thinking: String,
        /// What the API demands; it is not checked here.
        signature: &'static str,
    },
    /// What the model said.
    Text {
        /// The text.
        text: String,
    },
    /// A tool that the model calls.
    ToolUse {
        /// What the result refers to.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments.
        input: Value,
    },
}

/// Why a message ended.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum MessageEnd {
    /// The model has said all.
    EndTurn,
    /// A limit was reached.
    MaxTokens,
    /// A stop text.
    StopSequence,
    /// Tools are called.
    ToolUse,
    /// The context is full.
    ModelContextWindowExceeded,
}

/// Tokens that a message took.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "MessageUsage", deny_unknown_fields)]
struct Usage {
    /// Tokens of the prompt that were evaluated.
    input_tokens: usize,
    /// Always 0.
    cache_creation_input_tokens: usize,
    /// Tokens of the prompt that were known from an earlier request.
    cache_read_input_tokens: usize,
    /// Tokens of the answer.
    output_tokens: usize,
    /// Of the answer's tokens.
    output_tokens_details: OutputDetails,
}

/// Of the answer's tokens.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "MessageOutputDetails", deny_unknown_fields)]
struct OutputDetails {
    /// Tokens of thoughts.
    thinking_tokens: usize,
    /// The same by the name that OpenAI's API has for it.
    reasoning_tokens: usize,
}

/// An event of a stream.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart { message: MessageReply<'a> },
    Ping,
    ContentBlockStart { index: usize, content_block: Block },
    ContentBlockDelta { index: usize, delta: BlockDelta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: End, usage: Usage },
    MessageStop,
}

/// More of a block.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
enum BlockDelta<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "input_json_delta")]
    Input { partial_json: &'a str },
}

/// How a message ended.
#[derive(Debug, Serialize)]
struct End {
    stop_reason: MessageEnd,
    stop_sequence: Option<String>,
}

impl Event<'_> {
    fn send(&self, out: &mut Events) {
        let name = match self {
            Event::MessageStart { .. } => "message_start",
            Event::Ping => "ping",
            Event::ContentBlockStart { .. } => "content_block_start",
            Event::ContentBlockDelta { .. } => "content_block_delta",
            Event::ContentBlockStop { .. } => "content_block_stop",
            Event::MessageDelta { .. } => "message_delta",
            Event::MessageStop => "message_stop",
        };
        out.named(name, self);
    }
}

impl<'a> MessageReply<'a> {
    fn new(app: &'a App, id: impl Into<Cow<'a, str>>, content: Vec<Block>, usage: Usage) -> Self {
        MessageReply {
            id: id.into(),
            r#type: "message",
            role: "assistant",
            model: app.model_name(),
            content,
            stop_reason: None,
            stop_sequence: None,
            usage,
        }
    }
}

impl Block {
    fn text(text: impl Into<String>) -> Block {
        Block::Text { text: text.into() }
    }
}

impl Usage {
    fn new(n_prompt: usize, n_reused: usize, n_generated: usize) -> Usage {
        Usage {
            input_tokens: n_prompt - n_reused,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: n_reused,
            output_tokens: n_generated,
            output_tokens_details: OutputDetails::default(),
        }
    }

    fn of(answer: &Answer) -> Usage {
        let n = answer.n_thought;
        let output_tokens_details = OutputDetails { thinking_tokens: n, reasoning_tokens: n };
        let usage = Usage::new(answer.n_prompt, answer.n_reused, answer.n_generated);
        Usage { output_tokens_details, ..usage }
    }
}

impl MessageEnd {
    fn of(answer: &Answer, has_calls: bool) -> MessageEnd {
        match answer.finish {
            Finish::MaxTokens => MessageEnd::MaxTokens,
            Finish::ContextFull => MessageEnd::ModelContextWindowExceeded,
            Finish::Stop => MessageEnd::StopSequence,
            Finish::EndOfText | Finish::Cancelled if has_calls => MessageEnd::ToolUse,
            Finish::EndOfText | Finish::Cancelled => MessageEnd::EndTurn,
        }
    }
}

/// An answer at once.
pub(super) fn whole(app: &App, whole: WholeAnswer) -> MessageReply<'_> {
    let WholeAnswer { reasoning, content, calls, answer, .. } = whole;
    let has_calls = !calls.is_empty();
    let mut blocks = Vec::new();
    if !reasoning.is_empty() {
        blocks.push(Block::Thinking { thinking: reasoning, signature: SIGNATURE });
    }
    if !content.is_empty() || !has_calls {
        blocks.push(Block::text(content));
    }
    for (name, arguments) in calls {
        // An answer that was cut off has cut its last call.
        let input = serde_json::from_str(&arguments).unwrap_or_else(|_| Value::Object(Map::new()));
        blocks.push(Block::ToolUse { id: app.ids.draw("toolu_"), name, input });
    }
    let usage = answer.as_ref().map(Usage::of).unwrap_or_default();
    let message = MessageReply::new(app, app.ids.draw("msg_"), blocks, usage);
    let stop_reason = answer.as_ref().map(|answer| MessageEnd::of(answer, has_calls));
    let stop_sequence = answer.and_then(|answer| answer.stop);
    MessageReply { stop_reason, stop_sequence, ..message }
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
    fn delta(self, text: &str) -> BlockDelta<'_> {
        match self {
            Kind::Thinking => BlockDelta::Thinking { thinking: text },
            Kind::Text => BlockDelta::Text { text },
            Kind::Call => BlockDelta::Input { partial_json: text },
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
            let usage = Usage::new(n_prompt, n_reused, 0);
            let message = MessageReply::new(&self.app, self.id.as_str(), Vec::new(), usage);
            Event::MessageStart { message }.send(out);
            Event::Ping.send(out);
        }
    }

    /// Sees to it that a block of this kind is open.
    fn block(&mut self, kind: Kind, content_block: Block, out: &mut Events) {
        if self.open == Some(kind) && kind != Kind::Call {
            return;
        }
        self.close(out);
        Event::ContentBlockStart { index: self.n_blocks, content_block }.send(out);
        self.open = Some(kind);
        self.n_blocks += 1;
    }

    fn close(&mut self, out: &mut Events) {
        let Some(kind) = self.open.take() else { return };
        if kind == Kind::Thinking {
            self.more(BlockDelta::Signature { signature: SIGNATURE }, out);
        }
        Event::ContentBlockStop { index: self.n_blocks - 1 }.send(out);
    }

    /// More of the last block.
    fn more(&self, delta: BlockDelta<'_>, out: &mut Events) {
        Event::ContentBlockDelta { index: self.n_blocks.saturating_sub(1), delta }.send(out);
    }

    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut Events) {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => self.thought(&text, out),
                Delta::Content(text) => self.said(&text, out),
                Delta::Call { name } => {
                    self.has_calls = true;
                    let id = self.app.ids.draw("toolu_");
                    let input = Value::Object(Map::new());
                    self.block(Kind::Call, Block::ToolUse { id, name, input }, out);
                }
                Delta::Arguments(text) => self.more(Kind::Call.delta(&text), out),
            }
        }
    }

    fn thought(&mut self, text: &str, out: &mut Events) {
        let empty = Block::Thinking { thinking: String::new(), signature: "" };
        self.block(Kind::Thinking, empty, out);
        self.more(Kind::Thinking.delta(text), out);
    }

    fn said(&mut self, text: &str, out: &mut Events) {
        self.block(Kind::Text, Block::text(""), out);
        self.more(Kind::Text.delta(text), out);
    }

    fn fail(error: &ApiError, out: &mut Events) {
        out.named("error", &ErrorReply::new(error, Dialect::Anthropic));
        out.fail();
    }
}

impl Encoder for MessageStream {
    fn begin(&mut self, _out: &mut Events) {}

    fn update(&mut self, _index: usize, update: Update, out: &mut Events) {
        match update {
            Update::Prompt { n_total, n_reused, .. } => self.start(n_total, n_reused, out),
            Update::Scored(_) => {}
            Update::Deltas(deltas, _) => self.deltas(deltas, out),
            Update::Done(deltas, answer) => {
                self.deltas(deltas, out);
                if self.n_blocks == 0 {
                    self.block(Kind::Text, Block::text(""), out);
                }
                self.close(out);
                let usage = Usage::of(&answer);
                let stop_reason = MessageEnd::of(&answer, self.has_calls);
                let delta = End { stop_reason, stop_sequence: answer.stop };
                Event::MessageDelta { delta, usage }.send(out);
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
        Event::MessageStop.send(out);
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
