//! `/v1/responses`: the answer as a document.

use moeflux_engine::{Answer, Finish};
use moeflux_text::Markup;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::item::{Item, Kind, OutputItem, Status};
use super::tools::ToolTable;
use crate::app::App;
use crate::ask::WholeAnswer;
use crate::error::ApiError;
use crate::ids::now;
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
    /// Always null.
    previous_response_id: Option<String>,
    /// The request's.
    reasoning: Value,
    /// `default`.
    service_tier: &'static str,
    /// Always false.
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
            "reasoning",
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
            previous_response_id: None,
            reasoning: echo.take("reasoning", json!({"effort": null, "summary": null})),
            service_tier: "default",
            store: false,
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
    pub(super) fn ended(
        &self,
        output: Vec<OutputItem>,
        answer: &Answer,
        n_reasoning: usize,
    ) -> Response {
        let (status, incomplete_details) = if is_cut(answer) {
            (ResponseEnd::Incomplete, Some(Incomplete { reason: "max_output_tokens" }))
        } else {
            (ResponseEnd::Completed, None)
        };
        let usage = Usage {
            input_tokens: answer.n_prompt,
            input_tokens_details: InputDetails { cached_tokens: answer.n_reused },
            output_tokens: answer.n_generated,
            output_tokens_details: OutputDetails { reasoning_tokens: n_reasoning },
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

/// Tokens of what was thought.
pub(super) fn n_tokens(app: &App, text: &str) -> usize {
    app.text.tokenizer().encode(text, Markup::Literal).map_or(0, |tokens| tokens.len())
}

/// An answer at once.
pub(super) fn whole(app: &App, begun: Response, table: &ToolTable, whole: WholeAnswer) -> Response {
    let WholeAnswer { reasoning, content, calls, logprobs, answer } = whole;
    let Some(answer) = answer else { return begun };
    let mut items = Vec::new();
    if !reasoning.is_empty() {
        items.push((Kind::Reasoning, reasoning.as_str(), Vec::new()));
    }
    if !content.is_empty() || calls.is_empty() {
        let entries = logprobs::entries(app.text.tokenizer(), &logprobs);
        items.push((Kind::Message, content.as_str(), entries));
    }
    for (name, arguments) in &calls {
        items.push((Kind::Call(table.client_tool(name)), arguments.as_str(), Vec::new()));
    }
    let n = items.len();
    let output = items.into_iter().enumerate().map(|(i, (kind, text, logprobs))| {
        let mut item = Item::new(app, kind);
        item.add(text);
        let status = if i + 1 == n { last_status(&answer) } else { Status::Completed };
        item.output(status, &logprobs)
    });
    let output = output.collect();
    begun.ended(output, &answer, n_tokens(app, &reasoning))
}

/// Whether the answer's last item is complete.
pub(super) fn last_status(answer: &Answer) -> Status {
    if is_cut(answer) { Status::Incomplete } else { Status::Completed }
}

fn is_cut(answer: &Answer) -> bool {
    matches!(answer.finish, Finish::MaxTokens | Finish::ContextFull)
}
