//! `/v1/chat/completions`: the answer.

use std::sync::Arc;

use moeflux_engine::{Answer, Finish, TokenLogprob};
use moeflux_text::Delta;
use schemars::JsonSchema;
use serde::Serialize;

use super::usage::Usage;
use crate::app::App;
use crate::ask::{self, Update, WholeAnswer};
use crate::events::{Encoder, Events};
use crate::ids::now;
use crate::logprobs;
use crate::openai::chat_request::StreamOptions;
use crate::reply::{Dialect, ErrorReply};

/// What stands at the head of every object of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) n: usize,
    pub(crate) with_logprobs: bool,
    pub(crate) calls: CallShape,
}

/// How calls are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CallShape {
    /// As `tool_calls`.
    #[default]
    Tools,
    /// As the one `function_call` that clients knew before there were tools.
    Function,
}

/// The next turn of a conversation.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ChatCompletion<'a> {
    /// Its identifier.
    id: &'a str,
    /// `chat.completion`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// The model's name.
    model: &'a str,
    /// Tells models and arithmetics apart.
    system_fingerprint: &'a str,
    /// The answers.
    #[schemars(length(min = 1))]
    choices: Vec<ChatChoice>,
    /// Tokens that they took.
    usage: Usage,
}

/// An answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct ChatChoice {
    /// Which answer it is, from 0.
    index: usize,
    /// What the model says.
    message: AnswerMessage,
    /// The logarithms of the tokens' probabilities, where they are wanted.
    logprobs: Option<ChatLogprobs>,
    /// Why the answer ended.
    finish_reason: Option<ChatEnd>,
}

/// What the model says.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct AnswerMessage {
    /// `assistant`.
    role: &'static str,
    /// The text.
    content: Option<String>,
    /// Always null.
    refusal: Option<String>,
    /// What the model thought.
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    /// The function that it calls, where the request has `functions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<CalledFunction>,
    /// Tools that it calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<AnswerCall>,
}

/// A call of a tool.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct AnswerCall {
    /// What the result refers to.
    id: String,
    /// `function`.
    r#type: &'static str,
    /// What is called.
    function: CalledFunction,
}

/// A function that is called.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct CalledFunction {
    /// Its name.
    name: String,
    /// Arguments as the text of a JSON object.
    arguments: String,
}

/// Tokens of an answer and their probabilities.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct ChatLogprobs {
    /// The tokens.
    content: Vec<logprobs::Entry>,
    /// Always null.
    refusal: Option<String>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ChatEnd {
    /// The model has said all.
    Stop,
    /// A limit was reached.
    Length,
    /// Tools are called.
    ToolCalls,
    /// A function is called.
    FunctionCall,
}

impl Head {
    pub(crate) fn new(app: &App, prefix: &str, n: usize, with_logprobs: bool) -> Head {
        Head {
            id: app.ids.draw(prefix),
            created: now(),
            n,
            with_logprobs,
            calls: CallShape::default(),
        }
    }

    /// A part of an answer with this head.
    pub(super) fn chunk<'a, C>(
        &'a self,
        app: &'a App,
        object: &'static str,
        choices: Vec<C>,
        usage: ChunkUsage,
    ) -> Chunk<'a, C> {
        Chunk {
            id: &self.id,
            object,
            created: self.created,
            model: app.model_name(),
            system_fingerprint: &app.fingerprint,
            choices,
            usage,
            prompt_progress: None,
        }
    }
}

/// All answers at once.
pub(crate) fn whole<'a>(app: &'a App, head: &'a Head, all: Vec<WholeAnswer>) -> ChatCompletion<'a> {
    let mut usage = ask::Usage::default();
    let mut choices = Vec::with_capacity(all.len());
    for (index, whole) in all.into_iter().enumerate() {
        let finish_reason = whole.answer.as_ref().map(|answer| {
            usage.add(index, head.n, answer);
            end(answer, !whole.calls.is_empty(), head.calls)
        });
        let logprobs = head.with_logprobs.then(|| ChatLogprobs::of(app, &whole.logprobs));
        let message = AnswerMessage::of(app, whole, head.calls);
        choices.push(ChatChoice { index, message, logprobs, finish_reason });
    }
    ChatCompletion {
        id: &head.id,
        object: "chat.completion",
        created: head.created,
        model: app.model_name(),
        system_fingerprint: &app.fingerprint,
        choices,
        usage: usage.into(),
    }
}

impl AnswerMessage {
    fn of(app: &App, whole: WholeAnswer, shape: CallShape) -> AnswerMessage {
        let WholeAnswer { reasoning, content, calls, .. } = whole;
        let content = if content.is_empty() && !calls.is_empty() { None } else { Some(content) };
        let mut functions =
            calls.into_iter().map(|(name, arguments)| CalledFunction { name, arguments });
        let (function_call, tool_calls) = match shape {
            CallShape::Function => (functions.next(), Vec::new()),
            CallShape::Tools => {
                let id = || app.ids.draw("call_");
                let call = |function| AnswerCall { id: id(), r#type: "function", function };
                (None, functions.map(call).collect())
            }
        };
        AnswerMessage {
            role: "assistant",
            content,
            refusal: None,
            reasoning_content: reasoning,
            function_call,
            tool_calls,
        }
    }
}

impl ChatLogprobs {
    fn of(app: &App, all: &[TokenLogprob]) -> ChatLogprobs {
        ChatLogprobs { content: logprobs::entries(app.text.tokenizer(), all), refusal: None }
    }
}

fn end(answer: &Answer, has_calls: bool, shape: CallShape) -> ChatEnd {
    match answer.finish {
        Finish::MaxTokens | Finish::ContextFull => ChatEnd::Length,
        Finish::EndOfText | Finish::Stop | Finish::Cancelled => match shape {
            _ if !has_calls => ChatEnd::Stop,
            CallShape::Tools => ChatEnd::ToolCalls,
            CallShape::Function => ChatEnd::FunctionCall,
        },
    }
}

/// A part of an answer: an event of a stream.
#[derive(Debug, Serialize)]
pub(super) struct Chunk<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: Vec<C>,
    #[serde(skip_serializing_if = "ChunkUsage::is_absent")]
    usage: ChunkUsage,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<Progress>,
}

/// What a part says of the tokens that the answers took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum ChunkUsage {
    /// Nothing, as the client does not want it.
    Absent,
    /// Null: another chunk of the stream has the usage.
    Elsewhere,
    /// Their number.
    Here(Usage),
}

impl ChunkUsage {
    fn is_absent(&self) -> bool {
        *self == ChunkUsage::Absent
    }
}

/// How far the prompt is read.
#[derive(Debug, Serialize)]
struct Progress {
    processed: usize,
    total: usize,
    cache: usize,
}

/// More of an answer.
#[derive(Debug, Serialize)]
struct ChunkChoice {
    index: usize,
    delta: MessageDelta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<ChatEnd>,
}

/// More of a message.
#[derive(Debug, Default, Serialize)]
struct MessageDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<FunctionDelta>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta; 1]>,
}

/// More of a call, or its beginning.
#[derive(Debug, Serialize)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: FunctionDelta,
}

/// More of a call's arguments; its beginning has the name.
#[derive(Debug, Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

/// Answers as they come.
pub(crate) struct ChatStream {
    app: Arc<App>,
    head: Head,
    streaming: Streaming,
    /// Calls of each answer so far.
    n_calls: Vec<usize>,
    has_ended: Vec<bool>,
    usage: ask::Usage,
}

impl ChatStream {
    pub(crate) fn new(app: Arc<App>, head: Head, streaming: Streaming) -> ChatStream {
        let n_calls = vec![0; head.n];
        let has_ended = vec![false; head.n];
        ChatStream { app, head, streaming, n_calls, has_ended, usage: ask::Usage::default() }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: ChunkUsage) -> Chunk<'_, ChunkChoice> {
        self.head.chunk(&self.app, "chat.completion.chunk", choices, usage)
    }

    fn send(&self, choice: ChunkChoice, out: &mut Events) {
        out.data(&self.chunk(vec![choice], self.streaming.usage_before_end()));
    }

    /// Sends more of an answer.
    fn more(
        &self,
        index: usize,
        delta: MessageDelta,
        logprobs: Option<ChatLogprobs>,
        out: &mut Events,
    ) {
        self.send(ChunkChoice { index, delta, logprobs, finish_reason: None }, out);
    }

    fn deltas(&mut self, i: usize, all: Vec<Delta>, logprobs: &[TokenLogprob], out: &mut Events) {
        let is_wanted = self.head.with_logprobs && !logprobs.is_empty();
        let mut logprobs = is_wanted.then(|| ChatLogprobs::of(&self.app, logprobs));
        if all.is_empty() && logprobs.is_some() {
            self.more(i, MessageDelta::default(), logprobs.take(), out);
        }
        for delta in all {
            let delta = self.delta(i, delta);
            self.more(i, delta, logprobs.take(), out);
        }
    }

    fn delta(&mut self, i: usize, delta: Delta) -> MessageDelta {
        let (function, begun) = match delta {
            Delta::Content(text) => {
                return MessageDelta { content: Some(text), ..MessageDelta::default() };
            }
            Delta::Reasoning(text) => {
                return MessageDelta { reasoning_content: Some(text), ..MessageDelta::default() };
            }
            Delta::Call { name } => {
                self.n_calls[i] += 1;
                let id = self.app.ids.draw("call_");
                (FunctionDelta { name: Some(name), arguments: String::new() }, Some(id))
            }
            Delta::Arguments(arguments) => (FunctionDelta { name: None, arguments }, None),
        };
        if self.head.calls == CallShape::Function {
            return MessageDelta { function_call: Some(function), ..MessageDelta::default() };
        }
        let call = CallDelta {
            index: self.n_calls[i].saturating_sub(1),
            r#type: begun.is_some().then_some("function"),
            id: begun,
            function,
        };
        MessageDelta { tool_calls: Some([call]), ..MessageDelta::default() }
    }
}

impl Encoder for ChatStream {
    fn begin(&mut self, out: &mut Events) {
        for i in 0..self.head.n {
            let (role, content) = (Some("assistant"), Some(String::new()));
            self.more(i, MessageDelta { role, content, ..MessageDelta::default() }, None, out);
        }
    }

    fn update(&mut self, i: usize, update: Update, out: &mut Events) {
        match update {
            Update::Scored(_) => {}
            Update::Prompt { n_done, n_total, n_reused } => {
                if self.streaming.with_progress {
                    let progress = Progress { processed: n_done, total: n_total, cache: n_reused };
                    let chunk = self.chunk(Vec::new(), self.streaming.usage_before_end());
                    out.data(&Chunk { prompt_progress: Some(progress), ..chunk });
                }
            }
            Update::Deltas(deltas, logprobs) => self.deltas(i, deltas, &logprobs, out),
            Update::Done(deltas, answer) => {
                self.deltas(i, deltas, &[], out);
                self.has_ended[i] = true;
                self.usage.add(i, self.head.n, &answer);
                let end = end(&answer, self.n_calls[i] > 0, self.head.calls);
                let (delta, finish_reason) = (MessageDelta::default(), Some(end));
                self.send(ChunkChoice { index: i, delta, logprobs: None, finish_reason }, out);
            }
            Update::Failed(error) => {
                out.data(&ErrorReply::new(&error, Dialect::OpenAi));
                out.fail();
            }
        }
    }

    fn alive(&mut self, out: &mut Events) {
        if let Some(i) = self.has_ended.iter().position(|ended| !ended) {
            self.more(i, MessageDelta::default(), None, out);
        }
    }

    fn end(&mut self, out: &mut Events) {
        if self.streaming.with_usage {
            out.data(&self.chunk(Vec::new(), ChunkUsage::Here(self.usage.into())));
        }
        out.raw("[DONE]");
    }
}

/// How an answer is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streaming {
    pub(crate) is_on: bool,
    pub(crate) with_usage: bool,
    /// Whether the client wants to know how far its prompt is read.
    pub(crate) with_progress: bool,
}

impl Streaming {
    /// What parts before the last say of the tokens that the answers took.
    pub(super) fn usage_before_end(self) -> ChunkUsage {
        if self.with_usage { ChunkUsage::Elsewhere } else { ChunkUsage::Absent }
    }

    /// As the fields of a request say.
    pub(crate) fn of(
        stream: Option<bool>,
        options: Option<&StreamOptions>,
        progress: Option<bool>,
    ) -> Streaming {
        let with_usage = options.and_then(|options| options.include_usage);
        Streaming {
            is_on: stream.unwrap_or(false),
            with_usage: with_usage.unwrap_or(false),
            with_progress: progress.unwrap_or(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use moeflux_text::{OutputFormat, OutputParser};
    use serde_json::{Value, json};

    use super::*;
    use crate::events::slow;

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_sends_chunks_that_add_nothing() {
        let app = slow::app();
        let parser = OutputParser::new(&OutputFormat::plain(), None, false);
        let (answers, sender) = slow::answers(&app, parser, false);
        let head = Head::new(&app, "chatcmpl-", 1, false);
        let encoder = ChatStream::new(Arc::clone(&app), head, Streaming::default());
        let events = slow::stream(answers, sender, Box::new(encoder), &["Hello"]).await;
        assert_eq!(events[events.len() - 1], "[DONE]");
        let events = slow::values(&events);
        let is_empty = |event: &&Value| event["choices"][0]["delta"] == json!({});
        assert!(events.iter().filter(is_empty).count() > 50);
        let text: Vec<&str> = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(text.concat(), "Hello");
        let ends = events.iter().filter(|event| event["choices"][0]["finish_reason"] == "stop");
        assert_eq!(ends.count(), 1);
    }
}
