//! `/v1/messages` and its `count_tokens`: what a request asks for.

use std::sync::Arc;

use hyper::StatusCode;
use moeflux_text::{AnswerShape, Conversation, Message};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::reply::{MessageStream, whole};
use super::request::{Format, MessageRequest};
use super::{blocks, tools, turns};
use crate::app::App;
use crate::ask::collect;
use crate::conversation::{ConversationRequest, Names};
use crate::error::{ApiError, ApiResult};
use crate::events;
use crate::events::EventStream;
use crate::model::Model;
use crate::pictures::Pictures;
use crate::prepare::{ask, count};
use crate::reply::{self, Reply};
use crate::request::{Ignored, Integer, List, Request, read};
use crate::thinking::{Thinking, ThinkingRequest};

pub(crate) async fn handle(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let Request { body, mut ignored } = read::<MessageRequest>(body)?;
    if body.max_tokens.is_none() {
        return Err(ApiError::field("max_tokens", "it is missing"));
    }
    let is_stream = body.stream.unwrap_or(false);
    let conversation = conversation(&app, body, &mut ignored)?;
    let ignored = ignored.accept(&app)?;
    let answers = ask(&app, conversation).await?;
    if is_stream {
        let encoder = MessageStream::new(app, answers.n_prompt(), answers.may_think());
        return Ok(ignored.mark(events::stream(EventStream::new(answers, Box::new(encoder)))));
    }
    let all = collect(answers).await?;
    let one = all.into_iter().next().unwrap_or_default();
    Ok(ignored.mark(reply::json(StatusCode::OK, &whole(&app, one))))
}

/// Tokens of a conversation.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct TokenCount {
    /// Their number.
    input_tokens: usize,
}

pub(crate) async fn count_tokens(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let Request { body, mut ignored } = read::<MessageRequest>(body)?;
    let conversation = conversation(&app, body, &mut ignored)?;
    let ignored = ignored.accept(&app)?;
    let n = count(&app, conversation).await?;
    Ok(ignored.mark(reply::json(StatusCode::OK, &TokenCount { input_tokens: n })))
}

/// What a request asks for, but for how the answer is sent. Tools that are left out are added to
/// the ignored fields.
fn conversation(
    model: &Model,
    mut body: MessageRequest,
    ignored: &mut Ignored,
) -> ApiResult<ConversationRequest> {
    model.check_name(body.model.as_deref())?;
    let mut settings = body.sampling().settings(model)?;
    settings.max_tokens = body.max_tokens.map(|Integer(most)| most);
    let nested = body.thinking.as_ref().and_then(|thinking| thinking.budget_tokens);
    let budgets = body.budgets();
    for (name, field) in [("mcp_servers", body.mcp_servers), ("container", body.container)] {
        if field.is_some_and(|field| field != json!([])) {
            return Err(ApiError::not_supported(name, "this server runs no tools: leave it out"));
        }
    }
    let tools = tools::read(body.tools.unwrap_or_default(), ignored)?;
    let (choice, may_call_many) = tools::choice(body.tool_choice, !tools.is_empty())?;
    let (effort, format) = match body.output_config {
        Some(config) => (config.effort, config.format),
        None => (None, None),
    };
    let (shape_field, format) = match (format, body.output_format) {
        (None, Some(format)) => ("output_format", Some(format)),
        (format, _) => ("output_config.format", format),
    };
    let shape = format.map_or(Ok(AnswerShape::Text), |format| shape(format, shape_field))?;
    let thinking = thinking_request(body.thinking, effort, ignored)?;
    let thinking = thinking.within(nested, budgets).of(model);
    let system = body.system.map(|system| blocks::system(system, "system")).transpose()?;
    let mut messages: Vec<Message> = system
        .filter(|text| !text.is_empty())
        .map(|text| Message::new("system", text))
        .into_iter()
        .collect();
    let List(turns) = body.messages;
    let mut pictures = Pictures::of(model);
    let continues = turns::read(turns, &mut messages, &mut pictures)?;
    let conversation = Conversation {
        messages,
        pictures: Vec::new(),
        tools,
        tool_choice: choice,
        may_call_many,
        shape,
        thinking: thinking.thinks,
        thinking_budget: thinking.thinking_budget(),
        effort: thinking.effort,
        variables: Map::new(),
        continues,
        expected: None,
    };
    let names = Names { shape: shape_field, thinking: "thinking" };
    let request = ConversationRequest::new(conversation, names, settings, pictures);
    request.check_continued(model)?;
    Ok(request)
}

fn shape(Format { r#type: kind, schema }: Format, at: &str) -> ApiResult<AnswerShape> {
    match kind.as_str() {
        "json_schema" => Ok(AnswerShape::Json(Value::Object(schema))),
        _ => Err(ApiError::field(format!("{at}.type"), "choose json_schema")),
    }
}

/// Whether and how much the model is to think. An effort alone does not switch thinking on.
fn thinking_request(
    thinking: Option<Thinking>,
    effort: Option<String>,
    ignored: &mut Ignored,
) -> ApiResult<ThinkingRequest> {
    let thinks = match thinking.as_ref().map(|thinking| thinking.r#type.as_str()) {
        Some("enabled" | "adaptive" | "auto") => Some(true),
        Some("disabled") => Some(false),
        None => None,
        Some(_) => {
            let problem = "choose enabled, adaptive or disabled";
            return Err(ApiError::field("thinking.type", problem));
        }
    };
    let asked = effort
        .map(|effort| ThinkingRequest::hint_of_effort(&effort, "output_config.effort", ignored));
    let effort = asked.filter(|_| thinks != Some(false)).and_then(|thinking| thinking.effort);
    Ok(ThinkingRequest { thinks, effort, ..ThinkingRequest::default() })
}
