//! `/v1/responses`: the answer as a document.

use std::sync::Arc;

use moeflux_engine::{Answer, Finish};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::item::{AnswerStyle, Item, Kind, OutputItem, Status};
use super::tools::ToolTable;
use crate::app::App;
use crate::ask::WholeAnswer;
use crate::error::ApiError;
use crate::ids::now;
use crate::kept::Record;
use crate::logprobs;
use crate::reply::{Dialect, error_message};
use crate::settings::Settings;

/// The next turn of a conversation, of OpenAI's responses.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Response {
    /// Its identifier.
    id: String,
    /// `response`.
    object: &'static str,
    /// Seconds since 1970.
    created_at: u64,
    /// Whether all was said.
    status: ResponseEnd,
    /// Always false.
    background: bool,
    /// Why it failed.
    error: Option<Failure>,
    /// Why not all was said.
    incomplete_details: Option<Incomplete>,
    /// The request's.
    instructions: Value,
    /// The request's.
    max_output_tokens: Value,
    /// The request's.
    metadata: Value,
    /// The model's name.
    model: String,
    /// What the model thought, said and called.
    output: Vec<OutputItem>,
    /// The request's.
    parallel_tool_calls: Value,
    /// The request's.
    previous_response_id: Value,
    /// The request's.
    reasoning: Value,
    /// `default`.
    service_tier: &'static str,
    /// Whether later requests may refer to it.
    store: bool,
    /// How freely tokens are drawn.
    temperature: f64,
    /// The request's.
    text: Value,
    /// The request's.
    tool_choice: Value,
    /// The request's.
    tools: Value,
    /// How many of the likeliest tokens are reported for every token.
    top_logprobs: usize,
    /// The probability of the tokens that are drawn from.
    top_p: f64,
    /// `disabled`.
    truncation: &'static str,
    /// Tokens that it took; null until it has ended.
    usage: Option<Usage>,
    /// The request's.
    user: Value,
}

/// Whether all was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ResponseEnd {
    /// It is being made.
    InProgress,
    /// The model has said all.
    Completed,
    /// A limit was reached.
    Incomplete,
    /// A step failed.
    Failed,
}

/// Why an answer failed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseFailure", deny_unknown_fields)]
struct Failure {
    /// A word for programs.
    code: &'static str,
    /// In words.
    message: String,
}

/// Why not all was said.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "IncompleteDetails", deny_unknown_fields)]
struct Incomplete {
    /// `max_output_tokens`.
    reason: &'static str,
}

/// Tokens that an answer took.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseUsage", deny_unknown_fields)]
struct Usage {
    /// Tokens of the prompt.
    input_tokens: usize,
    /// Of the prompt's tokens.
    input_tokens_details: InputDetails,
    /// Tokens of the answer.
    output_tokens: usize,
    /// Of the answer's tokens.
    output_tokens_details: OutputDetails,
    /// The sum.
    total_tokens: usize,
}

/// Of the prompt's tokens.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct InputDetails {
    /// Tokens that were known from an earlier request.
    cached_tokens: usize,
    /// Tokens that were evaluated, and that later requests may reuse.
    cache_write_tokens: usize,
}

/// Of the answer's tokens.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct OutputDetails {
    /// Tokens of thoughts.
    reasoning_tokens: usize,
}

/// What an answer repeats of its request.
#[derive(Clone, Debug)]
pub(super) struct Echo(Map<String, Value>);

impl Echo {
    pub(super) fn of(request: &Value) -> Echo {
        let fields = [
            "instructions",
            "max_output_tokens",
            "metadata",
            "parallel_tool_calls",
            "previous_response_id",
            "reasoning",
            "store",
            "text",
            "tool_choice",
            "tools",
            "user",
        ];
        Echo(fields.into_iter().map(|name| (name.to_owned(), request[name].clone())).collect())
    }

    /// A field of the request, or a default.
    fn take(&mut self, field: &str, default: Value) -> Value {
        self.0.remove(field).filter(|value| !value.is_null()).unwrap_or(default)
    }
}

impl Response {
    /// A response that begins.
    pub(super) fn new(app: &App, mut echo: Echo, settings: &Settings) -> Response {
        Response {
            id: app.ids.draw("resp_"),
            object: "response",
            created_at: now(),
            status: ResponseEnd::InProgress,
            background: false,
            error: None,
            incomplete_details: None,
            instructions: echo.take("instructions", Value::Null),
            max_output_tokens: echo.take("max_output_tokens", Value::Null),
            metadata: echo.take("metadata", json!({})),
            model: app.model_name().to_owned(),
            output: Vec::new(),
            parallel_tool_calls: echo.take("parallel_tool_calls", json!(true)),
            previous_response_id: echo.take("previous_response_id", Value::Null),
            reasoning: echo.take("reasoning", json!({"effort": null, "summary": null})),
            service_tier: "default",
            store: echo.take("store", json!(true)) != Value::Bool(false),
            temperature: settings.sampler.temperature.into(),
            text: echo.take("text", json!({"format": {"type": "text"}})),
            tool_choice: echo.take("tool_choice", json!("auto")),
            tools: echo.take("tools", json!([])),
            top_logprobs: settings.top_logprobs.unwrap_or(0),
            top_p: settings.sampler.top_p.into(),
            truncation: "disabled",
            usage: None,
            user: echo.take("user", Value::Null),
        }
    }

    /// The whole response at its end.
    pub(super) fn ended(&self, output: Vec<OutputItem>, answer: &Answer) -> Response {
        let (status, incomplete_details) = if is_cut(answer) {
            (ResponseEnd::Incomplete, Some(Incomplete { reason: "max_output_tokens" }))
        } else {
            (ResponseEnd::Completed, None)
        };
        let usage = Usage {
            input_tokens: answer.n_prompt,
            input_tokens_details: InputDetails {
                cached_tokens: answer.n_reused,
                cache_write_tokens: answer.n_prompt - answer.n_reused,
            },
            output_tokens: answer.n_generated,
            output_tokens_details: OutputDetails { reasoning_tokens: answer.n_thought },
            total_tokens: answer.n_prompt + answer.n_generated,
        };
        Response { status, incomplete_details, output, usage: Some(usage), ..self.clone() }
    }

    /// The response where a step has failed.
    pub(super) fn failed(&self, error: &ApiError) -> Response {
        let message = error_message(error, Dialect::OpenAi);
        let error = Some(Failure { code: "server_error", message });
        Response { status: ResponseEnd::Failed, error, ..self.clone() }
    }

    /// The event that ends a stream with this response.
    pub(super) fn end_event(&self) -> &'static str {
        match self.status {
            ResponseEnd::Completed => "response.completed",
            _ => "response.incomplete",
        }
    }
}

/// An answer that is being made, and what becomes of it.
pub(super) struct Task {
    pub(super) app: Arc<App>,
    pub(super) begun: Response,
    pub(super) table: ToolTable,
    /// The request, where the response is kept.
    pub(super) record: Option<Record>,
    pub(super) style: AnswerStyle,
}

impl Task {
    /// An item of the response, its `i`-th.
    pub(super) fn item(&self, i: usize, kind: Kind) -> Item {
        Item::new(&self.app, &self.begun.id, i, kind)
    }

    /// The whole response at its end. It is kept where the request says so.
    pub(super) fn ended(&mut self, output: Vec<OutputItem>, answer: &Answer) -> Response {
        let response = self.begun.ended(output, answer);
        if let Some(record) = self.record.take() {
            self.app.common.kept.put(&response.id, record.answered(&response));
        }
        response
    }
}

/// An answer at once.
pub(super) fn whole(mut task: Task, whole: WholeAnswer) -> Response {
    let WholeAnswer { reasoning, content, calls, logprobs, answer, .. } = whole;
    let Some(answer) = answer else { return task.begun };
    let mut items = Vec::new();
    if !reasoning.is_empty() {
        items.push((Kind::Reasoning, reasoning.as_str(), Vec::new()));
    }
    if !content.is_empty() || calls.is_empty() {
        let entries = logprobs::entries(task.app.text.tokenizer(), &logprobs);
        items.push((Kind::Message, content.as_str(), entries));
    }
    for (name, arguments) in &calls {
        items.push((Kind::Call(task.table.client_tool(name)), arguments.as_str(), Vec::new()));
    }
    let n = items.len();
    let output = items.into_iter().enumerate().map(|(i, (kind, text, logprobs))| {
        let mut item = task.item(i, kind);
        item.add(text);
        let status = if i + 1 == n { last_status(&answer) } else { Status::Completed };
        item.output(status, &logprobs, task.style)
    });
    let output = output.collect();
    task.ended(output, &answer)
}

/// Whether the answer's last item is complete.
pub(super) fn last_status(answer: &Answer) -> Status {
    if is_cut(answer) { Status::Incomplete } else { Status::Completed }
}

fn is_cut(answer: &Answer) -> bool {
    matches!(answer.finish, Finish::MaxTokens | Finish::ContextFull)
}
