//! `/v1/responses`: what a request asks for.

mod freeform;
mod hints;
mod item;
mod items;
pub(crate) mod kept;
mod request;
mod response;
mod stream;
mod tools;

use std::sync::Arc;

use hyper::StatusCode;
use moeflux_text::{AnswerShape, Conversation, Message};
use serde_json::{Map, Value};

use self::item::AnswerStyle;
use self::items::Reader;
use self::request::{FlatFormat, Item};
use self::response::{Echo, Task, whole};
use self::stream::ResponseStream;
use self::tools::ToolTable;
use super::format::ResponseFormat;

use crate::app::App;
use crate::ask::collect;
use crate::conversation::{ConversationRequest, Names};
use crate::error::{ApiError, ApiResult};
use crate::events;
use crate::events::EventStream;
use crate::kept::{Owner, Record, refers};
use crate::model::Model;
use crate::offload::offload;
use crate::pictures::Pictures;
use crate::prepare::ask;
use crate::reply::{self, Reply};
use crate::request::{Ignored, Integer, Limit, List, Request, StringOr, read, read_part};
use crate::thinking::{Reasoning, ThinkingRequest};

pub(crate) use self::request::ResponseRequest;
pub(crate) use self::response::Response;

pub(crate) async fn handle(app: Arc<App>, owner: Owner, body: Value) -> ApiResult<Reply> {
    let echo = Echo::of(&body);
    let keeps = body["store"] != Value::Bool(false);
    let record = keeps.then(|| Record::of_request(owner.clone(), &body));
    let Referred { before, body } = referred(&app, owner, body).await?;
    let Request { body, mut ignored } = read::<ResponseRequest>(body)?;
    let is_stream = body.stream.unwrap_or(false);
    let summary = body.reasoning.as_ref().and_then(|reasoning| reasoning.summary.as_ref());
    let style = AnswerStyle { summarises: summary.is_some() };
    let (conversation, table) = conversation(&app, body, before, &mut ignored)?;
    let ignored = ignored.accept(&app)?;
    let begun = Response::new(&app, echo, &conversation.settings);
    let answers = ask(&app, conversation).await?;
    let task = Task { app, begun, table, record, style };
    if is_stream {
        let encoder = ResponseStream::new(task);
        return Ok(ignored.mark(events::stream(EventStream::new(answers, Box::new(encoder)))));
    }
    let all = collect(answers).await?;
    let one = all.into_iter().next().unwrap_or_default();
    Ok(ignored.mark(reply::json(StatusCode::OK, &whole(task, one))))
}

/// A request whose references are resolved.
struct Referred {
    /// The items of the response that it goes on from, and of those before it.
    before: Vec<Value>,
    /// The request, with items in the places of those that referred to them.
    body: Value,
}

/// Finds what a request refers to, which may be on the drive.
///
/// # Errors
/// 404 where something is referred to that is not there.
async fn referred(app: &Arc<App>, owner: Owner, mut body: Value) -> ApiResult<Referred> {
    if !refers(&body) {
        return Ok(Referred { before: Vec::new(), body });
    }
    let app = Arc::clone(app);
    let resolve = move || {
        let mut resolver = app.common.kept.resolver(&owner);
        if let Some(items) = body.get_mut("input").and_then(Value::as_array_mut) {
            for item in items {
                *item = resolver.resolved(item.take())?;
            }
        }
        let before = match body.get("previous_response_id").and_then(Value::as_str) {
            Some(id) => resolver.conversation(id)?,
            None => Vec::new(),
        };
        Ok(Referred { before, body })
    };
    offload(resolve).await?
}

/// What a request asks for, but for how the answer is sent, and its tools. Tools and items that are
/// left out are added to the ignored fields.
fn conversation(
    model: &Model,
    body: ResponseRequest,
    before: Vec<Value>,
    ignored: &mut Ignored,
) -> ApiResult<(ConversationRequest, ToolTable)> {
    model.check_name(body.model.as_deref())?;
    if let Some((name, why)) = body.refused() {
        return Err(ApiError::not_supported(name, why));
    }
    let mut settings = body.sampling().settings(model)?;
    settings.max_tokens = body.max_output_tokens.and_then(|Limit(most)| most);
    settings.top_logprobs = top_logprobs(&body);
    let budgets = body.budgets();
    let mut table = ToolTable::read(body.tools.unwrap_or_default(), ignored)?;
    let nested = body.reasoning.as_ref().and_then(|reasoning| reasoning.max_tokens);
    let thinking = thinking_request(body.reasoning, ignored).within(nested, budgets).of(model);
    let format = body.text.and_then(|text| text.format);
    let shape = format.map_or(Ok(AnswerShape::Text), shape)?;
    let instructions = body.instructions.filter(|text| !text.is_empty());
    let begin = instructions.map(|text| Message::new("system", text)).into_iter().collect();
    let before: Vec<Item> = read_part(Value::Array(before), "previous_response_id")?;
    let input = match body.input {
        StringOr::Other(List(items)) => items,
        StringOr::String(text) => vec![Item::said_by_user(text)],
    };
    let mut pictures = Pictures::of(model);
    let reader = Reader::new(&mut table, ignored, &mut pictures, begin);
    let messages = reader.read(before, input)?;
    let choice = table.choice(body.tool_choice)?;
    let conversation = Conversation {
        messages,
        pictures: Vec::new(),
        tools: table.functions.clone(),
        tool_choice: choice,
        may_call_many: body.parallel_tool_calls.unwrap_or(true),
        shape,
        thinking: thinking.thinks,
        thinking_budget: thinking.thinking_budget(),
        effort: thinking.effort,
        variables: Map::new(),
        continues: false,
        expected: None,
    };
    let names = Names { shape: "text.format", thinking: "reasoning.effort" };
    Ok((ConversationRequest::new(conversation, names, settings, pictures), table))
}

fn top_logprobs(body: &ResponseRequest) -> Option<usize> {
    let mut included = body.include.iter().flat_map(|List(names)| names);
    let is_wanted = included.any(|name| name == "message.output_text.logprobs");
    let top = body.top_logprobs.map(|Integer(top)| top);
    if is_wanted { Some(top.unwrap_or(0)) } else { top.filter(|top| *top > 0) }
}

fn thinking_request(reasoning: Option<Reasoning>, ignored: &mut Ignored) -> ThinkingRequest {
    let Some(Reasoning { effort, enabled, max_tokens, .. }) = reasoning else {
        return ThinkingRequest::default();
    };
    // Who limits thoughts there wants some.
    let is_limited = max_tokens.is_some_and(|most| most != Limit(Some(0)));
    let enabled = enabled.or(is_limited.then_some(true));
    match effort {
        Some(effort) => ThinkingRequest::hint_of_effort(&effort, "reasoning.effort", ignored),
        None => ThinkingRequest { thinks: enabled, ..ThinkingRequest::default() },
    }
}

/// `text.format`, whose schema is not nested.
fn shape(FlatFormat { r#type: kind, schema }: FlatFormat) -> ApiResult<AnswerShape> {
    match (kind.as_str(), schema) {
        ("json_schema", None) => Err(ApiError::field("text.format.schema", "it is missing")),
        (_, schema) => {
            ResponseFormat { r#type: kind, json_schema: None, schema }.shape("text.format")
        }
    }
}
