//! `/v1/chat/completions`: the answer.

use std::sync::Arc;

use moeflux_engine::{Answer, TokenLogprob};
use moeflux_text::Delta;
use serde_json::{Map, Value, json};

use super::sampling::finish_reason;
use crate::app::App;
use crate::ask::{Update, Usage, Whole};
use crate::events::{Encoder, Events};
use crate::ids::now;
use crate::logprobs;
use crate::openai::chat_request::StreamOptions;
use crate::reply::{Dialect, error_value};

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

impl CallShape {
    /// Why an answer with calls has ended.
    fn reason(self) -> &'static str {
        match self {
            CallShape::Tools => "tool_calls",
            CallShape::Function => "function_call",
        }
    }
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

    /// An object with this head.
    pub(crate) fn object(&self, app: &App, kind: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": app.model_name(),
            "system_fingerprint": app.fingerprint,
            "choices": choices,
        })
    }
}

pub(crate) fn usage_value(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.n_prompt,
        "completion_tokens": usage.n_generated,
        "total_tokens": usage.n_prompt + usage.n_generated,
        "prompt_tokens_details": {"cached_tokens": usage.n_reused},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.speculation.accepted,
            "rejected_prediction_tokens": usage.speculation.drafted - usage.speculation.accepted,
        },
    })
}

/// All answers at once.
pub(crate) fn whole(app: &App, head: &Head, all: Vec<Whole>) -> Value {
    let mut usage = Usage::default();
    let mut choices = Vec::with_capacity(all.len());
    for (i, whole) in all.into_iter().enumerate() {
        let finish = whole.answer.as_ref().map(|answer| {
            usage.add(i, head.n, answer);
            reason(answer, !whole.calls.is_empty(), head.calls)
        });
        let logprobs = head.with_logprobs.then(|| logprobs_value(app, &whole.logprobs));
        choices.push(json!({
            "index": i,
            "message": message(app, whole, head.calls),
            "logprobs": logprobs,
            "finish_reason": finish,
        }));
    }
    let mut value = head.object(app, "chat.completion", choices);
    value["usage"] = usage_value(usage);
    value
}

fn message(app: &App, whole: Whole, shape: CallShape) -> Value {
    let Whole { reasoning, content, calls, .. } = whole;
    let content = if content.is_empty() && !calls.is_empty() { None } else { Some(content) };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !reasoning.is_empty() {
        message["reasoning_content"] = Value::from(reasoning);
    }
    if shape == CallShape::Function {
        if let Some((name, arguments)) = calls.into_iter().next() {
            message["function_call"] = json!({"name": name, "arguments": arguments});
        }
    } else if !calls.is_empty() {
        let call = |(name, arguments): (String, String)| {
            json!({
                "id": app.ids.draw("call_"),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            })
        };
        message["tool_calls"] = calls.into_iter().map(call).collect();
    }
    message
}

fn reason(answer: &Answer, has_calls: bool, shape: CallShape) -> &'static str {
    match finish_reason(answer.finish) {
        "stop" if has_calls => shape.reason(),
        reason => reason,
    }
}

fn logprobs_value(app: &App, all: &[TokenLogprob]) -> Value {
    let entries: Vec<Value> =
        all.iter().map(|token| logprobs::entry(app.text.tokenizer(), token)).collect();
    json!({"content": entries, "refusal": null})
}

/// Answers as they come.
pub(crate) struct ChatStream {
    app: Arc<App>,
    head: Head,
    streaming: Streaming,
    /// Calls of each answer so far.
    n_calls: Vec<usize>,
    has_ended: Vec<bool>,
    usage: Usage,
}

impl ChatStream {
    pub(crate) fn new(app: Arc<App>, head: Head, streaming: Streaming) -> ChatStream {
        let n_calls = vec![0; head.n];
        let has_ended = vec![false; head.n];
        ChatStream { app, head, streaming, n_calls, has_ended, usage: Usage::default() }
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut value = self.head.object(&self.app, "chat.completion.chunk", choices);
        if self.streaming.with_usage {
            value["usage"] = Value::Null;
        }
        value
    }

    fn choice(&self, i: usize, delta: Value, logprobs: Value, finish: Option<&str>) -> Value {
        self.chunk(vec![json!({
            "index": i, "delta": delta, "logprobs": logprobs, "finish_reason": finish,
        })])
    }

    fn deltas(&mut self, i: usize, all: Vec<Delta>, logprobs: &[TokenLogprob], out: &mut Events) {
        let mut logprobs = match self.head.with_logprobs && !logprobs.is_empty() {
            true => logprobs_value(&self.app, logprobs),
            false => Value::Null,
        };
        if all.is_empty() && !logprobs.is_null() {
            out.data(&self.choice(i, json!({}), logprobs.take(), None));
        }
        for delta in all {
            let delta = self.delta(i, delta);
            out.data(&self.choice(i, delta, logprobs.take(), None));
        }
    }

    fn delta(&mut self, i: usize, delta: Delta) -> Value {
        let index = self.n_calls[i].saturating_sub(1);
        match delta {
            Delta::Content(text) => json!({"content": text}),
            Delta::Reasoning(text) => json!({"reasoning_content": text}),
            Delta::Call { name } => {
                let index = self.n_calls[i];
                self.n_calls[i] += 1;
                let id = self.app.ids.draw("call_");
                let function = json!({"name": name, "arguments": ""});
                if self.head.calls == CallShape::Function {
                    return json!({"function_call": function});
                }
                json!({"tool_calls": [
                    {"index": index, "id": id, "type": "function", "function": function},
                ]})
            }
            Delta::Arguments(text) if self.head.calls == CallShape::Function => {
                json!({"function_call": {"arguments": text}})
            }
            Delta::Arguments(text) => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            }
        }
    }
}

impl Encoder for ChatStream {
    fn begin(&mut self, out: &mut Events) {
        for i in 0..self.head.n {
            let delta = json!({"role": "assistant", "content": ""});
            out.data(&self.choice(i, delta, Value::Null, None));
        }
    }

    fn update(&mut self, i: usize, update: Update, out: &mut Events) {
        match update {
            Update::Prompt { n_done, n_total, n_reused } => {
                if self.streaming.with_progress {
                    let mut value = self.chunk(Vec::new());
                    let progress =
                        json!({"processed": n_done, "total": n_total, "cache": n_reused});
                    value["prompt_progress"] = progress;
                    out.data(&value);
                }
            }
            Update::Deltas(deltas, logprobs) => self.deltas(i, deltas, &logprobs, out),
            Update::Done(deltas, answer) => {
                self.deltas(i, deltas, &[], out);
                self.has_ended[i] = true;
                self.usage.add(i, self.head.n, &answer);
                let finish = reason(&answer, self.n_calls[i] > 0, self.head.calls);
                out.data(&self.choice(i, Value::Object(Map::new()), Value::Null, Some(finish)));
            }
            Update::Failed(error) => {
                out.data(&error_value(&error, Dialect::OpenAi));
                out.fail();
            }
        }
    }

    fn alive(&mut self, out: &mut Events) {
        if let Some(i) = self.has_ended.iter().position(|ended| !ended) {
            out.data(&self.choice(i, json!({}), Value::Null, None));
        }
    }

    fn end(&mut self, out: &mut Events) {
        if self.streaming.with_usage {
            let mut value = self.chunk(Vec::new());
            value["usage"] = usage_value(self.usage);
            out.data(&value);
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
